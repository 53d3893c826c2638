"""The queue in front of the writer: batches, lost connections, defects that stop it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from core.records.statuses import OwnershipProof
from core.workflow.events import AttemptFinished
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.errors import LedgerFenced, LedgerIntegrityError, LedgerUnavailable
from ledger.features.capability_versions import lines_of_claim
from ledger.features.keys import RevokeKey
from ledger.reads.reader import LedgerReader
from ledger.writer.group_commit import GroupCommit
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    GENESIS,
    PAYER,
    Flow,
    NextWriter,
    api_key,
    card,
    deposit,
    join,
    new_key,
    revoke,
    succeeded,
)
from tests.ledger.writers import Start, disturb, insist, kill_backends, start_held, unavailable
from tests.platform.waiting import until

SLOW_S = 1.5
ON_ACCOUNT = "AFTER INSERT ON account"


def incompressible(length: int) -> str:
    """Return a text that no index can hold by compressing it."""
    return os.urandom(length // 2).hex()


async def test_what_waits_during_a_commit_is_one_batch(start: Start, auditor: Auditor) -> None:
    commits = await start()
    await asyncio.gather(*(commits.submit([deposit(CREDIT)]) for _ in range(300)))
    statistics = commits.statistics()
    assert statistics.commands == 300
    # The first may go alone, what came meanwhile goes together.
    assert statistics.batches <= 2
    assert commits._store is not None
    assert commits._store.round_trips <= 3, "genesis and the batches"
    assert auditor.balance(PAYER) == 300 * CREDIT


async def test_batches_keep_to_their_limits_and_each_submission_is_answered_whole(
    start: Start, auditor: Auditor
) -> None:
    commits = await start(batch_max=10)
    submissions = [[deposit(1) for _ in range(4)] for _ in range(10)]
    outcomes = await asyncio.gather(*(commits.submit(commands) for commands in submissions))
    assert [len(found) for found in outcomes] == [4] * 10
    large = await commits.submit([deposit(1) for _ in range(25)])
    balances = [outcome.result["balanceMicro"] for outcome in large]
    assert balances == list(range(41, 66)), "in their order, over several batches"
    assert commits.statistics().batch_max == 10


async def test_commands_that_go_alone_take_turns_with_the_batches_of_others(
    start: Start, auditor: Auditor
) -> None:
    commits = await start(batch_max=10)
    alone = [api_key(f"k{number}", number.to_bytes(32)) for number in range(6)]
    pairs = [(one, deposit(1)) for one in alone] + [(deposit(1), deposit(1)) for _ in range(7)]
    outcomes = await asyncio.gather(*(commits.submit(pair) for pair in pairs))
    assert [one.error for found in outcomes for one in found] == [None] * 26
    statistics = commits.statistics()
    assert (statistics.batches, statistics.batch_max) == (8, 10), "they end no batch of deposits"
    assert auditor.balance(PAYER) == 20


async def test_registrations_by_a_proof_go_together_unless_a_claim_yields(
    start: Start, auditor: Auditor, reader: LedgerReader
) -> None:
    """An administrator's bulk for other owners was a commit for each agent: 185 a second."""
    commits = await start()
    many = [card(f"did:x:{number}", proof=OwnershipProof.OPERATOR) for number in range(50)]
    outcomes = await commits.submit(many)
    assert {one.error for one in outcomes} == {None}
    assert commits.statistics().batches == 1
    proven = card(owner_did="did:x:owner", proof=OwnershipProof.OPERATOR)
    assert await lines_of_claim(reader, AGENT, "did:x:owner", ()) is None
    # The claim is made after the proof was judged.
    claimed, refused = await commits.submit([card(), proven])
    assert (claimed.error, refused.error) == (None, ErrorCode.CONFLICT)
    assert auditor.one("SELECT owner_did FROM agent WHERE did = %s", AGENT) == PAYER
    lines = await lines_of_claim(reader, AGENT, "did:x:owner", ())
    repeated = replace(proven, key=new_key(), lines_taken=lines)
    (yielded,) = await commits.submit([repeated])
    assert yielded.error is None
    assert auditor.one("SELECT owner_did FROM agent WHERE did = %s", AGENT) == "did:x:owner"


