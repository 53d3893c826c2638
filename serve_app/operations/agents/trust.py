"""Revocations: revoke an agent, lift a revocation, read revocations.

A revoked agent gets no work and no payment. The agent, its owner and callers with the scope
`trust:revoke` may revoke an agent. Reference: features.md (Revocation); decision
permissions-and-keys.
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode
from core.json_text import write_json
from core.records.api.kinds import Did
from core.records.api.record import PageQuery
from core.records.api.shape import value_of
from core.records.api.trust import (
    Revocation,
    RevocationPage,
    RevocationRequest,
    Revoked,
    Unrevoked,
)
from core.trust.access import REVOKE
from ledger.features.trust import RevokeAgent, UnrevokeAgent, revocation_row, revocation_rows
from ledger.reads.reader import RowDict
from serve_app.http.calls import (
    Call,
    Json,
    Operations,
    Repeats,
    Reply,
    canonical_object,
    replayed,
)
from serve_app.http.lists import listed, page_of
from serve_app.operations.views import iso_time, shown, shown_result
from serve_app.operations.visibility import known_did

OPERATIONS = Operations("trust")


@OPERATIONS.add(
    "POST",
    "/v1/trust/revoke",
    single_right=REVOKE,
    body=RevocationRequest,
    reply=Revoked,
    errors=(ErrorCode.ALREADY_REVOKED,),
    repeats=Repeats.BY_COMMAND,
)
async def revoke(call: Call) -> Reply:
    """Revoke an agent: it gets no work and no payment.

    The reply is sent when every owner process has read the revocation.
    """
    body = call.given(RevocationRequest)
    did = body.did
    evidence = canonical_object("evidence", body.evidence)
    command = RevokeAgent(
        request_hash=call.request_hash,
        is_admin=call.holds(REVOKE),
        did=did,
        reason=body.reason,
        evidence_json=write_json(evidence).decode(),
        expires_ms=body.expires_at,
    )
    outcome = await call.commit(command, until_known=True)
    others = {
        "reason": command.reason,
        "evidence": evidence,
        "expires_at": iso_time(command.expires_ms),
        "revoked_by_did": call.caller.did,
    }
    record = shown_result(Revoked, outcome, id=did, did=did, revoked=True, **others)
    return Reply(record, headers=replayed(outcome))


@OPERATIONS.add("DELETE", "/v1/revoked/{did}", single_right=REVOKE, reply=Unrevoked)
async def unrevoke(call: Call) -> Json:
    """Lift a revocation."""
    did = call.path_values["did"]
    outcome = await call.commit(
        UnrevokeAgent(is_admin=call.holds(REVOKE), did=did), until_known=True
    )
    unrevoked_at = iso_time(outcome.result["unrevokedMs"])
    return {"success": True, "id": did, **_trusted(did), "unrevokedAt": unrevoked_at}


@OPERATIONS.add("GET", "/v1/revoked/{did}", reply=Revocation)
async def look_up(call: Call) -> Json:
    """Read whether a DID is revoked."""
    did, services = value_of(Did, "did", call.path_values["did"]), call.services
    known = await known_did(call, did)
    row = await revocation_row(services.reader, known, at_ms=services.now_ms())
    return _trusted(did) if row is None else _record(row, call)


@OPERATIONS.add("GET", "/v1/revoked", query=PageQuery, reply=RevocationPage)
async def list_revoked(call: Call) -> Json:
    """List revocations."""
    page = page_of(call, call.given(PageQuery))
    rows = await revocation_rows(
        call.services.reader,
        at_ms=call.services.now_ms(),
        after_did=page.after,
        viewer=call.viewer_did,
        bytes_max=page.bytes_max,
        **page.rows,
    )
    shown = [_record(row, call) for row in rows]
    return listed("revocations", shown, page, lambda row: row["did"], is_cut=rows.is_cut)


def _record(row: RowDict, call: Call) -> dict[str, Any]:
    """Return a revocation in force.

    Only the revoked DID, the DID that revoked it and administrators see the evidence.
    """
    is_theirs = call.may((row["did"], row["revoked_by_did"]))
    return shown(Revocation, row, revoked=True, evidence=row["evidence"] if is_theirs else None)


def _trusted(did: str) -> dict[str, Any]:
    return {"did": did, "revoked": False, "reason": None, "revokedAt": None, "expiresAt": None}
