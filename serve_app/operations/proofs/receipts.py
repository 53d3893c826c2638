"""Receipts: the deployment's own, signed when they are first read, and those of the parties.

Seen by the payer, administrators, the agent and its owner. Reference: features.md (Receipts).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from core.canonical import canonical
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
    SubmittedReceipt,
)
from core.trust.receipts import signed_members
from core.trust.signatures import is_signed_by
from ledger.identity.identity_reads import newest_keys
from ledger.proofs.receipts import receipt_rows
from ledger.proofs.signing_keys import signing_key_rows
from ledger.proofs.submitted_receipts import SubmitReceipt, submit_receipt_key, submitted_rows
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, Reply, canonical_object, invalid, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import shown
from serve_app.operations.whose import owns_agent, work_viewer

JOSE: Final = "application/jose"
_ID: Final = re.compile(r"rcpt_([1-9][0-9]{0,18})", re.ASCII)

OPERATIONS = Operations("receipts", "trust")


@OPERATIONS.add(
    "GET",
    "/v1/receipts/{receipt}",
    query=PageQuery,
    reply=(ReceiptPage, Receipt),
    other_media_type=JOSE,
)
async def get(call: Call) -> Reply:
    """Read a receipt by its id, or list those of an agent by its DID, newest first."""
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

    Each may submit one receipt for a node. Submitting the same receipt again returns the first
    reply.
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
    """Sign receipts; for a caller who accepts that, return at most so many of them as JSON Web
    Signatures (RFC 7515), one a line.
    """
    services = call.services
    keys, now_ms = services.settings.deployment_keys, services.now_ms()
    await services.to_the_end(services.receipts.sign(rows, keys, now_ms=now_ms))
    if JOSE.encode() not in call.headers.get(b"accept", b""):
        return None
    return Reply("\n".join(row["jws"] for row in rows[:most]).encode(), content_type=JOSE.encode())


async def _records(call: Call, rows: list[RowDict]) -> list[dict[str, Any]]:
    """Return signed receipts in their JSON form, each with what the parties have submitted."""
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
        ServiceError: NOT_FOUND, the caller is no party of the node; INVALID_REQUEST, the receipt
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
