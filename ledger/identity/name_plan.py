"""Planning names: registered, renewed, transferred and released.

A name is taken until it expires, whether or not its release is on the chain yet. No caller can put
a name on another's agent: what is offered counts for nothing until that one's owner takes it.
Spec: Name. Decision agent-identity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.errors import ErrorCode
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from core.trust.identity.name_terms import AHEAD_MONTHS_MAX, add_months
from ledger.commands import Outcome
from ledger.identity.agent_key_plan import check_proven
from ledger.identity.name_commands import RegisterName, ReleaseName, RenewName, TransferName
from ledger.tables.identity_tables import AGENT_NAMES, RELEASED_NAMES
from ledger.writer.batch import Batch, Refusal
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownAgent, KnownName

NameCommand = RegisterName | RenewName | TransferName | ReleaseName


def add_name_reads(command: NameCommand, read_set: ReadSet) -> None:
    """Add what is looked at before a name changes."""
    read_set.names.add(command.name)
    if isinstance(command, RegisterName | TransferName):
        read_set.agent_dids.add(command.agent_did)
        read_set.named_dids.add(command.agent_did)
        # The agent may be registered by an earlier command of the batch: its owner asks for it.
        read_set.naming_dids.add(command.actor_did)


@plans(RegisterName, reads=add_name_reads, outlives_credential=True)
def plan_register_name(command: RegisterName, batch: Batch) -> Outcome:
    """Register a name that is free for an agent of the caller's."""
    agent = _agent(command.agent_did, batch)
    if agent.owner_did != command.actor_did and not command.is_admin:
        raise Refusal(
            ErrorCode.FORBIDDEN,
            f"{command.agent_did} belongs to another owner: only that owner may register names"
            " for it",
        )
    if command.needs_proof:
        check_proven(command.agent_did, agent)
    known = batch.cache.names.get(command.name)
    if known is not None and known.is_live(batch.clock_ms):
        raise Refusal(ErrorCode.NAME_TAKEN, f"the name {command.name} is taken")
    _count_name(command, agent.owner_did, known, batch)
    name = KnownName(
        command.agent_did,
        agent.owner_did,
        agent.owner_did,
        batch.now_ms,
        add_months(batch.now_ms, command.months),
    )
    # The release of the one before, in the same batch, would be written after this row.
    batch.drop(RELEASED_NAMES, command.name)
    return _stored(command, name, AuditEventType.NAME_REGISTERED, batch)


@plans(RenewName, reads=add_name_reads, outlives_credential=True)
def plan_renew_name(command: RenewName, batch: Batch) -> Outcome:
    """Let a name of the caller's expire later."""
    known = _owned(command, batch)
    expires_ms = add_months(known.expires_ms, command.months)
    if expires_ms > add_months(batch.clock_ms, AHEAD_MONTHS_MAX):
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"durationMonths: got {command.months}, which ends {iso_ms(expires_ms)}, expected at"
            f" most {AHEAD_MONTHS_MAX} months from now",
        )
    name = replace(known, expires_ms=expires_ms)
    return _stored(command, name, AuditEventType.NAME_RENEWED, batch)


@plans(TransferName, reads=add_name_reads, outlives_credential=True)
def plan_transfer_name(command: TransferName, batch: Batch) -> Outcome:
    """Give a name to an agent whose owner wants it: the caller's own, or who takes an offer."""
    known, agent = _live(command.name, batch), _agent(command.agent_did, batch)
    is_taking = (known.offered_did, agent.owner_did) == (command.agent_did, command.actor_did)
    is_giving = command.is_admin or known.owner_did == command.actor_did
    if not (is_taking or is_giving):
        raise Refusal(ErrorCode.FORBIDDEN, f"the name {command.name} belongs to another owner")
    if not (is_taking or command.is_admin or agent.owner_did == command.actor_did):
        offered = replace(known, offered_did=command.agent_did)
        event = AuditEventType.NAME_OFFERED
        return _stored(command, offered, event, batch, isTransferred=False)
    if command.needs_proof:
        check_proven(command.agent_did, agent)
    _count_name(command, agent.owner_did, known, batch)
    name = KnownName(
        command.agent_did, agent.owner_did, agent.owner_did, known.registered_ms, known.expires_ms
    )
    event = AuditEventType.NAME_TRANSFERRED
    return _stored(command, name, event, batch, isTransferred=True)


