"""Planning runs of triggers: a run that starts, with the publish of its workflow, and a cause that
starts none.

The trigger's row and the run's row change in the transaction of the publish. The row's version and
due time fence stale deciders, so a cause starts at most one run, even after crashes and retries.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final, Literal

from core.errors import ErrorCode
from core.market.sharing.quota import day_start_ms
from core.money import credits_text
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from ledger.authority import Credential, OpenedBy, SignedBy
from ledger.identity.credentials import add_credential_reads, check_credential
from ledger.tables.trigger_tables import TRIGGER_CHANGES, TRIGGER_FIXED, TRIGGER_RUNS
from ledger.triggers.trigger_commands import NoteRun, TriggerRun
from ledger.workflows.workflow_commands import PublishWorkflow
from ledger.writer.batch import Batch, Refusal, Result, conflict
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownTrigger

# As many refused runs in a row pause a trigger.
REFUSALS_MAX: Final = 10


def add_run_reads(run: TriggerRun, owner_did: str, read_set: ReadSet) -> None:
    """Declare the rows that `check_run` reads."""
    read_set.trigger_ids.add(run.trigger_id)
    read_set.trusted.add(owner_did)
    add_credential_reads(run.credential, read_set)


def credential_of(owner_did: str, signed_key: str | None, key_id: str | None) -> Credential:
    """Return the credential by which a trigger runs, from its row; None: an access token.

    The hash of an API key is not part of it: a key that is rotated stays the same key.
    """
    if signed_key is not None:
        return SignedBy(owner_did, signed_key)
    return None if key_id is None else OpenedBy(key_id, owner_did=owner_did)


def check_run(run: TriggerRun, hold_micro: int, batch: Batch) -> KnownTrigger:
    """Return the trigger of a run that may start.

    Raises:
        Refusal: as `PublishWorkflow` says.
    """
    known = _check_decided(run, batch)
    owner_did = known.owner_did
    credential = credential_of(owner_did, known.signed_key, known.key_id)
    if credential != run.credential:
        raise _conflict("the trigger was made with another credential")
    if known.expires_ms is not None and known.expires_ms <= batch.clock_ms:
        raise Refusal(
            ErrorCode.UNAUTHORIZED, "the credential that the trigger was made with has expired"
        )
    check_credential(credential, batch)
    if credential is None and batch.cache.is_revoked(owner_did, batch.clock_ms):
        raise Refusal(ErrorCode.UNAUTHORIZED, f"{owner_did} is revoked")
    held_micro = _held_today(known, batch) + hold_micro
    if known.daily_budget_micro is not None and held_micro > known.daily_budget_micro:
        raise Refusal(
            ErrorCode.QUOTA_EXCEEDED,
            f"with this run the runs of the day would hold {credits_text(held_micro)} credits,"
            f" the trigger's dailyBudgetCredits is {credits_text(known.daily_budget_micro)}",
        )
    return known


def store_run(
    command: PublishWorkflow, known: KnownTrigger, batch: Batch, *, has_failed: bool
) -> None:
    """Store a run that has started, and what it changes of its trigger.

    Args:
        known: its trigger, as `check_run` has returned it.
        has_failed: its workflow has ended as it was published.
    """
    run = command.run
    assert run is not None, command
    changed = replace(
        known,
        runs=known.runs + 1,
        refusals=known.refusals + 1 if has_failed else 0,
        day_ms=day_start_ms(batch.now_ms),
        day_micro=_held_today(known, batch) + command.hold_micro,
    )
    began = {"audit_id": batch.audit_id, "status": "started", "workflow_id": command.workflow_id}
    batch.store(TRIGGER_RUNS, (run.trigger_id, run.key), run, **began)
    is_last = changed.runs == changed.max_runs
    _take(run, changed, batch, is_last=is_last)


def add_note_reads(command: NoteRun, read_set: ReadSet) -> None:
    """Declare the rows that `plan_note_run` reads."""
    read_set.trigger_ids.add(command.run.trigger_id)


@plans(NoteRun, reads=add_note_reads, is_asked_again=True)
def plan_note_run(command: NoteRun, batch: Batch) -> Result:
    """Store a cause that has started no run; refusals pause the trigger."""
    run = command.run
    known = _check_decided(run, batch, is_active=command.reason != "inactive")
    until_ms = command.missed_until_ms
    payload = {"key": run.key, "status": command.status, "reason": command.reason}
    if until_ms is not None:
        payload["missedUntil"] = iso_ms(until_ms)
    audit_id = record_change(AuditEventType.TRIGGER_RUN_REFUSED, known, batch, **payload)
    noted = {"audit_id": audit_id, "detail": command.detail or None}
    batch.store(TRIGGER_RUNS, (run.trigger_id, run.key), command, run, **noted)
    has_failed = command.status == "failed"
    if has_failed or run.due_ms is not None:
        changed = replace(known, refusals=known.refusals + has_failed)
        has_ended = command.reason == ErrorCode.UNAUTHORIZED
        _take(run, changed, batch, is_unauthorized=has_ended)
    return {}


def store_trigger(known: KnownTrigger, batch: Batch, **others: Any) -> None:
    """Store the state of a trigger, and what else a caller has changed of it."""
    before = batch.row(TRIGGER_CHANGES, known.id) or {}
    state = {name: value for name, value in asdict(known).items() if name not in TRIGGER_FIXED}
    batch.put(TRIGGER_CHANGES, known.id, {**before, **state, **others})
    batch.cache.triggers[known.id] = known


def stopped(
    known: KnownTrigger, status: Literal["paused", "ended"], reason: str, batch: Batch
) -> KnownTrigger:
    """Return a trigger as it is paused or has ended, and record that."""
    event = AuditEventType.TRIGGER_PAUSED if status == "paused" else AuditEventType.TRIGGER_ENDED
    record_change(event, known, batch, reason=reason)
    return replace(known, status=status, reason=reason, due_ms=None)


def record_change(event: AuditEventType, known: KnownTrigger, batch: Batch, **payload: Any) -> int:
    """Record an event of a trigger; return the id of the audit entry."""
    owned = {"ownerDid": known.owner_did, **payload}
    return batch.record(event, ("trigger", known.id), **owned)


def _check_decided(run: TriggerRun, batch: Batch, *, is_active: bool = True) -> KnownTrigger:
    """Return the trigger as a cause was decided from it.

    Args:
        is_active: whether the trigger has to be active.

    Raises:
        Refusal: CONFLICT.
    """
    known = batch.cache.triggers.get(run.trigger_id)
    if known is None or (is_active and known.status != "active"):
        raise _conflict("the trigger is not active" if known else "there is no such trigger")
    if known.version != run.version:
        raise _conflict("the trigger was changed meanwhile")
    if run.due_ms is not None and run.due_ms != known.due_ms:
        detail = f"the schedule's due time is no longer {iso_ms(run.due_ms)}"
        raise _conflict(f"{detail}: it was taken or rescheduled")
    return known


def _conflict(detail: str) -> Refusal:
    return conflict(detail, is_stored=False)


def _held_today(known: KnownTrigger, batch: Batch) -> int:
    return known.day_micro if known.day_ms == day_start_ms(batch.now_ms) else 0


def _take(
    run: TriggerRun,
    known: KnownTrigger,
    batch: Batch,
    *,
    is_last: bool = False,
    is_unauthorized: bool = False,
) -> None:
    """Take the run's due time, if it has one; end or pause its trigger where that is due."""
    if run.due_ms is not None:
        known = replace(known, taken_ms=run.due_ms, due_ms=run.next_due_ms)
    stop: tuple[Literal["paused", "ended"], str] | None = None
    if is_last:
        stop = ("ended", "maxRuns")
    elif run.due_ms is not None and run.next_due_ms is None:
        stop = ("ended", "noDueTime")
    elif is_unauthorized:
        stop = ("paused", "credentialEnded")
    elif known.refusals >= REFUSALS_MAX:
        stop = ("paused", "refusals")
    if stop is not None:
        known = stopped(known, *stop, batch)
    store_trigger(known, batch)
