"""The queue in front of the writer: batches, lost connections, defects that stop it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from core.errors import ErrorCode, ServiceError
from ledger.commands import Command, Outcome, OutcomeStatus, RegisterOwner
from ledger.errors import LedgerFenced, LedgerIntegrityError, LedgerUnavailable
from ledger.group_commit import GroupCommit
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AGENT, AT, CREDIT, GENESIS, OWNER, PAYER, Flow, deposit, open_store

pytestmark = pytest.mark.anyio

Start = Callable[..., Any]


@pytest.fixture
async def fatal() -> list[LedgerIntegrityError]:
    """What the writers of a test were stopped by."""
    return []


@pytest.fixture
async def start(
    database: Database, fatal: list[LedgerIntegrityError]
) -> AsyncIterator[Callable[..., Any]]:
    """Start writers; all are stopped when the test is over."""
    started: list[GroupCommit] = []

    async def start_one(**options: int) -> GroupCommit:
        commits = GroupCommit(
            database.service_url,
            genesis=GENESIS,
            on_fatal=fatal.append,
            now_ms=lambda: AT,
            **options,
        )
        await commits.start()
        started.append(commits)
        return commits

    yield start_one
    for commits in started:
        await commits.stop()


def kill_backends(auditor: Auditor) -> int:
    """End every writer's backend, as a crash of the connection does; return how many ended."""
    return int(
        auditor.one(
            "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity"
            " WHERE application_name = 'callboard-ledger' AND datname = current_database()"
        )
    )


async def insist(commits: GroupCommit, command: Command) -> Outcome:
    """Submit until there is an outcome, as the ledger's client does: always with the same key."""
    while True:
        try:
            return (await commits.submit([command]))[0]
        except ServiceError as error:
            if error.code is not ErrorCode.LEDGER_UNAVAILABLE:
                raise
            await asyncio.sleep(0)


async def test_what_waits_during_a_commit_is_one_batch(start: Start, auditor: Auditor) -> None:
    commits = await start()
    await asyncio.gather(*(commits.submit([deposit(CREDIT)]) for _ in range(300)))
    statistics = commits.statistics()
    assert statistics.commands == 300
    # The first may go alone, what came meanwhile goes together.
    assert statistics.batches <= 2
    assert statistics.round_trips <= 3, "genesis and the batches"
    assert auditor.balance(PAYER) == 300 * CREDIT


async def test_batches_keep_to_their_limit_and_never_divide_a_submission(start: Start) -> None:
    commits = await start(batch_max=10)
    submissions = [[deposit(1) for _ in range(4)] for _ in range(10)]
    outcomes = await asyncio.gather(*(commits.submit(commands) for commands in submissions))
    assert [len(found) for found in outcomes] == [4] * 10
    assert commits.statistics().batch_max == 8
    large = await commits.submit([deposit(1) for _ in range(25)])
    assert len(large) == 25


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
    outcome = await insist(commits, deposit(2))
    assert outcome.status is OutcomeStatus.APPLIED
    assert commits.statistics().epoch == epoch + 1
    assert commits.statistics().reopened == 1


@pytest.mark.slow
async def test_every_command_is_applied_once_while_its_writer_is_killed(
    start: Start, auditor: Auditor
) -> None:
    """3,000 payments of 64 callers; the writer's connection dies a dozen times."""
    chance = random.Random(12)
    commits = await start()
    (owner, *_) = await commits.submit(
        [RegisterOwner(key="o", owner=OWNER, address=""), deposit(10_000 * CREDIT)]
    )
    flows = [Flow(int(owner.result["epoch"]), hold=60 * CREDIT) for _ in range(60)]
    await commits.submit([flow.publish() for flow in flows])
    pending = [
        (flow, flow.pay(CREDIT, node=f"n{number}")) for flow in flows for number in range(50)
    ]
    outcomes: list[Outcome] = []
    progress = asyncio.Event()

    async def call() -> None:
        while pending:
            _, command = pending.pop()
            outcomes.append(await insist(commits, command))
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


async def test_second_writer_fences_the_first_off_and_it_stops(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    first = await start()
    await first.submit([deposit(1)])
    second = await start()
    with pytest.raises(ServiceError) as caught:
        await first.submit([deposit(1)])
    assert caught.value.code is ErrorCode.LEDGER_UNAVAILABLE
    assert isinstance(fatal[0], LedgerFenced)
    await second.submit([deposit(2)])
    assert auditor.balance(PAYER) == 3
    assert auditor.one("SELECT count(*) FROM suspect") == 0, "being fenced off is nobody's fault"


async def test_guilty_command_stops_the_writer_and_is_refused_in_the_end(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError], database: Database
) -> None:
    """Two stops of a batch, then its commands are tried alone, then the guilty one is refused.

    Every stop is the end of a process: what is known of it is in the database alone.
    """
    store = await open_store(database.service_url)
    outcomes = await store.commit(
        [RegisterOwner(key="o", owner=OWNER, address=""), deposit(10 * CREDIT)], AT
    )
    flow = Flow(int(outcomes[0].result["epoch"]), hold=CREDIT)
    await store.commit([flow.publish()], AT)
    await store.close()
    guilty = flow.publish(key="another key for the same workflow")
    innocent = deposit(CREDIT, owner_did="did:test:innocent")
    answers: list[Outcome] = []
    for stops in range(1, 6):
        commits = await start()
        try:
            answers = await commits.submit([innocent, guilty])
        except ServiceError:
            assert len(fatal) == stops
        else:
            break
    assert len(fatal) == 3, "twice the batch, once the guilty command alone"
    assert answers[0].error is None
    assert answers[1].error is ErrorCode.INTERNAL_ERROR
    again = await commits.submit([guilty, innocent])
    assert [outcome.status for outcome in again] == [OutcomeStatus.REPEATED] * 2
    assert again[0].error is ErrorCode.INTERNAL_ERROR
    assert auditor.balance("did:test:innocent") == CREDIT
    assert auditor.one("SELECT count(*) FROM suspect") == 0
    assert auditor.one("SELECT count(*) FROM audit WHERE event_type = 'command.refused'") == 1


async def test_stopped_writer_refuses(start: Start) -> None:
    commits = await start()
    await commits.stop()
    with pytest.raises(ServiceError) as caught:
        await commits.submit([deposit(1)])
    assert caught.value.code is ErrorCode.LEDGER_UNAVAILABLE


async def test_unreachable_database_is_said_at_the_start(database: Database) -> None:
    commits = GroupCommit(
        database.service_url.replace(database.name, "no_such_database"),
        genesis=GENESIS,
        on_fatal=lambda error: None,
    )
    with pytest.raises(LedgerUnavailable):
        await commits.start()


async def test_defect_of_ours_stops_the_writer_instead_of_leaving_callers_waiting(
    start: Start, auditor: Auditor, fatal: list[LedgerIntegrityError]
) -> None:
    commits = await start()
    nonsense: Any = object()
    with pytest.raises(ServiceError) as caught:
        await commits.submit([deposit(1), nonsense])
    assert caught.value.code is ErrorCode.LEDGER_UNAVAILABLE
    assert len(fatal) == 1
    with pytest.raises(ServiceError):
        await commits.submit([deposit(1)])
    assert auditor.balance(PAYER) == 0
