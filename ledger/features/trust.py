"""Trust: agents are revoked and taken back, and what follows for their work.

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
    PAGE_BYTES_MAX,
    LedgerReader,
    RowDict,
    RowPage,
)
from ledger.schema import revocation
from ledger.tables.market_tables import REVOCATIONS, UNREVOCATIONS
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, invalid, not_found
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import Escrow, Revocation

# Commands about whom to trust: agents are revoked, and taken back; what operators read is noted.


class RevokeAgent(OwnersCommand, frozen=True, kw_only=True):
    """Let an agent do no more work: from this commit on it gets none and is paid for none.

    `expires_ms` None: for good. `is_admin` lets anybody act; else it is the agent or its owner.
    Rejections: FORBIDDEN, ALREADY_REVOKED, INVALID_REQUEST (expires in the past), KEY_REUSED.
    Result: {"revokedMs": int}.
    """

    request_hash: bytes
    did: str
    reason: str
    evidence_json: str
    expires_ms: int | None


class UnrevokeAgent(OwnersCommand, frozen=True, kw_only=True):
    """Let a revoked agent work again; who did not revoke it needs to be an administrator.

    Rejections: NOT_FOUND (it is not revoked), FORBIDDEN. Result: {"unrevokedMs": int}.
    """

    did: str


class NoteReading(AuthorizedCommand, frozen=True, kw_only=True):
    """Say on the chain that a single right was used, by which operation: to read, or to change what
    is not audited.

    `operation`: its method and path, as declared for a read. `authority` says the right and the
    reason. No rejection, no result.
    """

    operation: str


# Planning who is trusted: agents are revoked and taken back, and what follows for their work. The
# one writer decides it, so that the chain has no payment and no new attempt of an agent between
# its revocation and that one's end, however late an owner is notified. A step that is refused for
# it halts its workflow: what its owner has decided since, it has decided on what did not happen.
# md (Settlement).

# What an agent or a verifier has to say of its work.
_SAID: Final = ("success", "rejected")


@plans(NoteReading)
def plan_note_reading(command: NoteReading, batch: Batch) -> Result:
    """Note that a single right was used for reading."""
    batch.record(AuditEventType.RIGHT_USED, ("operation", command.operation))
    return {}


def add_revoke_reads(command: RevokeAgent, read_set: ReadSet) -> None:
    """Add what is looked at before an agent is revoked."""
    read_set.agent_dids.add(command.did)
    read_set.trusted.add(command.did)


def add_unrevoke_reads(command: UnrevokeAgent, read_set: ReadSet) -> None:
    """Add what is looked at before a revoked agent is taken back."""
    read_set.trusted.add(command.did)


@plans(RevokeAgent, reads=add_revoke_reads, outlives_credential=True)
def plan_revoke_agent(command: RevokeAgent, batch: Batch) -> Result:
    """Revoke an agent. Steps: (1) the caller may, (2) it is not revoked, (3) its end is to come."""
    did, cache = command.did, batch.cache
    agent = cache.agents.get(did)
    owner_did = did if agent is None else agent.owner_did
    if command.actor_did not in (did, owner_did) and not command.is_admin:  # (1)
        raise forbidden(f"only {did}, its owner or an administrator may revoke it")
    if cache.is_revoked(did, batch.clock_ms):  # (2)
        raise Refusal(ErrorCode.ALREADY_REVOKED, f"{did} is revoked already")
    if command.expires_ms is not None and command.expires_ms <= batch.clock_ms:  # (3)
        raise invalid(f"expiresAt: got {iso_ms(command.expires_ms)}, expected a time in the future")
    cache.revoked[did] = Revocation(command.actor_did, command.expires_ms)
    evidence = read_json(command.evidence_json)
    # The end of an earlier one in the same batch would be written after this row.
    batch.drop(UNREVOCATIONS, did)
    by_did = command.actor_did
    batch.store(REVOCATIONS, did, command, evidence=evidence, revoked_by_did=by_did)
    batch.is_directory_changed = True
    payload: dict[str, Any] = {"reason": command.reason, "evidenceHash": hash_text(evidence)}
    if command.expires_ms is not None:
        payload["expiresAt"] = iso_ms(command.expires_ms)
    batch.record(AuditEventType.AGENT_REVOKED, ("agent", did), **payload)
    return {"revokedMs": batch.now_ms}


@plans(UnrevokeAgent, reads=add_unrevoke_reads, outlives_credential=True)
def plan_unrevoke_agent(command: UnrevokeAgent, batch: Batch) -> Result:
    """Take an agent back that is revoked now."""
    did, cache = command.did, batch.cache
    if not cache.is_revoked(did, batch.clock_ms):
        raise not_found(f"{did} is not revoked")
    revocation = cache.revoked[did]
    assert revocation is not None, did
    if command.actor_did != revocation.by_did and not command.is_admin:
        raise forbidden(
            f"{did} was revoked by {revocation.by_did}: only {revocation.by_did} or an"
            " administrator can lift the revocation"
        )
    cache.revoked[did] = None
    batch.put(UNREVOCATIONS, did, {"did": did, "ended_by_did": command.actor_did})
    batch.is_directory_changed = True
    batch.record(AuditEventType.AGENT_UNREVOKED, ("agent", did))
    return {"unrevokedMs": batch.now_ms}


def check_taken(command: AdvanceWorkflow, escrow: Escrow, batch: Batch) -> None:
    """Refuse a step of a halted workflow, and one that says what a revoked agent has done.

    Raises:
        Refusal: CONFLICT, FORBIDDEN; after the latter the workflow is halted.
    """
    check_not_quarantined(command, escrow)
    if escrow.is_halted and not command.is_fresh:
        detail = "an earlier step of the workflow was refused: its rows must be read again"
        raise conflict(detail, is_stored=False)
    for record in command.records:
        did = _speaker(record)
        if did is not None and batch.cache.is_revoked(did, batch.clock_ms):
            set_halted(command.workflow_id, escrow, batch, is_halted=True)
            detail = f"{did} is revoked: its result is neither accepted nor paid"
            # Not stored: when the revocation has ended, the same step may be decided again.
            raise forbidden(detail, is_audited=True, is_stored=False)


def resume(command: AdvanceWorkflow, escrow: Escrow, batch: Batch) -> None:
    """Let a halted workflow go on with this step, which nothing speaks against."""
    if escrow.is_halted:
        assert command.is_fresh, command
        set_halted(command.workflow_id, escrow, batch, is_halted=False)


def revoked_attempts(command: PublishWorkflow | AdvanceWorkflow, batch: Batch) -> list[str]:
    """Return the nodes that a step gives to agents that are revoked."""
    return [
        record.node
        for record in command.records
        if type(record) is NodeChanged
        and record.status is NodeStatus.DISPATCHED
        and record.agent_did is not None
        and batch.cache.is_revoked(record.agent_did, batch.clock_ms)
    ]


def _speaker(record: object) -> str | None:
    """Return the agent whose result, judgement or pay a record is."""
    if type(record) is NodePaid:
        return record.agent_did
    if type(record) is AttemptFinished and record.outcome in _SAID:
        return record.agent_did
    return None


# Who is revoked at a moment: one DID, some, all.


def in_force(at_ms: int) -> sql.ColumnElement[bool]:
    expires = revocation.c.expires_ms
    return revocation.c.ended_ms.is_(None) & (expires.is_(None) | (expires > at_ms))


async def revocation_row(reader: LedgerReader, did: str, *, at_ms: int) -> RowDict | None:
    """Return a DID's revocation that is in force at a time, milliseconds."""
    query = sql.select(revocation).where(revocation.c.did == did, in_force(at_ms))
    return await reader.row(query)


async def revocation_rows(
    reader: LedgerReader,
    *,
    at_ms: int,
    limit: int,
    offset: int,
    after_did: str | None,
    viewer: str | None,
    bytes_max: int = PAGE_BYTES_MAX,
) -> RowPage:
    """Return the revocations in force at a time, in the order of their DIDs.

    Args:
        viewer: the DID that may see them; None: an administrator.
        bytes_max: of the evidence: the page ends with the row that passes it.
    """
    condition = is_shown("callboard.revocation.did", viewer)
    query = sql.select(revocation).where(in_force(at_ms), condition)
    return await reader.page(
        query, "did", after_did, wide="evidence", limit=limit, offset=offset, bytes_max=bytes_max
    )
