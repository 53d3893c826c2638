"""Results with the signatures of their agents: listed, and verified.

Seen by the payer, administrators and, of its own nodes, an agent and its owner.
Reference: features.md (Signed results).
"""

from __future__ import annotations

from typing import Any

from core.canonical import hash_text
from core.records.api.trust import (
    ResultClaim,
    ResultVerified,
    SignedResult,
    SignedResultPage,
    SignedResultsQuery,
)
from core.trust.identity.agent_keys import KEYS_MAX
from core.trust.signatures import is_signed_by, result_message
from ledger.identity.identity_reads import KEYS_TRIED_MAX, newest_keys
from ledger.proofs.signed_results import result_rows
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, invalid, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import iso_time, shown
from serve_app.operations.whose import work_viewer

OPERATIONS = Operations("signed-results", "trust")


@OPERATIONS.add(
    "GET",
    "/v1/trust/signed-results/{workflow_id}",
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
    scope="trust:read",
    rate=RateClass.READ,
    body=ResultClaim,
    reply=ResultVerified,
)
async def verify(call: Call) -> Json:
    """Verify a result of a node, and the signature over it.

    What the body does not name is taken from the stored result.
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
        ServiceError: INVALID_REQUEST; it has no canonical form.
    """
    try:
        return hash_text(result)
    except ValueError as error:
        raise invalid("result", str(error)[:200], "a value with a canonical form") from None
