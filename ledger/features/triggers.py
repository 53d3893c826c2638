"""Triggers and their runs: plans that create, change and end triggers, plans that store runs, and
reads.

Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final, Literal

import sqlalchemy as sql

from core.errors import ErrorCode
from core.market.sharing.quota import day_start_ms
from core.money import credits_text
from core.records.audit import AuditEventType
from core.records.statuses import TriggerStatus
from core.timestamps import iso_ms
from core.triggers.due import delay_of
from ledger.authority import Credential, OpenedBy, SignedBy
from ledger.features.credentials import add_credential_reads, check_credential
from ledger.features.workflow_commands import (
    ChangeTrigger,
    CreateTrigger,
    EndTrigger,
    NoteRun,
    PublishWorkflow,
    TriggerRun,
)
from ledger.reads.reader import LedgerReader, RowDict, RowPage
from ledger.schema import trigger, trigger_run, workflow
from ledger.tables.trigger_tables import TRIGGER_CHANGES, TRIGGER_FIXED, TRIGGER_RUNS, TRIGGERS
from ledger.writer.batch import Batch, Refusal, Result, conflict, invalid, not_found
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownTrigger

# Plans of runs. A cause either starts a run, which is the publish of a workflow, or a note records
# why it started none. The transaction of the publish also changes the rows of the trigger and of
# the run. A decision from an old version or due time of the trigger is refused. So a cause starts
# at most one run, even after crashes and retries.

# The number of failed runs in a row that pauses a trigger.
REFUSALS_MAX: Final = 10


def add_run_reads(run: TriggerRun, owner_did: str, read_set: ReadSet) -> None:
    """Add the keys of the rows that `check_run` reads."""
    read_set.trigger_ids.add(run.trigger_id)
    read_set.trusted.add(owner_did)
    add_credential_reads(run.credential, read_set)


def credential_of(owner_did: str, signed_key: str | None, key_id: str | None) -> Credential:
    """Return the credential of a trigger from its row; None: an access token.

    It does not contain the hash of an API key, so the key may be rotated.
    """
    if signed_key is not None:
        return SignedBy(owner_did, signed_key)
    return None if key_id is None else OpenedBy(key_id, owner_did=owner_did)


def check_run(run: TriggerRun, hold_micro: int, batch: Batch) -> KnownTrigger:
    """Return the trigger of a run that may start.

    Raises:
        Refusal: the rejections of runs that `PublishWorkflow` lists.
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
    """Store a run that has started, and its effect on the trigger.

    Args:
        known: the trigger, as returned by `check_run`.
        has_failed: the workflow ended when it was published.
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


@plans(NoteRun, reads=keys_of(trigger_ids="run.trigger_id"), reuses_key=True)
def plan_note_run(command: NoteRun, batch: Batch) -> Result:
    """Store a cause that has started no run; repeated failures pause the trigger."""
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
    """Store the state of a trigger, and other columns that a caller has changed."""
    before = batch.row(TRIGGER_CHANGES, known.id) or {}
    state = {name: value for name, value in asdict(known).items() if name not in TRIGGER_FIXED}
    batch.put(TRIGGER_CHANGES, known.id, {**before, **state, **others})
    batch.cache.triggers[known.id] = known


def stopped(
    known: KnownTrigger, status: Literal["paused", "ended"], reason: str, batch: Batch
) -> KnownTrigger:
    """Record that a trigger is paused or has ended; return the changed trigger."""
    event = AuditEventType.TRIGGER_PAUSED if status == "paused" else AuditEventType.TRIGGER_ENDED
    record_change(event, known, batch, reason=reason)
    return replace(known, status=status, reason=reason, due_ms=None)


def record_change(event: AuditEventType, known: KnownTrigger, batch: Batch, **payload: Any) -> int:
    """Record an event of a trigger; return the id of the audit entry."""
    owned = {"ownerDid": known.owner_did, **payload}
    return batch.record(event, ("trigger", known.id), **owned)


def _check_decided(run: TriggerRun, batch: Batch, *, is_active: bool = True) -> KnownTrigger:
    """Return the trigger of a cause, if it still has the version and due time from which the cause
    was decided.

    Args:
        is_active: whether the trigger must be active.

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
    """Take the run's due time, if it has one. Then pause or end the trigger if necessary, and store
    it."""
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


# Plans of callers' commands: create, change and end a trigger.

DISABLED = "disabled"
TRIGGERS_PER_OWNER_MAX: Final = 1_000


