"""Trust: revokes agents, lifts revocations, and refuses steps with work of revoked agents.

Reference: features.md (Revocation).
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql

from core.canonical import hash_text
from core.errors import ErrorCode
from core.json_text import read_json
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid
from core.workflow.transitions import NodeStatus
from ledger.authority import AuthorizedCommand, OwnersCommand
from ledger.features.quarantine import check_not_quarantined, set_halted
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.reads.agent_pages import is_shown
from ledger.reads.reader import (
    LedgerReader,
    RowDict,
    RowPage,
)
from ledger.schema import revocation
from ledger.tables.market_tables import REVOCATIONS, UNREVOCATIONS
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, invalid, not_found
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.state_cache import Escrow, Revocation

# Commands that revoke an agent, lift a revocation, and record the use of a single right.


class RevokeAgent(OwnersCommand, frozen=True, kw_only=True):
    """Revoke an agent: from this command on it gets no work and no payments.

    `expires_ms` None: for ever. Only the agent, its owner or an administrator (`is_admin`) may do
    so. Rejections: FORBIDDEN, ALREADY_REVOKED, INVALID_REQUEST (expires in the past), KEY_REUSED.
    Result: {"revokedMs": int}.
    """

    request_hash: bytes
    did: str
    reason: str
    evidence_json: str
    expires_ms: int | None


class UnrevokeAgent(OwnersCommand, frozen=True, kw_only=True):
    """Lift a revocation. Only the revoker or an administrator may do so.

    Rejections: NOT_FOUND (it is not revoked), FORBIDDEN. Result: {"unrevokedMs": int}.
    """

    did: str


class NoteAuditedRead(AuthorizedCommand, frozen=True, kw_only=True):
    """Record that a single right was used, for a read or for a change that is not audited.

    `operation`: the method and path of the operation, as declared. `authority` has the right and
    the reason. No rejection, no result.
    """

    operation: str


# Plans. The writer enforces revocations. So an agent gets no payment and no new attempt between the
# audit entries of a revocation and its end. This holds even if an owner process learns of the
# revocation late. A refused step halts its workflow, because later decisions of the owner process
# were based on a step that was not stored. Reference: money.md (Settlement).

# Outcomes of attempts that have a result or a verdict of an agent.
_SAID: Final = ("success", "rejected")


@plans(NoteAuditedRead)
def plan_note_reading(command: NoteAuditedRead, batch: Batch) -> Result:
    """Record that a single right was used."""
    batch.record(AuditEventType.RIGHT_USED, ("operation", command.operation))
    return {}


@plans(RevokeAgent, reads=keys_of(trusted="did"), outlives_credential=True)
def plan_revoke_agent(command: RevokeAgent, batch: Batch) -> Result:
    """Revoke an agent.

    Steps: (1) check the caller's right, (2) check that the agent is not revoked, (3) check that the
    revocation's end is in the future.
    """
    did, cache = command.did, batch.cache
    agent = cache.agents.get(did)
    owner_did = did if agent is None else agent.owner_did
    if not command.may_act_for(did, owner_did):  # (1)
        raise forbidden(f"only {did}, its owner or an administrator may revoke it")
    if cache.is_revoked(did, batch.clock_ms):  # (2)
        raise Refusal(ErrorCode.ALREADY_REVOKED, f"{did} is revoked already")
    if command.expires_ms is not None and command.expires_ms <= batch.clock_ms:  # (3)
        raise invalid(f"expiresAt: got {iso_ms(command.expires_ms)}, expected a time in the future")
    cache.revoked[did] = Revocation(command.actor_did, command.expires_ms)
    evidence = read_json(command.evidence_json)
    # The end of an earlier revocation in the same batch would be written after this row.
    batch.drop(UNREVOCATIONS, did)
    by_did = command.actor_did
    batch.store(REVOCATIONS, did, command, evidence=evidence, revoked_by_did=by_did)
    batch.is_directory_changed = True
    payload: dict[str, Any] = {"reason": command.reason, "evidenceHash": hash_text(evidence)}
    if command.expires_ms is not None:
        payload["expiresAt"] = iso_ms(command.expires_ms)
    batch.record(AuditEventType.AGENT_REVOKED, ("agent", did), **payload)
    return {"revokedMs": batch.now_ms}


@plans(UnrevokeAgent, reads=keys_of(trusted="did"), outlives_credential=True)
def plan_unrevoke_agent(command: UnrevokeAgent, batch: Batch) -> Result:
    """Lift the revocation of an agent."""
    did, cache = command.did, batch.cache
    if not cache.is_revoked(did, batch.clock_ms):
        raise not_found(f"{did} is not revoked")
    revocation = cache.revoked[did]
    assert revocation is not None, did
    if not command.may_act_for(revocation.by_did):
        raise forbidden(
            f"{did} was revoked by {revocation.by_did}: only {revocation.by_did} or an"
            " administrator can lift the revocation"
        )
    cache.revoked[did] = None
    batch.put(UNREVOCATIONS, did, {"did": did, "ended_by_did": command.actor_did})
    batch.is_directory_changed = True
    batch.record(AuditEventType.AGENT_UNREVOKED, ("agent", did))
    return {"unrevokedMs": batch.now_ms}


def check_step_accepted(command: AdvanceWorkflow, escrow: Escrow, batch: Batch) -> None:
    """Refuse a step of a halted workflow, and a step with the work of a revoked agent.

    Raises:
        Refusal: CONFLICT, FORBIDDEN; after FORBIDDEN the workflow is halted.
    """
    check_not_quarantined(command, escrow)
    if escrow.is_halted and not command.is_fresh:
        detail = "an earlier step of the workflow was refused: its rows must be read again"
        raise conflict(detail, is_stored=False)
    for record in command.records:
        did = _reporting_agent(record)
        if did is not None and batch.cache.is_revoked(did, batch.clock_ms):
            set_halted(command.workflow_id, escrow, batch, is_halted=True)
            detail = f"{did} is revoked: its result is neither accepted nor paid"
            # Not stored, because the same step may be decided again after the end of the
            # revocation.
            raise forbidden(detail, is_audited=True, is_stored=False)


def resume(command: AdvanceWorkflow, escrow: Escrow, batch: Batch) -> None:
    """End the halt of a workflow, because this step was decided from its rows."""
    if escrow.is_halted:
        assert command.is_fresh, command
        set_halted(command.workflow_id, escrow, batch, is_halted=False)


def revoked_attempts(command: PublishWorkflow | AdvanceWorkflow, batch: Batch) -> list[str]:
    """Return the nodes that a step dispatches to revoked agents."""
    return [
        record.node
        for record in command.records
        if type(record) is NodeChanged
        and record.status is NodeStatus.DISPATCHED
        and record.agent_did is not None
        and batch.cache.is_revoked(record.agent_did, batch.clock_ms)
    ]


def _reporting_agent(record: object) -> str | None:
    """Return the agent whose result, verdict or payment a record contains, None without one."""
    if type(record) is NodePaid:
        return record.agent_did
    if type(record) is AttemptFinished and record.outcome in _SAID:
        return record.agent_did
    return None


# Reads of revocations that are in force.


def in_force(at_ms: int) -> sql.ColumnElement[bool]:
    expires = revocation.c.expires_ms
    return revocation.c.ended_ms.is_(None) & (expires.is_(None) | (expires > at_ms))


async def revocation_row(reader: LedgerReader, did: str, *, at_ms: int) -> RowDict | None:
    """Return a DID's revocation that is in force at a time (Unix milliseconds), or None."""
    query = sql.select(revocation).where(revocation.c.did == did, in_force(at_ms))
    return await reader.row(query)


async def revocation_rows(
    reader: LedgerReader, *, at_ms: int, after_did: str | None, viewer: str | None, **page: Any
) -> RowPage:
    """Return the revocations in force at a time, in the order of their DIDs.

    Args:
        viewer: the DID that may see them; None: an administrator.
        page: `limit`, `offset` and `bytes_max`, the maximum bytes of evidence.
    """
    condition = is_shown("callboard.revocation.did", viewer)
    query = sql.select(revocation).where(in_force(at_ms), condition)
    return await reader.page(query, "did", after_did, wide="evidence", **page)
