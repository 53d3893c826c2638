"""Recovery of agents' keys: guardians are set; recoveries are requested, cancelled and completed.

Signatures are verified before a command is made; the writer checks that their keys are current. A
recovery ends everything that the previous key authorized: its signatures, the agent's heartbeat
tokens and API keys, other requests, and sets of guardians that are newer than the recovering set.
Reference: features.md (Recovery). Decision agent-identity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from core.errors import ErrorCode
from core.records.audit import AuditEventType
from core.trust.identity.succession import (
    HOUR_MS,
    OPEN_MAX,
    REPLACED_MAX,
    Guardians,
    GuardianSets,
    RecoveryType,
)
from ledger.authority import OwnersCommand
from ledger.commands import Command
from ledger.connections.connect import fetch
from ledger.features.agent_keys import (
    change_identity,
    check_new_key,
    key_payload,
    replace_key,
)
from ledger.features.credentials import is_current_key
from ledger.features.identity_reads import (
    GUARDIAN_SETS,
    guardian_sets,
    guardians_row,
    read_guardians,
)
from ledger.features.keys import end_api_keys, others_keys_below
from ledger.tables.identity_tables import GUARDIANS, RECOVERIES
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownAgent


class SetGuardians(OwnersCommand, frozen=True, kw_only=True):
    """Set the guardians and the custodian that may replace a lost key of an agent. The agent or its
    owner may do so.

    Rejections: NOT_FOUND, FORBIDDEN, CONFLICT (too many replaced sets are still valid). No result.
    """

    did: str
    guardians: tuple[str, ...]
    threshold: int
    custodian_did: str | None
    delay_hours: int


class RequestRecovery(OwnersCommand, frozen=True, kw_only=True):
    """Request the replacement of an agent's key, or add signatures to such a request.

    `signers`: (DID, key) pairs of verified signatures. If they suffice, the key is replaced at
    once, or the delay begins.
    Rejections: NOT_FOUND; FORBIDDEN (the caller is no party to the recovery, and no guardian or
    custodian has signed); CONFLICT (no guardians, another type, already ended, too many open
    requests, the new key is in the history, a signer's key has changed). Result: {"status"}.
    """

    recovery_id: str
    did: str
    recovery_type: str
    new_key: str
    recovery_address: str | None
    signers: tuple[tuple[str, str], ...]


class CancelRecovery(OwnersCommand, frozen=True, kw_only=True):
    """Cancel a request. The agent, its owner or the requester may do so.

    `proven_key`: the agent's current key, if it has signed the cancellation.
    Rejections: NOT_FOUND, FORBIDDEN, CONFLICT (the key was replaced), NOT_CANCELLABLE (the request
    has ended). Result: {"cancelledMs"}.
    """

    recovery_id: str
    did: str
    proven_key: str | None


class CompleteRecovery(Command, frozen=True, kw_only=True):
    """Replace an agent's key after the delay of a request. The key is `recover:{id}`.

    Rejection: CONFLICT, not stored: the request is not waiting, or its delay is not over. Result:
    {"keyNumber"}.
    """

    actor_did: str
    recovery_id: str
    did: str
    new_key: str


RecoveryCommand = RequestRecovery | CancelRecovery | CompleteRecovery


_RECOVERIES: Final = """
SELECT r.id::text, r.agreed, r.agent_did, r.recovery_type, r.new_key, r.requested_by_did,
    r.created_ms, r.recovery_address, json_object(r.signers, r.signer_keys), r.status,
    r.waiting_ms, r.delay_ms, r.ended_ms,
    r.status = 'waiting' AND callboard.ready_ms_since(r.waiting_ms) >= r.delay_ms
FROM callboard.recovery r WHERE r.id = %(id)s::uuid
    OR r.agent_did = %(did)s AND r.status IN ('pending', 'waiting')
"""


@dataclass(frozen=True, slots=True)
class KnownRecovery:
    """A request to replace an agent's key: pending, waiting, completed or cancelled.

    `signers`: the key with which each signer has signed, "" if it is not known. `waiting_ms`: when
    the delay of `delay_ms` began. `agreed`: the guardians whose signatures started the delay, None
    if the owner started it. `is_due`: the delay is over.
    """

    did: str
    recovery_type: RecoveryType
    new_key: str
    requested_by_did: str
    created_ms: int
    recovery_address: str | None = None
    signers: Mapping[str, str] = field(default_factory=dict)
    status: str = "pending"
    waiting_ms: int | None = None
    delay_ms: int | None = None
    ended_ms: int | None = None
    is_due: bool = False
    agreed: Guardians | None = None

    @property
    def is_open(self) -> bool:
        """True if the request may still replace the key."""
        return self.status in ("pending", "waiting")


@dataclass(frozen=True, slots=True)
class RecoveryReads:
    """What the plan of a recovery command reads.

    `sets`: the agent's guardians. `requests`: by id, the request of the command and all open
    requests of the agent, with the changes planned so far. `others`: keys of other owners that end
    with a recovery.
    """

    sets: GuardianSets | None
    requests: dict[str, KnownRecovery] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


async def load_guardians(
    connection: Connection, command: SetGuardians, read_set: ReadSet
) -> GuardianSets | None:
    """Return an agent's guardians, None if none were ever set."""
    read_set.agent_dids.add(command.did)
    return await _read_sets(connection, command.did)


async def load_recovery(
    connection: Connection, command: RecoveryCommand, read_set: ReadSet
) -> RecoveryReads:
    """Return the rows that decide about a request. Add the signers to the read set, because they
    are checked again."""
    read_set.agent_dids.add(command.did)
    signers: set[str] = set()
    if isinstance(command, RequestRecovery | CompleteRecovery):
        read_set.new_keys.add((command.did, command.new_key))
    if isinstance(command, RequestRecovery):
        signers |= {did for did, _ in command.signers}
    rows = await fetch(connection, _RECOVERIES, {"id": command.recovery_id, "did": command.did})
    requests = {
        one: KnownRecovery(*[did, RecoveryType(kind), *rest, agreed and read_guardians(agreed)])
        for one, agreed, did, kind, *rest in rows
    }
    signers.update(*(one.signers for one in requests.values()))
    read_set.agent_dids |= signers
    read_set.trusted |= signers
    return RecoveryReads(
        await _read_sets(connection, command.did),
        requests,
        await others_keys_below(connection, command.did),
    )


async def _read_sets(connection: Connection, did: str) -> GuardianSets | None:
    own = f"SELECT row_to_json(s) FROM ({GUARDIAN_SETS} WHERE g.agent_did = %s) AS s"
    return next((guardian_sets(row) for (row,) in await fetch(connection, own, (did,))), None)


@plans(SetGuardians, load=load_guardians, outlives_credential=True)
def plan_set_guardians(command: SetGuardians, batch: Batch) -> Result:
    """Set the guardians and the custodian that may replace an agent's key."""
    agent = batch.agent(command.did)
    if not command.may_act_for(command.did, agent.owner_did):
        raise forbidden(f"only {command.did}, its owner or an administrator may set its guardians")
    before: GuardianSets | None = batch.loaded
    named = Guardians(
        command.guardians, command.threshold, command.custodian_did, command.delay_hours
    )
    if before is None:
        sets = GuardianSets(agent.owner_did, named)
    else:
        # If the agent's own key sets guardians, the replaced ones remain valid for a time, because
        # the key may be stolen. An owner with another DID uses another credential.
        is_by_key = command.actor_did == command.did and not command.is_admin
        counts_on = is_by_key and before.owner_did == agent.owner_did
        before = replace(before, owner_did=agent.owner_did)
        sets = before.with_next(named, batch.now_ms, counts_on=counts_on)
    if len(sets.replaced) > REPLACED_MAX:
        raise conflict(
            f"{command.did} has {REPLACED_MAX} replaced sets of guardians that are still"
            " valid, each for its delayHours: wait until one expires"
        )
    batch.put(GUARDIANS, command.did, guardians_row(command.did, sets))
    _record_guardians(command.did, sets.current, batch)
    return {}


@plans(RequestRecovery, load=load_recovery, outlives_credential=True)
def plan_request_recovery(command: RequestRecovery, batch: Batch) -> Result:
    """Make a request or add signatures to it, and replace the key or start the delay if they
    suffice.

    Steps: (1) check that the caller is a party to the recovery, or that a guardian or custodian has
    signed. This comes first, so that others do not learn of existing requests. (2) Check that the
    current owner has set guardians. (3) Check that the request is new, or open and of the same
    type. (4) Check that the signers' keys are current. (5) Limit the open requests. A request
    signed by the oldest valid set of guardians may displace another request. (6) If the valid
    signatures suffice, replace the key or start the delay.
    """
    did, agent = command.did, batch.agent(command.did)
    reads: RecoveryReads = batch.loaded
    sets = _sets(agent, reads)
    named = frozenset() if sets is None else sets.signers
    signers = {signer: key for signer, key in command.signers if signer in named}
    is_owners = command.may_act_for(agent.owner_did)
    if not (signers or is_owners or command.actor_did in (did, *named)):  # 1
        detail = f"only {did}, its owner, its guardians or its custodian may request its recovery"
        raise forbidden(detail)
    if sets is None:  # 2
        raise conflict(f"{did} has no guardians: set them first")
    known = reads.requests.get(command.recovery_id)
    kind = RecoveryType(command.recovery_type)
    if known is not None:  # 3
        if not known.is_open:
            raise conflict(f"the request is already {known.status}: use another new key")
        if known.recovery_type != kind:
            raise conflict(
                f"recoveryType: got {kind}, expected {known.recovery_type}, the type of the"
                " existing request"
            )
    check_new_key(did, agent, command.new_key, batch, is_recovery=True)
    for signer, public_key in command.signers:  # 4
        _check_signer(signer, public_key, batch)
    displaced = None
    if known is None:  # 5
        displaced = _displaced(did, signers, sets, reads)
        known = KnownRecovery(
            did, kind, command.new_key, command.actor_did, batch.now_ms, command.recovery_address
        )
    known = replace(known, signers={**known.signers, **signers})
    batch.record(
        AuditEventType.RECOVERY_REQUESTED,
        ("agent", did),
        recoveryId=command.recovery_id,
        recoveryType=kind.value,
        publicKey=command.new_key,
        signers=list(known.signers),
    )
    if displaced is not None:
        other = reads.requests[displaced]
        _store(displaced, _cancelled(displaced, other, batch), batch)
    by = sets.agreed(kind, _standing(known, batch))  # 6
    if kind is not RecoveryType.TIME_LOCK:
        if by is not None:
            known = _complete(command.recovery_id, known, by, batch)
    elif known.waiting_ms is None and (by is not None or is_owners):
        delay_ms = (by or sets.current).delay_hours * HOUR_MS
        known = replace(
            known, status="waiting", waiting_ms=batch.now_ms, delay_ms=delay_ms, agreed=by
        )
    _store(command.recovery_id, known, batch)
    return {"status": known.status}


@plans(CancelRecovery, load=load_recovery, outlives_credential=True)
def plan_cancel_recovery(command: CancelRecovery, batch: Batch) -> Result:
    """Cancel an open request."""
    agent = batch.agent(command.did)
    reads: RecoveryReads = batch.loaded
    known = reads.requests.get(command.recovery_id)
    if known is None:
        raise not_found(f"the recovery {command.recovery_id} is not known")
    if command.proven_key is not None and command.proven_key != agent.public_key:
        raise conflict(
            f"the key of {command.did} was replaced by another request: use the current key"
        )
    parties = (command.did, agent.owner_did, known.requested_by_did)
    if not (command.proven_key or command.may_act_for(*parties)):
        raise forbidden(f"only {command.did}, its owner or the requester may cancel it")
    if not known.is_open:
        detail = f"the recovery {command.recovery_id} is {known.status}"
        raise Refusal(ErrorCode.NOT_CANCELLABLE, detail)
    _store(command.recovery_id, _cancelled(command.recovery_id, known, batch), batch)
    return {"cancelledMs": batch.now_ms}


@plans(CompleteRecovery, load=load_recovery, reuses_key=True)
def plan_complete_recovery(command: CompleteRecovery, batch: Batch) -> Result:
    """Replace an agent's key after the delay of a request.

    The request is cancelled instead if its guardians were struck out meanwhile, or if the
    signatures that are still valid do not suffice.
    """
    reads: RecoveryReads = batch.loaded
    known = reads.requests.get(command.recovery_id)
    agent = batch.cache.agents.get(command.did)
    if known is None or agent is None or known.status != "waiting" or not known.is_due:
        raise conflict(f"the recovery {command.recovery_id} is not due", is_stored=False)
    sets, by = _sets(agent, reads), known.agreed
    is_void = sets is None or (
        by is not None
        and (
            by.number <= sets.struck_number
            or not by.is_agreed(known.recovery_type, _standing(known, batch))
        )
    )
    if is_void:
        known = _cancelled(command.recovery_id, known, batch)
    else:
        known = _complete(command.recovery_id, known, by, batch)
    _store(command.recovery_id, known, batch)
    agent = batch.agent(command.did)
    return {"keyNumber": agent.key_number}


def _check_signer(did: str, public_key: str, batch: Batch) -> None:
    """Refuse a signature by a key that is no longer the signer's, or by a revoked DID."""
    if not is_current_key(did, public_key, batch):
        raise conflict(
            f"the key of {did} was replaced by another request: sign with the current key"
        )
    if batch.cache.is_revoked(did, batch.clock_ms):
        raise forbidden(f"{did} is revoked: its signature does not count")


def _standing(known: KnownRecovery, batch: Batch) -> tuple[str, ...]:
    """Return the signers whose key is still current and who are not revoked."""
    return tuple(
        did
        for did, key in known.signers.items()
        if is_current_key(did, key, batch) and not batch.cache.is_revoked(did, batch.clock_ms)
    )


def _complete(
    recovery_id: str, known: KnownRecovery, by: Guardians | None, batch: Batch
) -> KnownRecovery:
    """Replace the agent's key; return the completed request.

    Steps: (1) cancel the request instead if the new key is in the agent's history by now, (2)
    replace the key and end what the previous key authorized, (3) make the recovering set of
    guardians current again, (4) cancel all other open requests, because later guardians may have
    agreed to them.

    Args:
        by: the guardians who have agreed, None: the owner.
    """
    did, agent = known.did, batch.agent(known.did)
    try:
        check_new_key(did, agent, known.new_key, batch, is_recovery=True)  # 1
    except Refusal:
        return _cancelled(recovery_id, known, batch)
    after = replace_key(did, agent, known.new_key, batch)  # 2
    after = replace(after, token_revision=after.revision)
    change_identity(did, after, batch, token_revision=after.revision)
    reads: RecoveryReads = batch.loaded
    end_api_keys(did, reads.others, batch)
    batch.record(
        AuditEventType.AGENT_RECOVERED,
        ("agent", did),
        recoveryId=recovery_id,
        recoveryType=known.recovery_type.value,
        **key_payload(did, agent, after, batch.now_ms),
    )
    assert reads.sets is not None, did
    restored = reads.sets if by is None else reads.sets.restored(by)  # 3
    if restored != reads.sets:
        batch.put(GUARDIANS, did, guardians_row(did, restored))
        _record_guardians(did, restored.current, batch)
    for other_id, other in _open_requests(did, reads).items():  # 4
        if other_id != recovery_id:
            _store(other_id, _cancelled(other_id, other, batch), batch)
    return replace(known, status="completed", ended_ms=batch.now_ms)


def _cancelled(recovery_id: str, known: KnownRecovery, batch: Batch) -> KnownRecovery:
    """Record that a request is cancelled; return the cancelled request."""
    batch.record(AuditEventType.RECOVERY_CANCELLED, ("agent", known.did), recoveryId=recovery_id)
    return replace(known, status="cancelled", ended_ms=batch.now_ms)


def _sets(agent: KnownAgent, reads: RecoveryReads) -> GuardianSets | None:
    """Return an agent's guardians, None if its current owner has set none."""
    sets = reads.sets
    return sets if sets is not None and sets.owner_did == agent.owner_did else None


def _open_requests(did: str, reads: RecoveryReads) -> dict[str, KnownRecovery]:
    found = reads.requests.items()
    return {request_id: one for request_id, one in found if one.did == did and one.is_open}


def _displaced(
    did: str, signers: Collection[str], sets: GuardianSets, reads: RecoveryReads
) -> str | None:
    """Return the open request that a new one displaces, None if fewer than `OPEN_MAX` are open.

    The agent's key can make any number of requests. Therefore a request that a guardian of the
    oldest valid set has signed displaces the newest request that none of these guardians has
    signed.

    Raises:
        Refusal: CONFLICT; the new request may not displace any.
    """
    found = _open_requests(did, reads)
    if len(found) < OPEN_MAX:
        return None
    first = (*sets.replaced, sets.current)[0].signers
    weak = {key: one for key, one in found.items() if first.isdisjoint(one.signers)}
    if first.isdisjoint(signers) or not weak:
        detail = f"{did} has {len(found)} open requests, expected fewer than {OPEN_MAX}: cancel one"
        raise conflict(detail)
    return max(weak, key=lambda key: (weak[key].created_ms, key))


def _record_guardians(did: str, named: Guardians, batch: Batch) -> None:
    batch.record(
        AuditEventType.GUARDIANS_SET,
        ("agent", did),
        guardians=list(named.guardians),
        threshold=named.threshold,
        custodianDid=named.custodian_did,
        delayHours=named.delay_hours,
    )


def _store(recovery_id: str, known: KnownRecovery, batch: Batch) -> None:
    batch.loaded.requests[recovery_id] = known
    batch.store(
        RECOVERIES,
        recovery_id,
        known,
        id=recovery_id,
        agent_did=known.did,
        signers=list(known.signers),
        signer_keys=list(known.signers.values()),
        agreed=None if known.agreed is None else asdict(known.agreed),
    )