@plans(ReleaseName, reads=add_name_reads, is_asked_again=True, outlives_credential=True)
def plan_release_name(command: ReleaseName, batch: Batch) -> Outcome:
    """End a name: its owner does before its time, the service when it has expired."""
    if command.expired_ms is None:
        known = _owned(command, batch)
    else:
        found = batch.cache.names.get(command.name)
        is_over = command.expired_ms <= batch.clock_ms
        if (
            found is None
            or found.is_released
            or found.expires_ms != command.expired_ms
            or not is_over
        ):
            detail = f"the name {command.name} has not expired, or is released"
            raise Refusal(ErrorCode.CONFLICT, detail, is_stored=False)
        known = found
    batch.cache.names[command.name] = replace(known, is_released=True)
    _uncount_name(known, batch)
    batch.put(RELEASED_NAMES, command.name, {"name": command.name})
    audit_id = batch.record(
        AuditEventType.NAME_RELEASED,
        actor_did=command.actor_did,
        target=("name", command.name),
        payload={"agentDid": known.agent_did, "ownerDid": known.owner_did},
    )
    return batch.decided(command.key, result={"releasedMs": batch.now_ms}, audit_id=audit_id)


def _agent(did: str, batch: Batch) -> KnownAgent:
    known = batch.cache.agents.get(did)
    if known is None:
        raise Refusal(ErrorCode.NOT_FOUND, f"the agent {did} is not known")
    return known


def _live(name: str, batch: Batch) -> KnownName:
    known = batch.cache.names.get(name)
    if known is None or not known.is_live(batch.clock_ms):
        raise Refusal(ErrorCode.NOT_FOUND, f"the name {name} is not known")
    return known


def _owned(command: RenewName | ReleaseName, batch: Batch) -> KnownName:
    known = _live(command.name, batch)
    if known.owner_did != command.actor_did and not command.is_admin:
        raise Refusal(ErrorCode.FORBIDDEN, f"the name {command.name} belongs to another owner")
    return known


def _count_name(
    command: RegisterName | TransferName, owner_did: str, before: KnownName | None, batch: Batch
) -> None:
    """Count another name of an agent and of its owner; refuse it beyond either bound.

    Args:
        before: the same name as it was, whose holders have one less.
    """
    counts = batch.cache.name_counts
    bounds = {owner_did: command.owner_names_max, f"@{command.agent_did}": command.agent_names_max}
    freed = () if before is None or before.is_released else _holders(before)
    for holder, most in bounds.items():
        count = counts.get(holder, 0) - freed.count(holder)
        if count >= most:
            raise Refusal(
                ErrorCode.CONFLICT,
                f"{holder.removeprefix('@')} has {count} names, expected fewer than {most}:"
                " release one first",
            )
    if before is not None and freed:
        _uncount_name(before, batch)
    for holder in bounds:
        counts[holder] = counts.get(holder, 0) + 1


def _holders(name: KnownName) -> tuple[str, str]:
    """Return under which texts a name is counted: its owner, its agent."""
    return name.counted_did, f"@{name.agent_did}"


def _uncount_name(name: KnownName, batch: Batch) -> None:
    """Count a name less, where names of its holders are counted in this batch."""
    counts = batch.cache.name_counts
    for holder in _holders(name):
        if holder in counts:
            counts[holder] -= 1


def _stored(
    command: RegisterName | RenewName | TransferName,
    name: KnownName,
    event: AuditEventType,
    batch: Batch,
    **more: Any,
) -> Outcome:
    """Store a name as it is now; record and answer it."""
    batch.cache.names[command.name] = name
    row = {
        "name": command.name,
        "agent_did": name.agent_did,
        "owner_did": name.owner_did,
        "counted_did": name.counted_did,
        "offered_did": name.offered_did,
        "registered_ms": name.registered_ms,
        "expires_ms": name.expires_ms,
    }
    batch.put(AGENT_NAMES, command.name, row)
    payload = {
        "agentDid": name.agent_did,
        "ownerDid": name.owner_did,
        "expiresAt": iso_ms(name.expires_ms),
    }
    if name.offered_did is not None:
        payload["offeredTo"] = name.offered_did
    audit_id = batch.record(
        event, actor_did=command.actor_did, target=("name", command.name), payload=payload
    )
    result = {
        "agentDid": name.agent_did,
        "ownerDid": name.owner_did,
        "registeredMs": name.registered_ms,
        "expiresMs": name.expires_ms,
        **more,
    }
    return batch.decided(command.key, result=result, audit_id=audit_id)