@plans(CreateTrigger, outlives_credential=True)
def plan_create_trigger(command: CreateTrigger, batch: Batch) -> Result:
    """Store a trigger."""
    terms, trigger_id, actor_did = command.terms, command.trigger_id, command.actor_did
    if command.count >= TRIGGERS_PER_OWNER_MAX:
        detail = f"{actor_did} has {command.count} triggers, the maximum: delete one first"
        raise conflict(detail, is_stored=False)
    known = KnownTrigger(
        id=trigger_id,
        owner_did=actor_did,
        kind=command.kind.value,
        version=1,
        max_runs=terms.max_runs,
        daily_budget_micro=terms.daily_budget_micro,
        status="active" if terms.is_enabled else "paused",
        reason=None if terms.is_enabled else DISABLED,
        due_ms=terms.due_ms if terms.is_enabled else None,
        expires_ms=terms.expires_ms,
        **_credential_columns(command.credential),
    )
    named = {"kind": known.kind, "name": terms.name}
    audit_id = record_change(AuditEventType.TRIGGER_CREATED, known, batch, **named)
    known = replace(known, audit_id=audit_id)
    batch.cache.triggers[trigger_id] = known
    others = {"manifest": terms.manifest_json, "delay_ms": delay_of(trigger_id, terms.config)}
    batch.store(TRIGGERS, trigger_id, command, terms, known, **others)
    return {"id": trigger_id}


@plans(ChangeTrigger, reads=keys_of(trigger_ids="trigger_id"), outlives_credential=True)
def plan_change_trigger(command: ChangeTrigger, batch: Batch) -> Result:
    """Change a trigger: its template and terms, and whether it is paused."""
    known, terms, actor_did = _owned(command, batch), command.terms, command.actor_did
    if known.status == "ended":
        raise conflict("the trigger has ended: create another one")
    due_ms = known.due_ms if command.keeps_due else terms.due_ms
    is_taken = due_ms is not None and due_ms <= (known.taken_ms or 0)
    is_paused_meanwhile = command.keeps_due and known.status != "active"
    if known.version != command.version or is_taken or is_paused_meanwhile:
        detail = "the trigger was changed or paused meanwhile: repeat the request"
        raise conflict(detail, is_stored=False)
    if terms.max_runs is not None and terms.max_runs <= known.runs:
        detail = f"maxRuns: got {terms.max_runs}, expected more than the {known.runs} runs so far"
        raise invalid(detail)
    version = known.version + 1
    changed = replace(
        known,
        version=version,
        max_runs=terms.max_runs,
        daily_budget_micro=terms.daily_budget_micro,
        due_ms=due_ms if terms.is_enabled else None,
    )
    if actor_did == known.owner_did:
        columns = _credential_columns(command.credential)
        changed = replace(changed, expires_ms=terms.expires_ms, **columns)
    event, named = AuditEventType.TRIGGER_CHANGED, list(command.changes)
    audit_id = record_change(event, known, batch, version=version, changes=named)
    if terms.is_enabled and known.status == "paused":
        record_change(AuditEventType.TRIGGER_RESUMED, known, batch)
        changed = replace(changed, status="active", reason=None, refusals=0, audit_id=audit_id)
    elif not terms.is_enabled and known.status == "active":
        changed = stopped(changed, "paused", DISABLED, batch)
    others = {} if terms.manifest_json is None else {"manifest": terms.manifest_json}
    store_trigger(
        changed,
        batch,
        name=terms.name,
        config=terms.config,
        delay_ms=delay_of(known.id, terms.config),
        updated_ms=batch.now_ms,
        **others,
    )
    return {"version": version}


@plans(EndTrigger, reads=keys_of(trigger_ids="trigger_id"), outlives_credential=True)
def plan_end_trigger(command: EndTrigger, batch: Batch) -> Result:
    """End a trigger."""
    known = _owned(command, batch)
    if known.status != "ended":
        known = stopped(known, "ended", "deleted", batch)
        store_trigger(known, batch, updated_ms=batch.now_ms)
    return {"endedMs": batch.now_ms}


def _owned(command: ChangeTrigger | EndTrigger, batch: Batch) -> KnownTrigger:
    known = batch.cache.triggers.get(command.trigger_id)
    if known is None or not command.may_act_for(known.owner_did):
        raise not_found(f"the trigger {command.trigger_id} is not known")
    return known


def _credential_columns(credential: Credential) -> dict[str, Any]:
    return {
        "signed_key": credential.public_key if isinstance(credential, SignedBy) else None,
        "key_id": credential.key_id if isinstance(credential, OpenedBy) else None,
    }


