"""Triggers at the one writer: each cause starts one run, whatever repeats, is late or was changed.

Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.sharing.quota import DAY_MS
from core.records.statuses import TriggerKind
from core.timestamps import iso_ms
from core.triggers.due import delay_of
from core.workflow.events import WorkflowChanged
from core.workflow.transitions import WorkflowStatus
from ledger.authority import Credential, OpenedBy, SignedBy
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.audit_log import newest_entry_id
from ledger.features.keys import RevokeKey
from ledger.features.triggers import (
    REFUSALS_MAX,
    count_triggers,
    due_triggers,
    event_row,
    run_rows,
    trigger_row,
)
from ledger.features.workflow_commands import (
    ChangeTrigger,
    CreateTrigger,
    EndTrigger,
    NoteRun,
    PublishWorkflow,
    TriggerRun,
    TriggerTerms,
    run_command_key,
)
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    NextWriter,
    api_key,
    card,
    errors,
    new_id,
    new_key,
    revoke,
)

ID = "0197d000-0000-7000-8000-00000000a001"
MINUTE = 60_000
DUE = AT - AT % MINUTE
# What PATCH leaves of a trigger when it names nothing.
TERMS: dict[str, Any] = {"name": "nightly", "config": {"overlapPolicy": "skip"}}
REPEATED = OutcomeStatus.REPEATED
C = TypeVar("C", CreateTrigger, ChangeTrigger)


def trigger(trigger_id: str = ID, **changes: Any) -> CreateTrigger:
    """Create a schedule that is due at DUE."""
    command = CreateTrigger(
        key=new_key(), actor_did=PAYER, trigger_id=trigger_id, kind=TriggerKind.SCHEDULED,
        terms=TriggerTerms(manifest_json='{"nodes":{}}', due_ms=DUE, **TERMS),
    )  # fmt: skip
    return with_terms(command, changes)


def changed(version: int, **changes: Any) -> ChangeTrigger:
    """Change it."""
    command = ChangeTrigger(
        key=new_key(), actor_did=PAYER, trigger_id=ID, version=version, changes=(),
        terms=TriggerTerms(**TERMS),
    )  # fmt: skip
    return with_terms(command, changes)


def with_terms(command: C, changes: dict[str, Any]) -> C:
    """Return a command with other members, those of its terms among them."""
    own = {name: changes.pop(name) for name in TriggerTerms.__struct_fields__ if name in changes}
    return replace(command, terms=replace(command.terms, **own), **changes)


def ending(actor: str = PAYER, *, is_admin: bool = False) -> EndTrigger:
    """End it."""
    return EndTrigger(key=new_key(), actor_did=actor, trigger_id=ID, is_admin=is_admin)


def due(number: int = 0, **changes: Any) -> TriggerRun:
    """Take its due time of this number; the next is a minute later."""
    due_ms = DUE + number * MINUTE
    run = TriggerRun(
        trigger_id=ID, key=str(due_ms), version=1, due_ms=due_ms,
        next_due_ms=due_ms + MINUTE,
    )  # fmt: skip
    return replace(run, **changes)


def manual(key: str, **changes: Any) -> TriggerRun:
    """Start a run that takes no due time."""
    return replace(TriggerRun(trigger_id=ID, key=f"manual:{key}", version=1), **changes)


def publish(flow: Flow, run: TriggerRun) -> PublishWorkflow:
    """Publish a run."""
    key = run_command_key(run.trigger_id, run.key)
    return replace(flow.publish(key=key), request_hash=b"", run=run)


def failing(flow: Flow, run: TriggerRun) -> PublishWorkflow:
    """Publish a run whose estimate exceeds its budget."""
    end = WorkflowChanged(WorkflowStatus.FAILED, AT, error={"code": "BUDGET_EXCEEDED"})
    return replace(publish(flow, run), records=(end,), has_hold=False, hold_micro=0)


def note(
    run: TriggerRun, status: str = "failed", reason: str = "FORBIDDEN", **more: Any
) -> NoteRun:
    """Note that a cause started no run."""
    command = NoteRun(
        key=run_command_key(run.trigger_id, run.key), actor_did="timekeeper", run=run,
        status="failed", reason=reason,
    )  # fmt: skip
    return replace(command, status=status, **more)


async def one(store: LedgerStore, command: Command, at_ms: int = AT) -> Outcome:
    """Commit one command."""
    return (await store.commit([command], at_ms))[0]


async def opened(store: LedgerStore, *more: Command, **changes: Any) -> None:
    """Open a ledger with a trigger."""
    outcomes = await store.commit([*more, trigger(**changes)], AT)
    assert [outcome.error for outcome in outcomes if outcome.error] == []


def state(auditor: Auditor, *columns: str) -> tuple[Any, ...]:
    """Return columns of the trigger's row."""
    query = f"SELECT row_to_json(t) FROM (SELECT {', '.join(columns)} FROM trigger) t"
    return tuple(auditor.one(query)[column] for column in columns)