async def test_batches_are_weighed_not_only_counted(start: Start, auditor: Auditor) -> None:
    """A thousand commands of 512 KiB must not become one transaction."""
    commits = await start(batch_bytes_max=100_000)
    heavy = [replace(deposit(1), description="x" * 60_000) for _ in range(6)]
    await asyncio.gather(*(commits.submit([command]) for command in heavy))
    assert commits.statistics().batch_max == 1
    lone = replace(deposit(1), description="x" * 200_000)
    await commits.submit([lone])
    assert auditor.balance(PAYER) == 7, "one command above the bound goes alone"


async def test_full_queue_refuses_whole_submissions(start: Start, auditor: Auditor) -> None:
    commits = await start(queue_max=5)
    taken, refused = await asyncio.gather(
        commits.submit([deposit(1) for _ in range(4)]),
        commits.submit([deposit(1), deposit(1)]),
        return_exceptions=True,
    )
    assert isinstance(taken, list)
    assert isinstance(refused, ServiceError)
    assert refused.code is ErrorCode.OVERLOADED
    assert refused.retry_after_s is not None
    await commits.submit([deposit(1)])
    assert auditor.balance(PAYER) == 5


async def test_submission_whose_caller_left_before_its_batch_is_not_made(
    start: Start, auditor: Auditor
) -> None:
    commits = await start()
    left = asyncio.create_task(commits.submit([deposit(1)]))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    await commits.submit([deposit(2)])
    assert auditor.balance(PAYER) == 2


async def test_lost_connection_is_reopened_with_a_new_epoch(start: Start, auditor: Auditor) -> None:
    commits = await start()
    await commits.submit([deposit(1)])
    epoch = commits.statistics().epoch
    assert kill_backends(auditor) == 1
    (outcome,) = await insist(commits, deposit(2))
    assert outcome.status is OutcomeStatus.APPLIED
    assert commits.statistics().epoch == epoch + 1
    assert commits.statistics().reopened == 1


@pytest.mark.slow
async def test_every_command_is_applied_once_while_its_writer_is_killed(
    start: Start, auditor: Auditor
) -> None:
    """3,000 payments of 64 callers; the writer's connection dies a dozen times."""
    chance = random.Random(12)
    commits, epoch = await start_held(start)
    await commits.submit([deposit(10_000 * CREDIT)])
    flows = [Flow(epoch, hold=60 * CREDIT) for _ in range(60)]
    await commits.submit([flow.publish() for flow in flows])
    pending = [
        (flow, flow.pay(CREDIT, node=f"n{number}")) for flow in flows for number in range(50)
    ]
    outcomes: list[Outcome] = []
    progress = asyncio.Event()

    async def call() -> None:
        while pending:
            _, command = pending.pop()
            outcomes.extend(await insist(commits, command))
            progress.set()

    callers = [asyncio.create_task(call()) for _ in range(64)]
    kills = 0
    for target in sorted(chance.sample(range(2_800), 12)):
        while len(outcomes) < target:
            progress.clear()
            await progress.wait()
        while (killed := kill_backends(auditor)) == 0 and len(outcomes) < len(flows) * 50:
            # It is being reopened: the next outcome says that it was.
            progress.clear()
            await progress.wait()
        kills += killed
    await asyncio.gather(*callers)
    assert kills >= 6, "the last targets may fall behind the last outcome"
    assert len(outcomes) == 3_000
    assert all(outcome.error is None for outcome in outcomes)
    assert commits.statistics().reopened >= kills / 2
    payments = auditor.one("SELECT count(*) FROM entry WHERE kind = 'node_payment'")
    assert payments == 3_000
    assert auditor.balance(AGENT) == 3_000 * 950_000