# Spelled as in the partial index: with a parameter Postgres would not use the index.
_COUNT: Final = sql.text(
    "SELECT count(*) AS found FROM callboard.trigger"
    " WHERE owner_did = :owner_did AND status <> 'ended'"
)
# The owners of triggers take turns, so no owner can delay the schedules of others. A due time with
# the policy `queue` waits for the previous run. Whether a run is unfinished is read once per due
# schedule.
_DUE: Final = sql.text(
    """
    WITH due AS (
        SELECT t.id, t.due_ms, t.config ->> 'overlapPolicy' AS policy,
            octet_length(t.manifest) AS bytes,
            row_number() OVER (PARTITION BY t.owner_did ORDER BY t.due_ms) AS turn,
            EXISTS (SELECT FROM callboard.workflow w
                WHERE w.template_id = t.id AND w.completed_ms IS NULL) AS is_running
        FROM callboard.trigger t WHERE t.due_ms + t.delay_ms <= :at_ms
    ), sized AS (
        SELECT id, turn, due_ms, is_running,
            sum(bytes) OVER (ORDER BY turn, due_ms, id) - bytes AS bytes_before
        FROM due WHERE policy <> 'queue' OR NOT is_running
        ORDER BY turn, due_ms, id LIMIT :limit
    )
    SELECT t.*, s.is_running FROM sized s JOIN callboard.trigger t ON t.id = s.id
    WHERE s.bytes_before < :bytes_max ORDER BY s.turn, s.due_ms
    """
)
# depth: 1 plus the depth of the run that the audit entry is about. It is 0 if that run belongs to
# another owner, because another owner must not be able to prevent runs of this trigger.
_EVENT: Final = sql.text(
    """
    SELECT a.body, a.workflow_id::text, coalesce((
        SELECT led.depth + 1 FROM callboard.trigger_run led
        JOIN callboard.trigger cause ON cause.id = led.trigger_id
        JOIN callboard.trigger t ON t.owner_did = cause.owner_did
        WHERE led.workflow_id = a.workflow_id AND t.id = CAST(:trigger_id AS uuid)), 0) AS depth,
        EXISTS (SELECT FROM callboard.trigger_run r
            WHERE r.trigger_id = CAST(:trigger_id AS uuid) AND r.key = :key) AS is_decided
    FROM callboard.audit a WHERE a.id = :audit_id
    """
)


async def trigger_row(reader: LedgerReader, trigger_id: str) -> RowDict | None:
    """Return a trigger by its id (a UUID), None if there is none."""
    return await reader.row(sql.select(trigger).where(trigger.c.id == trigger_id))


async def trigger_of_token(reader: LedgerReader, token_hash: bytes) -> RowDict | None:
    """Return the trigger whose hook has the token with this SHA-256, None if there is none."""
    return await reader.row(sql.select(trigger).where(trigger.c.token_hash == token_hash))


async def count_triggers(reader: LedgerReader, owner_did: str) -> int:
    """Return the number of an owner's triggers that have not ended."""
    (row,) = await reader.rows(_COUNT, {"owner_did": owner_did})
    return int(row["found"])


async def trigger_rows(
    reader: LedgerReader, *, status: str | None, before_id: str | None, **page: Any
) -> RowPage:
    """Return a page of triggers, newest first. Ended triggers are returned only by their status.

    Args:
        status: None: all that have not ended.
        before_id: the last id of the previous page.
        page: `limit`, `offset`, `bytes_max` (the maximum bytes of templates), and the filters
            `owner_did` and `kind`.
    """
    # Spelled as in the partial index: with a parameter Postgres would not use the index.
    wanted: sql.ColumnElement[str] = sql.literal_column(
        f"'{TriggerStatus(status or TriggerStatus.ENDED)}'"
    )
    is_status = trigger.c.status != wanted if status is None else trigger.c.status == wanted
    query = sql.select(trigger).where(is_status)
    return await reader.page(query, "id", before_id, wide="manifest", is_newest_first=True, **page)


async def run_rows(
    reader: LedgerReader, trigger_id: str, *, before_audit_id: int | None, **page: Any
) -> list[RowDict]:
    """Return runs of a trigger, newest first, each with its `workflow_status`."""
    query = (
        sql.select(trigger_run, workflow.c.status.label("workflow_status"))
        .select_from(trigger_run)
        .outerjoin(workflow, workflow.c.id == trigger_run.c.workflow_id)
        .where(trigger_run.c.trigger_id == trigger_id)
    )
    return await reader.listed(query, "audit_id", before_audit_id, is_newest_first=True, **page)


async def run_row(reader: LedgerReader, trigger_id: str, key: str) -> RowDict | None:
    """Return the run of a trigger by the key of its cause, None if there is none."""
    is_it = (trigger_run.c.trigger_id == trigger_id, trigger_run.c.key == key)
    return await reader.row(sql.select(trigger_run).where(*is_it))


async def due_triggers(
    reader: LedgerReader, *, at_ms: int, limit: int, bytes_max: int
) -> list[RowDict]:
    """Return schedules whose due time has come. Schedules of different owners alternate.

    Args:
        at_ms: the current time, Unix milliseconds.
        limit: maximum number of schedules.
        bytes_max: maximum bytes of templates: the list ends with the one that exceeds it.

    Returns: rows of triggers, each with `is_running`: whether one of its runs is unfinished.
    """
    return await reader.rows(_DUE, {"at_ms": at_ms, "limit": limit, "bytes_max": bytes_max})


async def event_row(reader: LedgerReader, audit_id: int, *, trigger_id: str, key: str) -> RowDict:
    """Return an audit entry as the cause of a run.

    Args:
        key: the key of the cause.

    Returns: the entry's row with the run's `depth`, and `is_decided`: whether the cause has a run.
    """
    values = {"audit_id": audit_id, "trigger_id": trigger_id, "key": key}
    (row,) = await reader.rows(_EVENT, values)
    return row