def runs(auditor: Auditor) -> list[tuple[str, str, str | None]]:
    """Return the key, status and reason of each run, in order."""
    query = "SELECT key, status, reason FROM trigger_run ORDER BY audit_id"
    return [tuple(row) for row in auditor.connection.execute(query).fetchall()]  # type: ignore[misc]


def workflows(auditor: Auditor) -> int:
    """Return how many workflows of the trigger were published."""
    query = "SELECT count(*) FROM workflow WHERE template_id = %s AND template_version IS NOT NULL"
    return int(auditor.one(query, ID))


async def test_a_due_time_is_taken_once_by_whoever_repeats_it(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """In one batch, by another timekeeper under another workflow's id, and over a restart."""
    await opened(store)
    flow, other = Flow(), Flow()
    first, again, noted = await store.commit(
        [publish(flow, due()), publish(other, due()), note(due(), "skipped", "missed")], AT
    )
    assert first.status is OutcomeStatus.APPLIED
    assert (again.status, again.result["workflowId"]) == (REPEATED, flow.id)
    assert noted.error is ErrorCode.KEY_REUSED
    store = await next_writer()
    after = await one(store, publish(other, due()))
    assert (after.status, after.result["workflowId"]) == (REPEATED, flow.id)
    assert state(auditor, "due_ms", "taken_ms", "runs") == (DUE + MINUTE, DUE, 1)
    assert runs(auditor) == [(str(DUE), "started", None)]
    assert workflows(auditor) == 1
    body = auditor.one("SELECT body FROM audit WHERE 'workflow.published' = ANY(event_types)")
    assert f'"templateId":"{ID}"' in body


async def test_a_noted_due_time_starts_nothing_any_more(
    store: LedgerStore, auditor: Auditor
) -> None:
    await opened(store)
    noted, late = await store.commit(
        [note(due(), "skipped", "overlap"), publish(Flow(), due())], AT
    )
    assert (noted.error, late.error) == (None, ErrorCode.KEY_REUSED)
    assert runs(auditor) == [(str(DUE), "skipped", "overlap")]
    assert (workflows(auditor), auditor.balance(PAYER)) == (0, 100 * CREDIT)
    assert state(auditor, "due_ms", "runs", "refusals") == (DUE + MINUTE, 0, 0)


async def test_stale_deciders_take_nothing_and_leave_no_trace(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Another due time, an earlier version, a trigger that has ended or was never there."""
    await opened(store)
    entries = auditor.one("SELECT max(id) FROM audit")
    stale = [due(1), due(version=2), due(trigger_id=new_id()), due(credential=OpenedBy("k"))]
    for run in stale:
        outcomes = await store.commit([publish(Flow(), run)], AT)
        if run.credential is None:
            outcomes += await store.commit([note(run)], AT)
        assert {outcome.error for outcome in outcomes} == {ErrorCode.CONFLICT}
    assert auditor.one("SELECT max(id) FROM audit") == entries
    assert (await one(store, publish(Flow(), due()))).error is None, "no key was used up"
    await one(store, changed(1, keeps_due=True))
    assert (await one(store, publish(Flow(), due(1)))).error is ErrorCode.CONFLICT
    assert (await one(store, publish(Flow(), due(1, version=2)))).error is None
    await one(store, ending())
    for run in (due(2, version=2), manual("a", version=2)):
        assert (await one(store, publish(Flow(), run))).error is ErrorCode.CONFLICT
    assert workflows(auditor) == 2


async def test_two_timekeepers_take_each_due_time_once(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Both go on from what they have read last, and interleave."""
    await opened(store)

    async def keep(flows: int) -> None:
        at = 0
        for _ in range(flows):
            outcome = await one(store, publish(Flow(hold=CREDIT), due(at)))
            assert outcome.error in (None, ErrorCode.CONFLICT)
            await asyncio.sleep(0)
            at = (state(auditor, "due_ms")[0] - DUE) // MINUTE

    lock = asyncio.Lock()
    commit = store.commit

    async def in_turn(*given: Any) -> list[Outcome]:
        async with lock:
            return await commit(*given)

    store.commit = in_turn  # type: ignore[method-assign]
    await asyncio.gather(keep(12), keep(12))
    taken = state(auditor, "runs")[0]
    assert 12 <= taken <= 24
    assert [key for key, _, _ in runs(auditor)] == [str(DUE + n * MINUTE) for n in range(taken)]
    assert workflows(auditor) == taken


async def test_the_last_of_max_runs_ends_the_trigger(store: LedgerStore, auditor: Auditor) -> None:
    await opened(store, max_runs=2)
    outcomes = await errors(
        store, *(publish(Flow(), run) for run in (due(), manual("a"), manual("b")))
    )
    assert outcomes == [None, None, ErrorCode.CONFLICT]
    assert state(auditor, "status", "reason", "runs", "due_ms") == ("ended", "maxRuns", 2, None)
    assert workflows(auditor) == 2
    raised = await one(store, changed(1, max_runs=9))
    assert raised.error is ErrorCode.CONFLICT, "an end is final"


async def test_max_runs_must_exceed_what_was_started(store: LedgerStore) -> None:
    await opened(store)
    await store.commit([publish(Flow(), due()), publish(Flow(), due(1))], AT)
    refused, taken = await store.commit([changed(1, max_runs=2), changed(1, max_runs=3)], AT)
    assert (refused.error, taken.error) == (ErrorCode.INVALID_REQUEST, None)


async def test_a_schedule_without_another_due_time_ends(
    store: LedgerStore, auditor: Auditor
) -> None:
    await opened(store)
    last_ms = DUE + 6 * MINUTE
    await one(store, note(due(next_due_ms=None), "skipped", "missed", missed_until_ms=last_ms))
    assert state(auditor, "status", "reason", "due_ms") == ("ended", "noDueTime", None)
    assert auditor.one("SELECT missed_until_ms FROM trigger_run") == last_ms
    body = auditor.one("SELECT body FROM audit WHERE 'trigger.run_refused' = ANY(event_types)")
    assert f'"missedUntil":"{iso_ms(last_ms)}"' in body


async def test_an_ended_trigger_starts_nothing_and_is_its_owners(
    store: LedgerStore, auditor: Auditor
) -> None:
    """A cancel before the run; one of another tenant; a repeated one."""
    await opened(store)
    stranger, *_ = await store.commit([ending("did:test:other")], AT)
    assert stranger.error is ErrorCode.NOT_FOUND
    ended, run, again = await store.commit([ending(), publish(Flow(), due()), ending()], AT)
    assert (ended.error, run.error, again.error) == (None, ErrorCode.CONFLICT, None)
    assert (workflows(auditor), auditor.balance(PAYER)) == (0, 100 * CREDIT)
    assert state(auditor, "status", "reason") == ("ended", "deleted")
    count = "SELECT count(*) FROM audit WHERE 'trigger.ended' = ANY(event_types)"
    assert auditor.one(count) == 1
    other = await one(store, changed(1))
    assert other.error is ErrorCode.CONFLICT


async def test_ten_refusals_in_a_row_pause_it_and_a_run_begins_the_row_anew(
    store: LedgerStore, auditor: Auditor
) -> None:
    """A run whose estimate exceeds its budget is a refusal, too; a skipped due time is none."""
    await opened(store)
    await store.commit([note(due(n)) for n in range(REFUSALS_MAX - 1)], AT)
    at = REFUSALS_MAX - 1
    await store.commit([publish(Flow(), due(at)), note(due(at + 1), "skipped", "overlap")], AT)
    assert state(auditor, "status", "refusals") == ("active", 0)
    at += 2
    await store.commit([failing(Flow(), due(at + n)) for n in range(REFUSALS_MAX - 1)], AT)
    assert state(auditor, "status", "refusals", "runs") == ("active", 9, 10)
    paused, after = await store.commit([note(due(at + 9)), publish(Flow(), due(at + 10))], AT)
    assert (paused.error, after.error) == (None, ErrorCode.CONFLICT)
    assert state(auditor, "status", "reason", "due_ms") == ("paused", "refusals", None)
    kept = await one(store, changed(1, keeps_due=True))
    assert kept.error is ErrorCode.CONFLICT, "a change of a name does not resume it"
    later = DUE + 50 * MINUTE
    await one(store, changed(1, due_ms=later))
    assert state(auditor, "status", "reason", "refusals", "due_ms") == ("active", None, 0, later)


async def test_the_daily_budget_bounds_what_the_runs_of_a_day_hold(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """Up to its bound, over a restart, and from midnight UTC anew."""
    await opened(store, daily_budget_micro=20 * CREDIT)
    first, second, third = await store.commit(
        [publish(Flow(), run) for run in (due(), manual("a"), manual("b"))], AT
    )
    assert (first.error, second.error, third.error) == (None, None, ErrorCode.QUOTA_EXCEEDED)
    store = await next_writer()
    again = await one(store, publish(Flow(), manual("b")))
    assert again.error is ErrorCode.QUOTA_EXCEEDED
    assert "dailyBudgetCredits is 20" in again.detail
    free = await one(store, publish(Flow(hold=0, estimate=0), manual("free")))
    assert free.error is None
    tomorrow = AT - AT % DAY_MS + DAY_MS
    assert (await one(store, publish(Flow(), manual("b")), tomorrow)).error is None
    assert state(auditor, "day_ms", "day_micro") == (tomorrow, 10 * CREDIT)


async def test_a_run_without_money_leaves_the_due_time_to_its_note(
    store: LedgerStore, auditor: Auditor
) -> None:
    await opened(store)
    dear, noted = await store.commit(
        [
            publish(Flow(hold=101 * CREDIT), due()),
            note(due(), reason="INSUFFICIENT_CREDITS"),
        ],
        AT,
    )
    assert (dear.error, noted.error) == (ErrorCode.INSUFFICIENT_CREDITS, None)
    assert runs(auditor) == [(str(DUE), "failed", "INSUFFICIENT_CREDITS")]
    assert state(auditor, "refusals", "due_ms") == (1, DUE + MINUTE)


async def test_a_run_ends_with_the_credential_that_it_is_by(
    store: LedgerStore, auditor: Auditor
) -> None:
    """An API key that is revoked, a revoked owner, a time; the note of it pauses the trigger."""
    key = OpenedBy("k", owner_did=PAYER)
    await opened(store, api_key("k", b"k" * 32), credential=replace(key, key_hash=b"k" * 32))
    assert (await one(store, publish(Flow(), due(credential=key)))).error is None
    await one(store, RevokeKey(key=new_key(), actor_did=PAYER, key_id="k", owner_did=PAYER))
    run = due(1, credential=key)
    refused, noted = await store.commit(
        [publish(Flow(), run), note(run, reason="UNAUTHORIZED")], AT
    )
    assert (refused.error, noted.error) == (ErrorCode.UNAUTHORIZED, None)
    assert state(auditor, "status", "reason", "runs") == ("paused", "credentialEnded", 1)
    later = DUE + 5 * MINUTE
    resumed = changed(1, due_ms=later, expires_ms=AT + 10)
    assert (await one(store, resumed)).error is None
    by_token = due(5, version=2)
    in_time = await one(store, publish(Flow(), by_token), AT + 9)
    assert in_time.error is None
    expired = await one(store, publish(Flow(), due(6, version=2)), AT + 10)
    assert expired.error is ErrorCode.UNAUTHORIZED


async def test_a_repeat_of_the_command_that_made_the_last_trigger_returns_it(
    store: LedgerStore,
) -> None:
    last, more = trigger(), trigger(new_id(), count=1_000)
    await one(store, last)
    again = await one(store, replace(last, count=1_000))
    assert (again.status, again.result) == (REPEATED, {"id": ID})
    assert (await one(store, more)).error is ErrorCode.CONFLICT
    assert (await one(store, replace(more, count=999))).error is None


@pytest.mark.parametrize("credential", [None, SignedBy(AGENT, "K1")])
async def test_a_revoked_owner_runs_nothing(store: LedgerStore, credential: Credential) -> None:
    await store.commit([card(owner_did=AGENT, public_key="K1")], AT)
    made = trigger(actor_did=AGENT, credential=credential)
    made_outcome, _ = await store.commit([made, revoke(AGENT)], AT)
    assert made_outcome.error is None
    flow = Flow(payer=AGENT, hold=0, estimate=0)
    outcome = await one(store, publish(flow, due(credential=credential)))
    assert outcome.error is ErrorCode.UNAUTHORIZED


async def test_an_administrators_change_leaves_the_owners_credential(
    store: LedgerStore, auditor: Auditor
) -> None:
    await opened(store, api_key("k", b"k" * 32), credential=OpenedBy("k", b"k" * 32))
    admin = changed(1, actor_did="did:test:admin", is_admin=True, is_enabled=False)
    assert (await one(store, admin)).error is None
    assert state(auditor, "key_id", "status", "reason") == ("k", "paused", "disabled")
    assert (await one(store, changed(2))).error is None
    assert state(auditor, "key_id", "status", "version") == (None, "active", 3)


async def test_a_change_does_not_bring_a_taken_due_time_back(
    store: LedgerStore, auditor: Auditor
) -> None:
    """A clock behind that of the timekeeper would give it again, and it would be due for ever."""
    await opened(store)
    await one(store, publish(Flow(), due()))
    again, kept = await store.commit(
        [changed(1, due_ms=DUE), changed(1, keeps_due=True, name="other")], AT
    )
    assert (again.error, kept.error) == (ErrorCode.CONFLICT, None)
    assert state(auditor, "name", "due_ms", "manifest") == ("other", DUE + MINUTE, '{"nodes":{}}')
    lost = await one(store, changed(1, name="lost"))
    assert lost.error is ErrorCode.CONFLICT, "of two changes of one version one is refused"


async def test_a_jitter_delays_each_due_time_of_a_schedule_alike(
    store: LedgerStore, auditor: Auditor, reader: LedgerReader
) -> None:
    """By what follows from its id; a change of the jitter changes it."""
    await opened(store, config={**TERMS["config"], "jitterMs": 3_600_000})
    delay_ms = delay_of(ID, {"jitterMs": 3_600_000})
    for number in range(2):
        start_ms = DUE + number * MINUTE + delay_ms
        assert await due_triggers(reader, at_ms=start_ms - 1, limit=9, bytes_max=10**6) == []
        (row,) = await due_triggers(reader, at_ms=start_ms, limit=9, bytes_max=10**6)
        assert row["delay_ms"] == delay_ms
        assert (await one(store, publish(Flow(), due(number)))).error is None
    await one(store, changed(1, keeps_due=True, config={"overlapPolicy": "skip", "jitterMs": 9}))
    assert state(auditor, "delay_ms") == (delay_of(ID, {"jitterMs": 9}),)


async def test_the_triggers_of_an_owner_that_have_not_ended_are_counted(
    store: LedgerStore, reader: LedgerReader
) -> None:
    await opened(store)
    await store.commit([trigger(new_id()), trigger(new_id(), actor_did="did:test:other")], AT)
    assert await count_triggers(reader, PAYER) == 2
    await store.commit([ending()], AT)
    assert await count_triggers(reader, PAYER) == 1


async def test_a_run_gives_its_depth_to_triggers_of_its_owner_alone(
    store: LedgerStore, database: Database
) -> None:
    """Else a customer's chain of runs would stop the triggers of an agent's owner."""
    others = new_id()
    await opened(store, trigger(others, actor_did="did:net:other"))
    assert (await one(store, publish(Flow(), manual("a", depth=3)))).error is None
    async with LedgerReader(database.service_url) as reader:
        audit_id = await newest_entry_id(reader)
        found = [
            await event_row(reader, audit_id, trigger_id=trigger_id, key="k")
            for trigger_id in (ID, others)
        ]
    assert [row["depth"] for row in found] == [4, 0]


async def test_due_schedules_are_read_in_turns_of_their_owners(
    store: LedgerStore, reader: LedgerReader
) -> None:
    """A queue waits for the run that has not ended; what is too large comes next time."""
    await opened(store)
    ids = [new_id() for _ in range(4)]
    queue = {"overlapPolicy": "queue"}
    await store.commit(
        [
            trigger(ids[0], due_ms=DUE + 1, config=queue),
            trigger(ids[1], due_ms=DUE + 2),
            trigger(ids[2], due_ms=DUE + 3, actor_did="did:test:other"),
            trigger(ids[3], due_ms=DUE + 9),
        ],
        AT,
    )

    async def found(limit: int = 9, bytes_max: int = 10**6) -> list[tuple[str, bool]]:
        rows = await due_triggers(reader, at_ms=DUE + 8, limit=limit, bytes_max=bytes_max)
        return [(str(row["id"]), row["is_running"]) for row in rows]

    all_due = [(ID, False), (ids[2], False), (ids[0], False), (ids[1], False)]
    assert await found() == all_due
    assert await found(limit=2) == all_due[:2]
    assert await found(bytes_max=13) == all_due[:2]
    flow, queued = Flow(), Flow()
    of_queue = replace(manual("a"), trigger_id=ids[0])
    await store.commit([publish(flow, manual("a")), publish(queued, of_queue)], AT)
    assert await found() == [(ID, True), (ids[2], False), (ids[1], False)]
    await store.commit([queued.end()], AT)
    assert await found() == [(ID, True), (ids[2], False), (ids[0], False), (ids[1], False)]
    rows = await run_rows(reader, ids[0], limit=9, offset=0, before_audit_id=None)
    assert [(row["key"], row["workflow_status"]) for row in rows] == [("manual:a", "success")]
    row = await trigger_row(reader, ID)
    assert row is not None and row["config"] == TERMS["config"]
