"""Receipts of payments, and results that agents have signed.

The deployment signs a receipt when it is first read. The parties of a node may submit receipts of
their own. The payer, administrators, the agent and its owner may read receipts.
Reference: features.md (Receipts, Signed results).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from core.canonical import canonical, hash_text
from core.errors import ErrorCode, ServiceError
from core.json_text import read_json
from core.records.api.kinds import ENTRY_ID_MAX
from core.records.api.record import PageQuery
from core.records.api.trust import (
    RECEIPT_BYTES_MAX,
    Receipt,
    ReceiptClaim,
    ReceiptPage,
    ReceiptSubmission,
    ReceiptSubmitted,
    ReceiptVerified,
    ResultClaim,
    ResultVerified,
    SignedResult,
    SignedResultPage,
    SignedResultsQuery,
    SubmittedReceipt,
)
from core.trust.identity.agent_keys import KEYS_MAX
from core.trust.receipts import signed_members
from core.trust.signatures import is_signed_by, result_message
from ledger.features.identity_reads import KEYS_TRIED_MAX, newest_keys
from ledger.features.receipts import (
    SubmitReceipt,
    receipt_rows,
    result_rows,
    submit_receipt_key,
    submitted_rows,
)
from ledger.features.signing_keys import signing_key_rows
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, Reply, canonical_object, invalid, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import iso_time, shown
from serve_app.operations.visibility import owns_agent, work_viewer

OPERATIONS = Operations("receipts", "trust")

JOSE: Final = "application/jose"
_ID: Final = re.compile(r"rcpt_([1-9][0-9]{0,18})", re.ASCII)


@OPERATIONS.add(
    "GET",
    "/v1/receipts/{receipt}",
    query=PageQuery,
    reply=(ReceiptPage, Receipt),
    other_media_type=JOSE,
)
async def get(call: Call) -> Reply:
    """Read a receipt by its id, or list the receipts of an agent by its DID, newest first."""
    asked = call.path_values["receipt"]
    if asked.startswith("did:"):
        is_own = call.may((asked,)) or await owns_agent(call, asked)
        return await _page(call, None if is_own else call.caller.did, agent_did=asked)
    found = _ID.fullmatch(asked)
    number = 0 if found is None else min(int(found[1]), ENTRY_ID_MAX)
    rows = await receipt_rows(call.services.reader, call.party_did, entry_id=number)
    if not rows:
        raise not_found(f"the receipt {asked[:100]}")
    return await _signed(call, rows) or Reply((await _records(call, rows))[0])


@OPERATIONS.add(
    "GET",
    "/v1/receipts/workflow/{workflow_id}",
    query=PageQuery,
    reply=ReceiptPage,
    other_media_type=JOSE,
)
async def of_workflow(call: Call) -> Reply:
    """List the receipts of a workflow, newest first."""
    workflow_id = call.path_values["workflow_id"]
    return await _page(call, await work_viewer(call, workflow_id), workflow_id=workflow_id)


@OPERATIONS.add(
    "POST",
    "/v1/receipts",
    body=ReceiptSubmission,
    reply=ReceiptSubmitted,
    errors=(ErrorCode.NOT_FOUND,),
)
async def submit(call: Call) -> Json:
    """Submit a receipt of a node, as its agent, the agent's owner or the payer.

    Each of these callers may submit one receipt for a node. A repeat of the same receipt gets the
    first reply.
    """
    body, did = call.given(ReceiptSubmission), call.caller.did
    text = canonical(canonical_object("$", call.object_body()))
    if len(text) > RECEIPT_BYTES_MAX:
        raise invalid("$", f"{len(text)} bytes", f"at most {RECEIPT_BYTES_MAX} bytes")
    signer_did, agent_did = await _parties(call, body)
    keys = await newest_keys(call.services.reader, signer_did, most=1)
    is_checked = bool(body.signature and keys)
    command = SubmitReceipt(
        key=submit_receipt_key(body.workflow_id, body.node_id, did),
        request_hash=hashlib.sha256(text).digest(),
        receipt_id=call.services.new_id(),
        workflow_id=body.workflow_id,
        node_id=body.node_id,
        agent_did=agent_did,
        body=text.decode(),
        is_verified=is_signed_by(keys[0], canonical(signed_members(call.json)), body.signature)
        if is_checked
        else None,
    )
    detail = f"{did} has submitted another receipt for node {body.node_id!r}"
    outcome = await call.commit(command, done=ServiceError(ErrorCode.CONFLICT, detail))
    place, receipt_id = (body.workflow_id, body.node_id), outcome.result["id"]
    rows = await submitted_rows(call.services.reader, [place])
    (row,) = (row for row in rows if str(row["id"]) == receipt_id)
    return {"success": True, **_submitted(row)}


@OPERATIONS.add(
    "POST",
    "/v1/receipts/verify",
    scope="trust:read",
    rate=RateClass.READ,
    body=ReceiptClaim,
    reply=ReceiptVerified,
)
async def verify(call: Call) -> Json:
    """Verify that a receipt was signed by this deployment."""
    receipt = canonical_object("receipt", call.given(ReceiptClaim).receipt)
    rows = await signing_key_rows(call.services.reader)
    key = next((row["public_key"] for row in rows if row["key_id"] == receipt.get("keyId")), None)
    signature = receipt.get("signature")
    is_signed = key is not None and is_signed_by(key, canonical(signed_members(receipt)), signature)
    reason = None if is_signed else "its signature is not by the key that it names"
    if key is None:
        reason = "keyId names no signing key of this deployment"
    known = {"keyKnown": key is not None, "signatureValid": is_signed, "reason": reason}
    return {"valid": is_signed, **known}


async def _page(call: Call, viewer: str | None, **of: Any) -> Reply:
    page, reader = page_of(call, call.given(PageQuery)), call.services.reader
    of |= {"before": number_after(page), "limit": page.limit + 1, "offset": page.offset}
    rows = await receipt_rows(reader, viewer, **of)
    as_jws = await _signed(call, rows, page.limit)
    if as_jws is not None:
        return as_jws
    receipts = await _records(call, rows)
    return Reply(listed("receipts", receipts, page, lambda one: one["receiptId"][5:]))


async def _signed(call: Call, rows: list[RowDict], most: int = 1) -> Reply | None:
    """Sign the receipts that have no signature yet.

    Args:
        call: the request.
        rows: the rows of the receipts. The signature and the signed body are added to the rows.
        most: the most receipts in the reply.

    Returns:
        A reply with one JSON Web Signature (RFC 7515) per line, if the caller accepts this media
        type; else None.
    """
    services = call.services
    keys, now_ms = services.settings.deployment_keys, services.now_ms()
    await services.to_the_end(services.receipts.sign(rows, keys, now_ms=now_ms))
    if JOSE.encode() not in call.headers.get(b"accept", b""):
        return None
    return Reply("\n".join(row["jws"] for row in rows[:most]).encode(), content_type=JOSE.encode())


async def _records(call: Call, rows: list[RowDict]) -> list[dict[str, Any]]:
    """Return the JSON records of signed receipts, each with the receipts of the parties."""
    places = [(str(row["workflow_id"]), row["node_id"]) for row in rows]
    submitted = await submitted_rows(call.services.reader, places)
    return [
        {
            **read_json(row["body"]),
            "signature": row["signature"],
            "checkpoint": row["checkpoint"],
            "submitted": [
                _submitted(one)
                for one in submitted
                if (str(one["workflow_id"]), one["node_id"]) == place
            ],
        }
        for row, place in zip(rows, places, strict=True)
    ]


def _submitted(row: RowDict) -> dict[str, Any]:
    others = {"receipt": read_json(row["body"]), "verified": row["is_verified"]}
    return shown(SubmittedReceipt, row, receipt_id=str(row["id"]), **others)


async def _parties(call: Call, body: ReceiptSubmission) -> tuple[str, str]:
    """Return the DID whose key signs a submitted receipt, and the node's agent.

    Raises:
        ServiceError: NOT_FOUND: the caller is not a party of the node. INVALID_REQUEST: the receipt
            names another agent.
    """
    reads, did = call.services.reads, call.caller.did
    head = await reads.head(body.workflow_id, did)
    node = await reads.dispatched_node(body.workflow_id, body.node_id)
    agent_did = None if node is None else node["agent_did"]
    is_payer = head is not None and call.is_party((head.workflow.payer_did,))
    is_agents = call.is_party((agent_did,)) or await owns_agent(call, agent_did or "")
    if agent_did is None or not (is_payer or is_agents):
        raise not_found(f"a node {body.node_id!r} of the caller in the workflow {body.workflow_id}")
    if body.agent_did not in (None, agent_did):
        raise invalid("agentDid", str(body.agent_did), f"the node's agent, {agent_did}")
    return did if is_payer else agent_did, agent_did


@OPERATIONS.add(
    "GET",
    "/v1/trust/signed-results/{workflow_id}",
    tag="signed-results",
    query=SignedResultsQuery,
    reply=SignedResultPage,
)
async def list_results(call: Call) -> Json:
    """List the signed results of a workflow."""
    query, workflow_id = call.given(SignedResultsQuery), call.path_values["workflow_id"]
    viewer, page = await work_viewer(call, workflow_id), page_of(call, query)
    rows = await result_rows(
        call.services.reader,
        workflow_id,
        viewer,
        is_all=query.all or False,
        after=number_after(page) or 0,
        **page.rows,
    )

    def form(row: RowDict) -> dict[str, Any]:
        return shown(SignedResult, row, timestamp=iso_time(row["completed_ms"]))

    return listed("results", rows, page, lambda row: row["id"], form=form)


@OPERATIONS.add(
    "POST",
    "/v1/signed-results/{node}/verify",
    tag="signed-results",
    scope="trust:read",
    rate=RateClass.READ,
    body=ResultClaim,
    reply=ResultVerified,
)
async def verify_result(call: Call) -> Json:
    """Verify a result of a node, and the signature over it.

    Members that the body omits are taken from the stored result.
    """
    claim, node = call.given(ResultClaim), call.path_values["node"]
    viewer, reader = await work_viewer(call, claim.workflow_id), call.services.reader
    rows = await result_rows(reader, claim.workflow_id, viewer, node=node, limit=1, offset=0)
    if not rows:
        raise not_found(f"a result of {node!r} in the workflow {claim.workflow_id}")
    stored = rows[0]
    agent_did, stored_hash = stored["agent_did"], stored["result_hash"]
    hashed = stored_hash if claim.result is None else _hash_of(claim.result)
    result_hash = claim.result_hash or hashed
    is_same = hashed == result_hash == stored_hash
    message = result_message(node, claim.workflow_id, result_hash)
    signature = claim.signature or stored["signature"]
    named = (claim.public_key or stored["public_key"] or "").removeprefix("ed25519:")
    keys = await newest_keys(reader, agent_did, KEYS_MAX)
    keys = (named,) if named in keys else () if named else keys[:KEYS_TRIED_MAX]
    is_signed = any(is_signed_by(key, message, signature) for key in keys)
    reason = None if is_same else "the result is not the stored one"
    if not is_signed:
        reason = "no key of the agent verifies the signature"
    if signature is None:
        reason = "the result is not signed"
    return {
        "valid": reason is None,
        "hashMatches": is_same,
        "signatureValid": is_signed,
        "signedBy": agent_did if is_signed else None,
        "reason": reason,
    }


def _hash_of(result: Any) -> str:
    """Return the hash of a result.

    Raises:
        ServiceError: INVALID_REQUEST: the result has no canonical form.
    """
    try:
        return hash_text(result)
    except ValueError as error:
        raise invalid("result", str(error)[:200], "a value with a canonical form") from None
