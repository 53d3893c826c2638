"""Planning recovery: guardians are named, requests made, signed, cancelled, and run once.

A recovered key ends what the one before gave: its signatures, the agent's heartbeat tokens and its
API keys. Spec: Recovery request; contract.md section 6 (Recovery). Decision 0233.
"""

from __future__ import annotations

from dataclasses import replace

from core.errors import ErrorCode
from core.records.audit import AuditEventType
from core.trust.recovery import HOUR_MS, OPEN_MAX, Guardians, RecoveryType
from ledger.commands import Outcome
from ledger.identity.agent_key_plan import (
    change_identity,
    check_new_key,
    key_payload,
    replace_key,
)
from ledger.identity.credentials import is_current_key
from ledger.identity.recovery_commands import (
    CancelRecovery,
    CompleteRecovery,
    RequestRecovery,
    SetGuardians,
)
from ledger.keys.key_plan import end_api_keys
from ledger.tables.identity_tables import GUARDIANS, RECOVERIES
from ledger.writer.batch import Batch, Refusal
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownAgent, KnownRecovery

RecoveryCommand = RequestRecovery | CancelRecovery | CompleteRecovery


def add_guardian_reads(command: SetGuardians, read_set: ReadSet) -> None:
    """Add what is looked at before guardians are named."""
    read_set.agent_dids.add(command.did)


def add_recovery_reads(command: RecoveryCommand, read_set: ReadSet) -> None:
    """Add what is looked at before a request is made, signed, cancelled or run."""
    read_set.agent_dids.add(command.did)
    read_set.recoveries.add((command.recovery_id, command.did))
    if isinstance(command, RequestRecovery | CompleteRecovery):
        read_set.new_keys.add((command.did, command.new_key))
        read_set.ended_owners.add(command.did)
    if isinstance(command, RequestRecovery):
        signers = {did for did, _ in command.signers}
        read_set.agent_dids |= signers
        read_set.trusted |= signers


def plan_set_guardians(command: SetGuardians, batch: Batch) -> Outcome:
    """Name who may replace an agent's key."""
    agent = _agent(command.did, batch)
    if command.actor_did not in (command.did, agent.owner_did) and not command.is_admin:
        raise Refusal(ErrorCode.FORBIDDEN, f"only {command.did} or its owner names its guardians")
    batch.cache.guardians[command.did] = (
        agent.owner_did,
        Guardians(command.guardians, command.threshold, command.custodian_did, command.delay_hours),
    )
    named = {
        "guardians": list(command.guardians),
        "threshold": command.threshold,
        "custodian_did": command.custodian_did,
        "delay_hours": command.delay_hours,
    }
    row = {"agent_did": command.did, "owner_did": agent.owner_did, **named}
    batch.put(GUARDIANS, command.did, row)
    audit_id = batch.record(
        AuditEventType.GUARDIANS_SET,
        actor_did=command.actor_did,
        target=("agent", command.did),
        payload={
            "guardians": list(command.guardians),
            "threshold": command.threshold,
            "custodianDid": command.custodian_did,
            "delayHours": command.delay_hours,
        },
    )
    return batch.decided(command.key, result={"setMs": batch.now_ms}, audit_id=audit_id)


