"""Inheritance of agents: set, read and cancel the heir of an agent.

The owner of the agent sets and cancels the heir. The timekeeper executes the inheritance. Only the
owner, the agent, the heir and administrators may see it. Reference: features.md (Inheritance).
Decision agent-identity.
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode
from core.records.api.identity import (
    Inheritance,
    InheritanceCancelled,
    InheritanceSet,
    InheritanceSetting,
)
from core.trust.identity.succession import switch_status
from ledger.features.inheritance import CancelInheritance, SetInheritance, switch_row
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, not_found
from serve_app.operations.views import iso_time, shown, shown_result

OPERATIONS = Operations("identity")


@OPERATIONS.add(
    "POST",
    "/v1/identity/inheritance",
    body=InheritanceSetting,
    reply=InheritanceSet,
    errors=(ErrorCode.NOT_FOUND,),
)
async def set_heir(call: Call) -> Json:
    """Name the heir of an agent that stops sending heartbeats."""
    body, services = call.given(InheritanceSetting), call.services
    command = SetInheritance(
        did=body.agent_did,
        heir_did=body.inherits_to_did,
        days=body.dead_man_switch_days,
        requires_inactivity=body.conditions is not None and body.conditions.requires_inactivity,
        needs_proof=services.settings.needs_proof,
    )
    await call.commit(command)
    row = await switch_row(services.reader, body.agent_did)
    assert row is not None, body.agent_did
    return {"success": True, "id": body.agent_did, **_record(row, services.now_ms())}


@OPERATIONS.add("GET", "/v1/identity/inheritance/{did}", reply=Inheritance)
async def get(call: Call) -> Json:
    """Read the heir of an agent and the state of the inheritance."""
    did = call.path_values["did"]
    row = await switch_row(call.services.reader, did)
    if row is None or row["status"] == "cancelled":
        raise not_found(f"the heir of {did[:255]}")
    parties = (did, row["owner_did"], row["heir_did"])
    call.require_party(parties, f"the heir of {did[:255]}")
    return _record(row, call.services.now_ms())


@OPERATIONS.add(
    "DELETE",
    "/v1/identity/inheritance/{did}",
    reply=InheritanceCancelled,
    errors=(ErrorCode.NOT_CANCELLABLE,),
)
async def cancel(call: Call) -> Json:
    """Cancel the inheritance of an agent."""
    did = call.path_values["did"]
    outcome = await call.commit(CancelInheritance(did=did))
    return shown_result(InheritanceCancelled, outcome, id=did, agent_did=did)


def _record(row: RowDict, now_ms: int) -> dict[str, Any]:
    is_triggered = row["status"] == "triggered"
    left_ms = max(0, row["limit_ms"] - row["silent_ms"])
    return shown(
        Inheritance,
        row,
        inherits_to_did=row["heir_did"],
        dead_man_switch_days=row["days"],
        conditions={"requiresInactivity": row["requires_inactivity"]},
        status=switch_status(row["silent_ms"], row["days"], is_triggered=is_triggered),
        last_heartbeat_at=iso_time(row["heartbeat_ms"]),
        triggers_at=None if is_triggered else iso_time(now_ms + left_ms),
        triggered_at=iso_time(row["ended_ms"]),
    )