async def test_writer_whose_epoch_is_over_stops(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    first = await start()
    await first.submit([deposit(1)])
    auditor.connection.execute("UPDATE callboard.head SET epoch = epoch + 1")
    with unavailable():
        await first.submit([deposit(1)])
    assert isinstance(fatal[0], LedgerFenced)
    second = await start()
    await second.submit([deposit(2)])
    assert auditor.balance(PAYER) == 3
    assert first.statistics().refused == 0, "being fenced off is no command's fault"


async def test_guilty_command_is_refused_alone_and_the_rest_of_its_batch_commits(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """The database refuses the batch; each command is tried alone, the writer never stops."""
    commits, epoch = await start_held(start)
    await commits.submit([deposit(10 * CREDIT)])
    flow = Flow(epoch, hold=CREDIT)
    await commits.submit([flow.publish()])
    guilty = flow.publish(key="another key for the same workflow")
    innocent = [deposit(CREDIT, owner_did=f"did:test:{number}") for number in range(40)]
    mixed = [*innocent[:33], guilty, *innocent[33:]]
    outcomes = await commits.submit(mixed)
    assert outcomes[33].error is ErrorCode.INTERNAL_ERROR
    assert [one.error for one in outcomes if one is not outcomes[33]] == [None] * 40
    assert not fatal
    assert commits.statistics().refused == 1
    again = await commits.submit(mixed)
    assert {outcome.status for outcome in again} == {OutcomeStatus.REPEATED}
    assert again[33].error is ErrorCode.INTERNAL_ERROR
    assert commits.statistics().refused == 1, "remembered under its key: never tried again"
    assert auditor.balance("did:test:39") == CREDIT
    assert auditor.one("SELECT count(*) FROM event WHERE event_type = 'command.refused'") == 1


@pytest.mark.parametrize(
    "make",
    [
        # Issue, rows 1 and 2: what the driver refuses, what no index row can hold.
        lambda: RevokeKey(key=new_key(), actor_did=PAYER, key_id="a\0b", owner_did=PAYER),
        lambda: RevokeKey(key=new_key(), actor_did=PAYER, key_id="a\ud800", owner_did=PAYER),
        lambda: deposit(1, owner_did="did:test:" + incompressible(6_000)),
        lambda: deposit(1, owner_did="did:test:a\0b"),
        lambda: deposit(1, key="key:a\0b"),
        lambda: deposit(1, key="key:\ud800"),
        lambda: replace(deposit(1), amount_micro=2**70),
        lambda: replace(deposit(1), request_hash="no bytes"),
        lambda: about(
            None, dispute_type="fraud", respondent_did="did:test:" + incompressible(6_000)
        ),
    ],
)
async def test_odd_command_harms_nobody_else(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError], make: Callable[[], Command]
) -> None:
    commits = await start()
    odd = make()
    others = [deposit(CREDIT, owner_did=f"did:test:{number}") for number in range(8)]
    outcomes = await commits.submit([*others[:5], odd, *others[5:]])
    assert [one.error for one in (*outcomes[:5], *outcomes[6:])] == [None] * 8
    (again,) = await commits.submit([odd])
    assert again.error == outcomes[5].error
    assert not fatal
    assert commits.statistics().reopened == 0, "the connection was never in doubt"
    assert auditor.balance("did:test:7") == CREDIT


async def test_rest_of_a_submission_stays_in_order_and_within_the_bounds_of_a_batch(
    start: Start, auditor: Auditor
) -> None:
    commits = await start(batch_max=2)
    odd = replace(deposit(1), owner_did="did:test:" + incompressible(6_000))
    outcomes = await commits.submit([odd, *(deposit(CREDIT) for _ in range(9))])
    assert outcomes[0].error is ErrorCode.INTERNAL_ERROR
    entries = [outcome.result["entry"]["id"] for outcome in outcomes[1:]]
    assert entries == sorted(entries), "each command of a caller after those before it"
    assert commits.statistics().batch_max <= 2


async def test_command_that_is_too_slow_alone_is_refused_and_the_rest_commits(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """A statement that never ends in time (here: a trigger that sleeps for one owner's account)."""
    disturb(auditor, "PERFORM pg_sleep(60)", ON_ACCOUNT, "NEW.owner_did = 'did:test:slow'")
    commits = await start(statement_timeout_s=0.5)
    slow = deposit(CREDIT, owner_did="did:test:slow")
    others = [deposit(CREDIT, owner_did=f"did:test:{number}") for number in range(3)]
    during = asyncio.create_task(commits.submit([*others, slow]))
    while commits.statistics().divided == 0:
        assert not during.done()
        await asyncio.sleep(0)  # the others are committed within milliseconds
    # While the guilty one is hunted, another client's commands have their turn.
    await commits.submit([deposit(CREDIT, owner_did="did:test:meanwhile")])
    assert not during.done()
    outcomes = await during
    assert [one.error for one in outcomes] == [None, None, None, ErrorCode.INTERNAL_ERROR]
    assert not fatal
    assert commits.statistics().reopened == 0
    (again,) = await commits.submit([slow])
    assert again.status is OutcomeStatus.REPEATED


async def test_slow_command_has_more_time_alone_than_in_a_batch(
    start: Start, auditor: Auditor
) -> None:
    """What is slow is not guilty yet: alone it has three times as long."""
    disturb(auditor, f"PERFORM pg_sleep({SLOW_S})", ON_ACCOUNT, "NEW.owner_did = 'did:test:slow'")
    commits = await start(statement_timeout_s=SLOW_S / 1.5)
    slow = deposit(CREDIT, owner_did="did:test:slow")
    outcomes = await commits.submit([deposit(CREDIT), slow])
    assert [one.error for one in outcomes] == [None, None]
    assert commits.statistics().divided >= 1
    assert commits.statistics().refused == 0


async def test_lock_of_another_session_is_no_command_s_fault(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """The server cannot work now: nothing is refused for that, and nothing is remembered."""
    commits = await start()
    with auditor.connection.transaction():
        auditor.connection.execute("LOCK TABLE callboard.account IN EXCLUSIVE MODE")
        with unavailable():
            await commits.submit([command := deposit(CREDIT)])
    (outcome,) = await insist(commits, command)
    assert outcome.status is OutcomeStatus.APPLIED
    assert commits.statistics().refused == 0
    assert not fatal


async def test_repeat_leaves_what_the_writer_remembers_alone(empty_store: LedgerStore) -> None:
    """A client's key is looked up first: its repeat rolls no batch back and costs no cache."""
    first, second = deposit(1), deposit(1)
    await empty_store.commit([first], AT)
    cache, round_trips = empty_store.cache, empty_store.round_trips
    repeated, applied = await empty_store.commit([first, second], AT)
    assert (repeated.status, applied.status) == (OutcomeStatus.REPEATED, OutcomeStatus.APPLIED)
    assert empty_store.cache is cache
    assert empty_store.round_trips == round_trips + 1


async def test_refusal_leaves_no_trace_under_a_key_that_the_service_uses_again(
    start: Start, auditor: Auditor
) -> None:
    """A join that was refused once must not be answered so for ever: its key names the member."""
    commits = await start()
    command = join()
    (refused,) = await commits.submit([replace(command, member="a\0b")])
    assert refused.error is ErrorCode.INTERNAL_ERROR
    (joined,) = await commits.submit([command])
    assert joined.status is OutcomeStatus.APPLIED


async def test_guilty_step_quarantines_its_workflow(start: Start, auditor: Auditor) -> None:
    """A step that the database refuses leaves no key behind: `resume` may repeat it."""
    commits, epoch = await start_held(start)
    await commits.submit([deposit(10 * CREDIT)])
    flow, other = (Flow(epoch, hold=CREDIT) for _ in range(2))
    await commits.submit([flow.publish(), other.publish()])
    finished, node, paid = succeeded("a", CREDIT)
    assert isinstance(finished, AttemptFinished)
    broken = flow.advance(replace(finished, outcome="no such outcome"), node, paid)
    refused, fine = await commits.submit([broken, other.pay(CREDIT)])
    assert (refused.error, refused.result) == (
        ErrorCode.INTERNAL_ERROR,
        {"quarantined": "STEP_REFUSED"},
    )
    assert fine.error is None
    assert auditor.one("SELECT count(*) FROM command WHERE id = %s", broken.key) == 0
    assert auditor.one("SELECT quarantine_code FROM workflow WHERE id = %s", flow.id)


async def test_command_that_ends_the_connection_each_time_is_refused_in_the_end(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """Nothing is repeated without bound, not even what takes the server's process with it."""
    die = "PERFORM pg_terminate_backend(pg_backend_pid())"
    disturb(auditor, die, ON_ACCOUNT, "NEW.owner_did = 'did:test:deadly'")
    commits = await start()
    deadly = deposit(CREDIT, owner_did="did:test:deadly")
    others = [deposit(CREDIT, owner_did=f"did:test:{number}") for number in range(6)]
    outcomes = await insist(commits, *others[:3], deadly, *others[3:])
    assert outcomes[3].error is ErrorCode.INTERNAL_ERROR
    assert [one.error for one in outcomes if one is not outcomes[3]] == [None] * 6
    assert not fatal


@pytest.mark.parametrize("state", ["55P03", "53100"], ids=["locked", "disk full"])
async def test_command_is_not_refused_for_a_server_that_could_not_work(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError], state: str
) -> None:
    """A lock of another session, a full disk: however often a command was repeated meanwhile, it
    is applied once the server works again."""
    raises = f"RAISE EXCEPTION 'cannot work now' USING ERRCODE = '{state}'"
    disturb(auditor, raises, "BEFORE INSERT ON entry")
    commits = await start()
    commands = [deposit(CREDIT, owner_did=f"did:test:{number}") for number in range(4)]
    waiting = asyncio.create_task(insist(commits, *commands))
    await until(lambda: commits.statistics().reopened >= 30)
    auditor.connection.execute("DROP TRIGGER disturbance ON entry")
    outcomes = await waiting
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert not fatal


async def test_command_that_exhausts_the_server_each_time_is_refused_in_the_end(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """The connection stands and the error is the server's kind, but only one command meets it."""
    exhaust = "RAISE EXCEPTION 'no memory' USING ERRCODE = '53200'"
    disturb(auditor, exhaust, ON_ACCOUNT, "NEW.owner_did = 'did:test:hungry'")
    commits = await start()
    hungry = deposit(CREDIT, owner_did="did:test:hungry")
    refused, other = await insist(commits, hungry, deposit(CREDIT))
    assert refused.error is ErrorCode.INTERNAL_ERROR
    assert other.error is None
    assert not fatal


async def test_stopped_writer_refuses(start: Start) -> None:
    commits = await start()
    await commits.stop()
    with unavailable():
        await commits.submit([deposit(1)])


async def test_unreachable_database_is_said_at_the_start(database: Database) -> None:
    commits = GroupCommit(
        database.service_url.replace(database.name, "no_such_database"),
        genesis=GENESIS,
        on_fatal=lambda error: None,
    )
    with pytest.raises(LedgerUnavailable):
        await commits.start()


async def test_defect_of_ours_is_an_answer_and_stops_nothing(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """Planning that raises is blamed on its command, even on one that is none."""
    commits = await start()
    nonsense: Any = SimpleNamespace(key="nonsense")
    first, odd, last = await commits.submit([deposit(1), nonsense, deposit(2)])
    assert (first.error, odd.error, last.error) == (None, ErrorCode.INTERNAL_ERROR, None)
    assert not fatal
    assert auditor.balance(PAYER) == 3


async def test_writer_whose_memory_is_wrong_stops(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """Ids with a gap are no command's fault: the process ends and its successor reads anew."""
    commits = await start()
    await commits.submit([deposit(1)])
    # What no writer may do, the superuser does behind its back.
    auditor.connection.execute("UPDATE head SET entry_seq = entry_seq + 5")
    with unavailable():
        await commits.submit([deposit(1)])
    assert len(fatal) == 1
    auditor.connection.execute("UPDATE head SET entry_seq = entry_seq - 5")


async def test_writer_that_cannot_read_its_books_again_stops(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    """Whatever the reason: a writer that answers pings and opens nothing is not replaced."""
    commits = await start()
    await commits.submit([deposit(1)])
    auditor.connection.execute("ALTER TABLE head DISABLE TRIGGER ALL")
    auditor.connection.execute("CREATE TABLE kept AS SELECT * FROM head")
    auditor.connection.execute("DELETE FROM head")
    kill_backends(auditor)
    with pytest.raises(ServiceError):
        await commits.submit([deposit(1)])
    await until(lambda: fatal)
    auditor.connection.execute("INSERT INTO head SELECT * FROM kept")
    auditor.connection.execute("ALTER TABLE head ENABLE TRIGGER ALL")


async def test_clock_that_steps_back_dates_nothing_before_what_is_committed(
    next_writer: NextWriter, auditor: Auditor
) -> None:
    """Else a writer restarted behind an issued invoice's end books into its closed period."""
    store = await next_writer()
    await store.commit([deposit(1)], AT + 5_000)
    await store.commit([deposit(1)], AT)
    store = await next_writer()
    await store.commit([deposit(1)], AT - 60_000)
    assert auditor.one("SELECT array_agg(DISTINCT created_ms) FROM entry") == [AT + 5_000]


async def test_clock_that_was_ahead_once_ends_nothing_before_its_time(
    next_writer: NextWriter, auditor: Auditor
) -> None:
    """What was dated a year ahead stays; no revocation ends for it, and new ones can be made."""
    year_ms = 365 * 86_400_000
    store = await next_writer()
    first = revoke(AGENT, expires_ms=AT + 60_000)
    await store.commit([first], AT)
    await store.commit([deposit(1)], AT + year_ms)
    other = "did:test:other"
    again, made = await store.commit(
        [revoke(AGENT), revoke(other, expires_ms=AT + 60_000)], AT + 1_000
    )
    assert again.error is ErrorCode.ALREADY_REVOKED
    assert made.error is None
    assert auditor.one("SELECT max(created_ms) = min(created_ms) FROM entry")


async def test_batch_that_was_rolled_back_once_does_not_turn_the_time_back(
    store: LedgerStore, auditor: Auditor
) -> None:
    """The books are read again, as of the last commit; the time that it then has is later."""
    flow = Flow(hold=CREDIT)
    await store.commit([flow.publish()], AT)
    too_dear, applied = await store.commit([flow.pay(2 * CREDIT), deposit(1)], AT + 5_000)
    assert (too_dear.error, applied.error) == (ErrorCode.INTERNAL_ERROR, None)
    await store.commit([deposit(1)], AT + 1_000)
    assert auditor.one("SELECT created_ms FROM entry ORDER BY id DESC LIMIT 1") == AT + 5_000


async def test_committed_steps_are_counted_once_and_refused_ones_not(
    start: Start, auditor: Auditor
) -> None:
    """What `/metrics` shows of workflows, nodes, attempts, payments and times."""
    commits, epoch = await start_held(start)
    await commits.submit([deposit(100 * CREDIT)])
    flow, poor = Flow(epoch), Flow(epoch, hold=1_000 * CREDIT)
    queued = AttemptFinished("b", 1, AGENT, "timeout", AT - 50, AT - 30, queued_ms=AT - 60)
    paid = flow.pay(CREDIT // 2)
    for command in (flow.publish(), flow.advance(queued), paid, paid, flow.end(), poor.publish()):
        await commits.submit([command])
    found = commits.step_counts.counters
    sums = {key[1]: value for key, value in found.items() if key[2:] == ("sum",)}
    assert sums == {"queue": 0.01, "dispatch": 0.025, "settlement": 0.03}
    assert {key: value for key, value in found.items() if key[0] != "callboard_stage_seconds"} == {
        ("callboard_workflows_published",): 1,
        ("callboard_attempts", "primary", "timeout"): 1,
        ("callboard_attempts", "primary", "success"): 1,
        ("callboard_nodes_finished", "success"): 1,
        ("callboard_payments",): 1,
        ("callboard_paid_credits",): 0.5,
        ("callboard_workflows_finished", "success"): 1,
    }
    buckets = {key[1:]: value for key, value in found.items() if key[2:] not in ((), ("sum",))}
    assert buckets["queue", "0.01"] == 1
    assert buckets["dispatch", "0.005"] == buckets["dispatch", "0.025"] == 1
    assert commits.statistics().lag_ms == 0