def plan_request_recovery(command: RequestRecovery, batch: Batch) -> Outcome:
    """Make a request, or add signatures to it, and do what they are enough for.

    1. It comes from a named party, or with a named one's signature, also where such a request is
    made already: others must not learn of it. 2. The agent has guardians, set by the owner it has
    now. 3. The request is new, or open and of the same kind. 4. The signers' keys are still theirs.
    5. So many may be open. 6. Enough: the key is replaced, or waits.
    """
    did, agent = command.did, _agent(command.did, batch)
    owner_did, guardians = batch.cache.guardians.get(did, ("", None))
    if owner_did != agent.owner_did:
        guardians = None
    named = frozenset() if guardians is None else guardians.signers
    signers = tuple(signer for signer, _ in command.signers if signer in named)
    is_owners = command.actor_did == agent.owner_did or command.is_admin
    if not (signers or is_owners or command.actor_did in (did, *named)):  # 1
        detail = f"only {did}, its owner, guardians and custodian ask for its recovery"
        raise Refusal(ErrorCode.FORBIDDEN, detail)
    if guardians is None:  # 2
        raise Refusal(ErrorCode.CONFLICT, f"{did} has no guardians: set them up before")
    known = batch.cache.recoveries.get(command.recovery_id)
    kind = RecoveryType(command.recovery_type)
    if known is not None:  # 3
        _check_open(known)
        if known.recovery_type != kind:
            detail = f"got {kind}, expected {known.recovery_type}, as the request was made"
            raise Refusal(ErrorCode.CONFLICT, detail)
    check_new_key(did, agent, command.new_key, batch)
    for signer, public_key in command.signers:  # 4
        _check_signer(signer, public_key, batch)
    if known is None:  # 5
        count = batch.cache.open_recoveries.get(did, 0)
        if count >= OPEN_MAX:
            detail = f"{did} has {count} open requests, expected fewer than {OPEN_MAX}: cancel one"
            raise Refusal(ErrorCode.CONFLICT, detail)
        batch.cache.open_recoveries[did] = count + 1
        known = KnownRecovery(
            did, kind, command.new_key, command.actor_did, batch.now_ms, command.recovery_address
        )
    known = replace(known, signers=tuple(dict.fromkeys((*known.signers, *signers))))
    batch.record(
        AuditEventType.RECOVERY_REQUESTED,
        actor_did=command.actor_did,
        target=("agent", did),
        payload={
            "recoveryId": command.recovery_id,
            "recoveryType": kind.value,
            "publicKey": command.new_key,
            "signers": list(known.signers),
        },
    )
    is_new_wait = known.waiting_ms is None
    if is_new_wait and guardians.is_agreed(kind, known.signers, is_owners=is_owners):  # 6
        if kind is RecoveryType.TIME_LOCK:
            delay_ms = guardians.delay_hours * HOUR_MS
            known = replace(known, status="waiting", waiting_ms=batch.now_ms, delay_ms=delay_ms)
        else:
            known = _complete(command.recovery_id, known, agent, command.actor_did, batch)
    _store(command.recovery_id, known, batch)
    return batch.decided(command.key, result={"status": known.status}, audit_id=batch.audit_id)


def plan_cancel_recovery(command: CancelRecovery, batch: Batch) -> Outcome:
    """End a request that is open."""
    agent = _agent(command.did, batch)
    known = batch.cache.recoveries.get(command.recovery_id)
    if known is None:
        raise Refusal(ErrorCode.NOT_FOUND, f"the recovery {command.recovery_id} is not known")
    if command.proven_key is not None and command.proven_key != agent.public_key:
        raise Refusal(ErrorCode.CONFLICT, f"the key of {command.did} was replaced meanwhile")
    parties = (command.did, agent.owner_did, known.requested_by_did)
    if not (command.proven_key or command.is_admin or command.actor_did in parties):
        detail = f"only {command.did}, its owner or who has made the request may cancel it"
        raise Refusal(ErrorCode.FORBIDDEN, detail)
    if known.status not in OPEN:
        detail = f"the recovery {command.recovery_id} is {known.status}"
        raise Refusal(ErrorCode.NOT_CANCELLABLE, detail)
    _close(known.did, batch)
    _store(command.recovery_id, replace(known, status="cancelled", ended_ms=batch.now_ms), batch)
    audit_id = batch.record(
        AuditEventType.RECOVERY_CANCELLED,
        actor_did=command.actor_did,
        target=("agent", command.did),
        payload={"recoveryId": command.recovery_id},
    )
    return batch.decided(command.key, result={"cancelledMs": batch.now_ms}, audit_id=audit_id)


