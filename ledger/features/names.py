"""Names of agents: register, renew, transfer and release them.

Reference: features.md (Names). Decision agent-identity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from core.errors import ErrorCode
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from core.trust.identity.name_terms import AHEAD_MONTHS_MAX, add_months
from ledger.authority import OwnersCommand
from ledger.connections.connect import fetch
from ledger.features.agent_keys import check_proven
from ledger.tables.identity_tables import AGENT_NAMES, RELEASED_NAMES
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, invalid, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet


class RegisterName(OwnersCommand, frozen=True, kw_only=True):
    """Register a name for an agent for `months` calendar months. Only the agent's owner may do so.

    `owner_names_max`, `agent_names_max`: maximum names of one owner and of one agent.
    `needs_proof`: the claim must be proven (the setting `claims`).
    Rejections: NOT_FOUND (no such agent), FORBIDDEN, NAME_TAKEN, CONFLICT (too many names).
    Result: {"agentDid", "ownerDid", "registeredMs", "expiresMs"}.
    """

    name: str
    agent_did: str
    months: int
    owner_names_max: int
    agent_names_max: int
    needs_proof: bool = False


class RenewName(OwnersCommand, frozen=True, kw_only=True):
    """Extend a name by `months` calendar months. Only the name's owner may do so.

    Rejections: NOT_FOUND (also for an expired name), FORBIDDEN, INVALID_REQUEST (too far ahead).
    Result: as for `RegisterName`.
    """

    name: str
    months: int


class TransferName(OwnersCommand, frozen=True, kw_only=True):
    """Transfer a name to another agent, and to the owner of that agent.

    If the agent has another owner, the command of the name's owner only offers the name. The
    agent's owner accepts it with the same command.
    Rejections: NOT_FOUND (the name or the agent), FORBIDDEN, CONFLICT (too many names).
    Result: as for `RegisterName`, and {"isTransferred": bool}.
    """

    name: str
    agent_did: str
    owner_names_max: int
    agent_names_max: int
    needs_proof: bool = False


class ReleaseName(OwnersCommand, frozen=True, kw_only=True):
    """Release a name. The name's owner may do so at any time, and the service when the name has
    expired.

    `expired_ms`: when the name expired; None if its owner releases it. Rejections: NOT_FOUND,
    FORBIDDEN; CONFLICT, not stored, if the name does not expire at that time. Result:
    {"releasedMs"}.
    """

    name: str
    expired_ms: int | None = None


# Plans. A name is taken until it is released or expires. An expired name can be registered again,
# even if the audit log does not have its release yet. No caller can give a name to an agent of
# another owner. An offer has no effect until that owner accepts it.

NameCommand = RegisterName | RenewName | TransferName | ReleaseName

_NAME: Final = """
SELECT agent_did, owner_did, counted_did, registered_ms, expires_ms, offered_did,
    released_ms IS NOT NULL
FROM callboard.agent_name WHERE name = %(name)s
"""
# The number of other names that count towards the maximums of an agent's owner and of the agent.
_COUNTS: Final = """
SELECT (
    SELECT count(*) FROM callboard.agent_name
    WHERE counted_did = (SELECT owner_did FROM callboard.agent WHERE did = %(agent)s)
        AND released_ms IS NULL AND name <> %(name)s
), (
    SELECT count(*) FROM callboard.agent_name
    WHERE agent_did = %(agent)s AND released_ms IS NULL AND name <> %(name)s
)
"""


@dataclass(frozen=True, slots=True)
class KnownName:
    """A name that was registered: its agent, owner, times, and the agent to which it is offered.

    `counted_did`: the owner towards whose maximum of names the name counts: the owner who
    registered or accepted it.
    """

    agent_did: str
    owner_did: str
    counted_did: str
    registered_ms: int
    expires_ms: int
    offered_did: str | None = None
    is_released: bool = False

    def is_live(self, at_ms: int) -> bool:
        """Say whether the name is taken at a time, Unix milliseconds."""
        return not self.is_released and at_ms < self.expires_ms


@dataclass(frozen=True, slots=True)
class NameReads:
    """A name, the number of other names of the new agent's owner, and that of the new agent."""

    known: KnownName | None
    owner_names: int = 0
    agent_names: int = 0


async def load_name(connection: Connection, command: NameCommand, read_set: ReadSet) -> NameReads:
    """Return a name, and the counts that are compared with the maximums."""
    rows = await fetch(connection, _NAME, {"name": command.name})
    known = KnownName(*rows[0]) if rows else None
    if known is not None:
        read_set.agent_dids |= {known.agent_did, known.offered_did or known.agent_did}
    if not isinstance(command, RegisterName | TransferName):
        return NameReads(known)
    read_set.agent_dids.add(command.agent_did)
    values = {"name": command.name, "agent": command.agent_did}
    (counts,) = await fetch(connection, _COUNTS, values)
    return NameReads(known, *counts)