def plan_complete_recovery(command: CompleteRecovery, batch: Batch) -> Outcome:
    """Replace an agent's key whose request has waited long enough."""
    known = batch.cache.recoveries.get(command.recovery_id)
    agent = batch.cache.agents.get(command.did)
    if known is None or agent is None or known.status != "waiting" or not known.is_due:
        detail = f"the recovery {command.recovery_id} is not due"
        raise Refusal(ErrorCode.CONFLICT, detail, is_stored=False)
    known = _complete(command.recovery_id, known, agent, command.actor_did, batch)
    _store(command.recovery_id, known, batch)
    agent = _agent(command.did, batch)
    return batch.decided(
        command.key, result={"keyNumber": agent.key_number}, audit_id=batch.audit_id
    )


OPEN = ("pending", "waiting")


def _agent(did: str, batch: Batch) -> KnownAgent:
    agent = batch.cache.agents.get(did)
    if agent is None:
        raise Refusal(ErrorCode.NOT_FOUND, f"the agent {did} is not known")
    return agent


def _check_open(known: KnownRecovery) -> None:
    if known.status not in OPEN:
        raise Refusal(ErrorCode.CONFLICT, f"the request is {known.status}: ask for another new key")


def _check_signer(did: str, public_key: str, batch: Batch) -> None:
    """Refuse a signature by a key that is not its signer's any more, and one of a revoked DID."""
    if not is_current_key(did, public_key, batch):
        raise Refusal(ErrorCode.CONFLICT, f"the key of {did} was replaced meanwhile")
    if batch.cache.is_revoked(did, batch.clock_ms):
        raise Refusal(ErrorCode.FORBIDDEN, f"{did} is revoked: its signature is worth nothing")


def _complete(
    recovery_id: str, known: KnownRecovery, agent: KnownAgent, actor_did: str, batch: Batch
) -> KnownRecovery:
    """Replace the agent's key; return the request as it is then.

    The agent stays as it is where it has come to another owner while the request waited, or the key
    into its history.
    """
    did = known.did
    owner_did, _ = batch.cache.guardians.get(did, ("", None))
    try:
        check_new_key(did, agent, known.new_key, batch)
        is_void = owner_did != agent.owner_did
    except Refusal:
        is_void = True
    if is_void:
        _close(did, batch)
        batch.record(
            AuditEventType.RECOVERY_CANCELLED,
            actor_did=actor_did,
            target=("agent", did),
            payload={"recoveryId": recovery_id},
        )
        return replace(known, status="cancelled", ended_ms=batch.now_ms)
    after = replace_key(did, agent, known.new_key, batch)
    after = replace(after, token_revision=after.revision)
    change_identity(did, after, batch, token_revision=after.revision)
    end_api_keys(did, batch)
    _close(did, batch)
    batch.record(
        AuditEventType.AGENT_RECOVERED,
        actor_did=actor_did,
        target=("agent", did),
        payload={
            "recoveryId": recovery_id,
            "recoveryType": known.recovery_type.value,
            **key_payload(did, agent, after, batch.now_ms),
        },
    )
    return replace(known, status="completed", ended_ms=batch.now_ms)


def _close(did: str, batch: Batch) -> None:
    counts = batch.cache.open_recoveries
    if did in counts:
        counts[did] -= 1


def _store(recovery_id: str, known: KnownRecovery, batch: Batch) -> None:
    batch.cache.recoveries[recovery_id] = known
    batch.put(
        RECOVERIES,
        recovery_id,
        {
            "id": recovery_id,
            "agent_did": known.did,
            "recovery_type": known.recovery_type.value,
            "new_key": known.new_key,
            "recovery_address": known.recovery_address,
            "requested_by_did": known.requested_by_did,
            "signers": list(known.signers),
            "status": known.status,
            "created_ms": known.created_ms,
            "waiting_ms": known.waiting_ms,
            "delay_ms": known.delay_ms,
            "ended_ms": known.ended_ms,
        },
    )