@plans(RegisterName, load=load_name, outlives_credential=True)
def plan_register_name(command: RegisterName, batch: Batch) -> Result:
    """Register a name that is not taken for an agent of the caller."""
    agent = batch.agent(command.agent_did)
    if not command.may_act_for(agent.owner_did):
        raise forbidden(
            f"{command.agent_did} belongs to another owner: only that owner may register names"
            " for it"
        )
    if command.needs_proof:
        check_proven(command.agent_did, agent)
    reads: NameReads = batch.loaded
    if reads.known is not None and reads.known.is_live(batch.clock_ms):
        raise Refusal(ErrorCode.NAME_TAKEN, f"the name {command.name} is taken")
    _check_room(command, agent.owner_did, reads)
    name = KnownName(
        command.agent_did,
        agent.owner_did,
        agent.owner_did,
        batch.now_ms,
        add_months(batch.now_ms, command.months),
    )
    return _stored(command, name, AuditEventType.NAME_REGISTERED, batch)


@plans(RenewName, load=load_name, outlives_credential=True)
def plan_renew_name(command: RenewName, batch: Batch) -> Result:
    """Extend a name of the caller."""
    known = _owned(command, batch)
    expires_ms = add_months(known.expires_ms, command.months)
    if expires_ms > add_months(batch.clock_ms, AHEAD_MONTHS_MAX):
        raise invalid(
            f"durationMonths: got {command.months}, which ends {iso_ms(expires_ms)}, expected at"
            f" most {AHEAD_MONTHS_MAX} months from now"
        )
    name = replace(known, expires_ms=expires_ms)
    return _stored(command, name, AuditEventType.NAME_RENEWED, batch)


@plans(TransferName, load=load_name, outlives_credential=True)
def plan_transfer_name(command: TransferName, batch: Batch) -> Result:
    """Transfer a name within the caller's agents, accept an offered name, or offer a name."""
    known, agent = _live(command.name, batch), batch.agent(command.agent_did)
    is_taking = (known.offered_did, agent.owner_did) == (command.agent_did, command.actor_did)
    if not (is_taking or command.may_act_for(known.owner_did)):
        raise forbidden(f"the name {command.name} belongs to another owner")
    if not (is_taking or command.may_act_for(agent.owner_did)):
        offered = replace(known, offered_did=command.agent_did)
        event = AuditEventType.NAME_OFFERED
        return _stored(command, offered, event, batch, isTransferred=False)
    if command.needs_proof:
        check_proven(command.agent_did, agent)
    _check_room(command, agent.owner_did, batch.loaded)
    name = KnownName(
        command.agent_did, agent.owner_did, agent.owner_did, known.registered_ms, known.expires_ms
    )
    event = AuditEventType.NAME_TRANSFERRED
    return _stored(command, name, event, batch, isTransferred=True)


@plans(ReleaseName, load=load_name, reuses_key=True, outlives_credential=True)
def plan_release_name(command: ReleaseName, batch: Batch) -> Result:
    """Release a name, for its owner, or for the service after the name has expired."""
    if command.expired_ms is None:
        known = _owned(command, batch)
    else:
        found: KnownName | None = batch.loaded.known
        is_over = command.expired_ms <= batch.clock_ms
        if (
            found is None
            or found.is_released
            or found.expires_ms != command.expired_ms
            or not is_over
        ):
            detail = f"the name {command.name} has not expired, or is released"
            raise conflict(detail, is_stored=False)
        known = found
    batch.put(RELEASED_NAMES, command.name, {"name": command.name})
    batch.record(
        AuditEventType.NAME_RELEASED,
        ("name", command.name),
        agentDid=known.agent_did,
        ownerDid=known.owner_did,
    )
    return {"releasedMs": batch.now_ms}


def _live(name: str, batch: Batch) -> KnownName:
    known: KnownName | None = batch.loaded.known
    if known is None or not known.is_live(batch.clock_ms):
        raise not_found(f"the name {name} is not known")
    return known


def _owned(command: RenewName | ReleaseName, batch: Batch) -> KnownName:
    known = _live(command.name, batch)
    if not command.may_act_for(known.owner_did):
        raise forbidden(f"the name {command.name} belongs to another owner")
    return known


def _check_room(command: RegisterName | TransferName, owner_did: str, reads: NameReads) -> None:
    """Refuse a name above the maximum of the agent or of its owner."""
    for holder, count, most in (
        (owner_did, reads.owner_names, command.owner_names_max),
        (command.agent_did, reads.agent_names, command.agent_names_max),
    ):
        if count >= most:
            raise conflict(
                f"{holder} has {count} names, expected fewer than {most}: release one first"
            )


def _stored(
    command: RegisterName | RenewName | TransferName,
    name: KnownName,
    event: AuditEventType,
    batch: Batch,
    **more: Any,
) -> Result:
    """Store a name, record the event, and return the result."""
    batch.store(AGENT_NAMES, command.name, name, name=command.name)
    payload = {
        "agentDid": name.agent_did,
        "ownerDid": name.owner_did,
        "expiresAt": iso_ms(name.expires_ms),
    }
    if name.offered_did is not None:
        payload["offeredTo"] = name.offered_did
    batch.record(event, ("name", command.name), **payload)
    return {
        "agentDid": name.agent_did,
        "ownerDid": name.owner_did,
        "registeredMs": name.registered_ms,
        "expiresMs": name.expires_ms,
        **more,
    }
