"""The ledger's head changes hands: planned, for the writer's silence, or not at all.

Goal: of several processes one is the writer, and what was acknowledged stays. Method: real writers
and standbys on a real Postgres; only the leases' clock is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import Renewal
from core.shards.leases import FIRST_LEASE_MS, FIRST_LEASE_TAKEN_MS, HEAD_SILENCE_MS
from core.shards.ledger_head import HEAD_READ_MS, LedgerAddress, LedgerHead, Succession
from core.shards.shard import SHARDS
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.errors import LedgerFenced, LedgerIntegrityError, LedgerUnavailable
from ledger.shards.head_row import HeadReader
from ledger.shards.standby import Standby
from ledger.writer.group_commit import PROOF_REFRESH_MS, GroupCommit
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    CREDIT,
    GENESIS,
    MEMBER,
    PAYER,
    Flow,
    deposit,
    hold_all,
    join,
    take,
)

DEADLINE_S = 20.0
FIRST, SECOND = LedgerAddress("ledger", "a"), LedgerAddress("ledger#1", "b")
OTHER = "member-2"


class Clock:
    """The monotonic clock of the writers, which goes on when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Ledgers:
    """Writers and standbys of one database."""

    def __init__(self, database: Database, auditor: Auditor) -> None:
        self.auditor = auditor
        self.clock = Clock()
        self.fatal: list[LedgerIntegrityError] = []
        self.gone: set[str] = set()
        self.reads = 0
        self._url = database.service_url
        self._reader = HeadReader(self._url)
        self._started: list[GroupCommit] = []

    async def read(self) -> LedgerHead:
        """Return the head; time passes as between two reads of a standby."""
        self.reads += 1
        return await self._reader.read()

    async def is_gone(self, actor: str) -> bool:
        """Say what the test has said."""
        return actor in self.gone

    def standby(
        self,
        address: LedgerAddress = SECOND,
        read: Callable[[], Awaitable[LedgerHead]] | None = None,
    ) -> Standby:
        """Return a standby that is reached at this address."""
        return Standby(address, read or self.read, self.is_gone, self.clock, read_s=0.02)

    def commits(self) -> GroupCommit:
        """Return what is not the writer yet."""
        commits = GroupCommit(
            self._url,
            genesis=GENESIS,
            on_fatal=self.fatal.append,
            now_ms=lambda: AT,
            boot_ms=self.clock,
            timeout_s=1.0,
        )
        self._started.append(commits)
        return commits

    async def writer(self, address: LedgerAddress = FIRST) -> GroupCommit:
        """Return the writer that is reached at this address."""
        commits = self.commits()
        async with asyncio.timeout(DEADLINE_S):
            await commits.start(await self.standby(address).wait_turn())
        return commits

    async def close(self) -> None:
        """Stop every writer."""
        async with asyncio.timeout(DEADLINE_S):
            for commits in self._started:
                await commits.stop()
            await self._reader.close()


@pytest.fixture
async def ledgers(database: Database, auditor: Auditor) -> AsyncIterator[Ledgers]:
    """The writers of a test; all are stopped when it is over."""
    made = Ledgers(database, auditor)
    yield made
    await made.close()


async def one(commits: GroupCommit, command: Command) -> Outcome:
    async with asyncio.timeout(DEADLINE_S):
        return (await commits.submit([command]))[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def stands_still(ledgers: Ledgers) -> Callable[[], Awaitable[LedgerHead]]:
    """Return a reader between whose reads the time of a standby passes at once."""

    async def read() -> LedgerHead:
        head = await ledgers.read()
        # After the answer, before the next question.
        asyncio.get_running_loop().call_later(0.001, pass_time)
        return head

    def pass_time() -> None:
        ledgers.clock.now_ms += HEAD_READ_MS

    return read


# -- taking ----------------------------------------------------------------------------------------


async def test_first_ledger_takes_the_head_and_says_where_it_is(ledgers: Ledgers) -> None:
    await ledgers.writer()
    head = await ledgers.read()
    assert (head.epoch, LedgerAddress.parse(head.address)) == (1, FIRST)


async def test_next_process_of_the_writers_actor_takes_its_head_at_once(ledgers: Ledgers) -> None:
    await ledgers.writer()
    again = replace(FIRST, start="c")
    await ledgers.writer(again)
    head = await ledgers.read()
    assert (head.epoch, LedgerAddress.parse(head.address)) == (2, again)


async def test_head_of_an_actor_that_does_not_exist_is_taken_at_once(ledgers: Ledgers) -> None:
    """As after a planned hand-over, `down` and `up`: the first name is another one again."""
    await ledgers.writer()
    ledgers.gone.add("ledger")
    await ledgers.writer(SECOND)
    assert LedgerAddress.parse((await ledgers.read()).address) == SECOND


async def test_of_two_that_have_read_the_same_head_one_takes_it(ledgers: Ledgers) -> None:
    head = await ledgers.read()
    first, second = ledgers.commits(), ledgers.commits()
    await first.start(Succession(str(FIRST), head))
    with pytest.raises(LedgerFenced, match="not as it was read"):
        await second.start(Succession(str(SECOND), head))
    assert (await one(first, deposit(1))).error is None


# -- silence ---------------------------------------------------------------------------------------


async def test_standby_waits_while_the_writer_commits_or_beats(ledgers: Ledgers) -> None:
    """An idle writer is asked for its proof once a second, and each time the head changes."""
    writer = await ledgers.writer()
    standby = ledgers.standby(read=stands_still(ledgers))
    waiting = asyncio.create_task(standby.wait_turn())
    await until(lambda: ledgers.reads > 5)
    assert standby.is_standing_by
    for _ in range(2):
        before, reads = await ledgers.read(), ledgers.reads
        ledgers.clock.now_ms += PROOF_REFRESH_MS
        writer._work.set()  # the writer's clock is the test's: it looks at it now
        async with asyncio.timeout(DEADLINE_S):
            while (await ledgers.read()).beat == before.beat:
                await asyncio.sleep(0.01)
        await until(lambda reads=reads: ledgers.reads > reads + 3)  # type: ignore[misc]
    assert not waiting.done()
    waiting.cancel()


async def test_writer_whose_batches_leave_the_head_as_it_was_beats(ledgers: Ledgers) -> None:
    """A refusal is stored under its key without an audit entry: it proves nothing to a standby, so
    it must prove nothing to the writer, which would acknowledge renewals while it is replaced."""
    writer = await ledgers.writer()
    epoch = await hold_all(writer)
    before = await ledgers.read()
    ledgers.clock.now_ms += PROOF_REFRESH_MS - 100
    refused = await one(writer, Flow(epoch, hold=CREDIT).publish())
    assert (refused.status, refused.error) == (
        OutcomeStatus.REJECTED, ErrorCode.INSUFFICIENT_CREDITS
    )  # fmt: skip
    assert await ledgers.read() == before
    ledgers.clock.now_ms += 200
    writer._work.set()
    async with asyncio.timeout(DEADLINE_S):
        while await ledgers.read() == before:
            await asyncio.sleep(0.01)


async def test_standby_takes_a_head_that_stands_still(ledgers: Ledgers) -> None:
    writer = await ledgers.writer()
    await writer.stop()  # it answers and beats no more
    began_ms = ledgers.clock.now_ms
    async with asyncio.timeout(DEADLINE_S):
        succession = await ledgers.standby(read=stands_still(ledgers)).wait_turn()
    assert succession.is_silent
    assert HEAD_SILENCE_MS <= ledgers.clock.now_ms - began_ms < HEAD_SILENCE_MS + 1_000
    second = ledgers.commits()
    await second.start(succession)
    assert (await one(second, deposit(1))).error is None


async def test_head_that_changed_after_all_is_not_taken_for_silent(ledgers: Ledgers) -> None:
    """The writer was slow: it has beaten, or committed, between the last look and the taking."""
    writer = await ledgers.writer()
    head = await ledgers.read()
    ledgers.clock.now_ms += PROOF_REFRESH_MS
    writer._work.set()
    async with asyncio.timeout(DEADLINE_S):
        while await ledgers.read() == head:
            await asyncio.sleep(0.01)
    with pytest.raises(LedgerFenced):
        await ledgers.commits().start(Succession(str(SECOND), head, is_silent=True))
    head = await ledgers.read()
    await one(writer, deposit(1))
    with pytest.raises(LedgerFenced):
        await ledgers.commits().start(Succession(str(SECOND), head, is_silent=True))
    assert (await one(writer, deposit(1))).error is None
    assert not ledgers.fatal


async def test_postgres_that_cannot_be_read_is_not_the_writers_silence(ledgers: Ledgers) -> None:
    await ledgers.writer()
    tries = 0

    async def away() -> LedgerHead:
        nonlocal tries
        tries += 1
        ledgers.clock.now_ms += 3_600_000
        raise LedgerUnavailable("away")

    standby = ledgers.standby(read=away)
    waiting = asyncio.create_task(standby.wait_turn())
    await until(lambda: tries > 2)
    assert not waiting.done()
    assert not standby.is_warm
    waiting.cancel()


@pytest.mark.parametrize("is_silent", [False, True])
async def test_first_leases_are_shorter_when_the_writer_before_was_silent(
    ledgers: Ledgers, is_silent: bool
) -> None:
    writer = await ledgers.writer()
    epoch = await hold_all(writer)
    await one(writer, join(OTHER))
    await writer.stop()
    head = await ledgers.read()
    second = ledgers.commits()
    await second.start(Succession(str(SECOND), head, is_silent=is_silent))
    lasts_ms = FIRST_LEASE_TAKEN_MS if is_silent else FIRST_LEASE_MS

    async def taken_after(passed_ms: int) -> int:
        """Let time pass in which the taker alone renews; return how many shards it takes then."""
        target_ms = began_ms + passed_ms
        while ledgers.clock.now_ms < target_ms:
            ledgers.clock.now_ms += min(500, target_ms - ledgers.clock.now_ms)
            second._leases.renew(Renewal(member=OTHER))
        return len((await one(second, take(OTHER, epoch=epoch))).result["taken"])

    began_ms = ledgers.clock.now_ms
    assert await taken_after(lasts_ms) == 0
    assert await taken_after(lasts_ms + 1) == SHARDS


async def test_actor_whose_head_was_taken_waits_when_it_comes_back(ledgers: Ledgers) -> None:
    """The head's machine was lost with the ledger, and is started again while a standby of another
    machine has long been the writer."""
    await (await ledgers.writer(FIRST)).stop()
    head = await ledgers.read()
    second = await started(ledgers, Succession(str(SECOND), head, is_silent=True))
    standby = ledgers.standby(replace(FIRST, start="c"))
    waiting = asyncio.create_task(standby.wait_turn())
    await until(lambda: standby.is_standing_by)
    assert not waiting.done()
    assert (await one(second, deposit(1))).error is None
    assert LedgerAddress.parse((await ledgers.read()).address) == SECOND
    waiting.cancel()


# -- fences ----------------------------------------------------------------------------------------


async def test_writer_that_was_replaced_while_its_connection_was_lost_stops(
    ledgers: Ledgers,
) -> None:
    """It must not take the head back: two ledgers would take it from each other for ever."""
    writer = await ledgers.writer()
    second = ledgers.commits()
    await second.start(Succession(str(SECOND), await ledgers.read()))
    ledgers.auditor.one(
        "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity"
        " WHERE application_name = 'callboard-ledger' AND datname = current_database()"
    )
    for commits in (writer, second):
        with pytest.raises(ServiceError):
            await commits.submit([deposit(1)])
    await until(lambda: bool(ledgers.fatal))
    assert isinstance(ledgers.fatal[0], LedgerFenced)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                assert (await second.submit([deposit(1)]))[0].error is None
                break
            except ServiceError:
                await asyncio.sleep(0.01)
    assert len(ledgers.fatal) == 1, "the one that is the head has reopened its own"
    assert LedgerAddress.parse((await ledgers.read()).address) == SECOND


async def test_writer_that_has_lost_the_answer_to_its_taking_takes_the_head_again(
    ledgers: Ledgers,
) -> None:
    head = await ledgers.read()
    succession = Succession(str(FIRST), head)
    await (await started(ledgers, succession)).stop()
    writer = await started(ledgers, succession)
    assert (await one(writer, deposit(1))).error is None
    assert (await ledgers.read()).epoch == head.epoch + 2


async def started(ledgers: Ledgers, succession: Succession) -> GroupCommit:
    commits = ledgers.commits()
    await commits.start(succession)
    return commits


# -- planned hand-over -----------------------------------------------------------------------------


async def test_planned_hand_over_refuses_nothing_and_loses_nothing(ledgers: Ledgers) -> None:
    """What was committed is repeated, what was held is committed, by the next writer."""
    writer = await ledgers.writer()
    standby = ledgers.standby()
    waiting = asyncio.create_task(standby.wait_turn())
    await until(lambda: standby.is_standing_by)
    committed = deposit(1)
    await one(writer, committed)
    await writer.hold(DEADLINE_S)
    held = [deposit(10), deposit(100)]
    asking = [asyncio.create_task(writer.submit([command])) for command in held]
    await until(lambda: writer.statistics().queued == len(held))
    assert writer.renew([Renewal(member="")]), "members are acknowledged meanwhile"
    standby.take_over()
    async with asyncio.timeout(DEADLINE_S):
        succession = await waiting
    assert not succession.is_silent
    second = await started(ledgers, succession)
    assert not any(task.done() for task in asking)
    outcomes = [await one(second, command) for command in (committed, *held)]
    assert [outcome.status for outcome in outcomes] == [
        OutcomeStatus.REPEATED, OutcomeStatus.APPLIED, OutcomeStatus.APPLIED
    ]  # fmt: skip
    assert ledgers.auditor.balance(PAYER) == 111
    await writer.stop()
    refused = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(error, ServiceError) for error in refused)


async def test_writer_goes_on_when_nothing_has_taken_over_in_time(ledgers: Ledgers) -> None:
    writer = await ledgers.writer()
    await writer.hold(0.05)
    assert (await one(writer, deposit(7))).status is OutcomeStatus.APPLIED
    await writer.hold(DEADLINE_S)
    await writer.hold(0.05)
    assert (await one(writer, deposit(7))).status is OutcomeStatus.APPLIED
    assert ledgers.auditor.balance(PAYER) == 14


async def test_standby_that_was_told_in_vain_waits_on(ledgers: Ledgers) -> None:
    await ledgers.writer()

    async def away() -> LedgerHead:
        raise LedgerUnavailable("away")

    standby = ledgers.standby(read=away)
    waiting = asyncio.create_task(standby.wait_turn())
    standby.take_over()
    standby.stand_back()
    standby._read = ledgers.read
    await until(lambda: standby.is_standing_by)
    assert not waiting.done()
    waiting.cancel()


# -- what members saw ------------------------------------------------------------------------------


async def test_members_are_told_the_epoch_and_what_is_committed(ledgers: Ledgers) -> None:
    writer = await ledgers.writer()
    await hold_all(writer)
    (lease,) = writer.renew([Renewal(member=MEMBER)])
    head = await ledgers.read()
    assert (lease.epoch, lease.audit_id) == (head.epoch, head.audit_id)
    await one(writer, deposit(1))
    (later,) = writer.renew(
        [Renewal(member=MEMBER, seen_epoch=lease.epoch, seen_audit_id=lease.audit_id)]
    )
    assert later.audit_id == (await ledgers.read()).audit_id > lease.audit_id


@pytest.mark.parametrize(
    ("ahead", "is_fenced"),
    [({"seen_epoch": 1}, True), ({"seen_audit_id": 1}, False)],
    ids=["epoch", "audit id"],
)
async def test_ledger_that_is_behind_what_a_member_saw_stops(
    ledgers: Ledgers, ahead: dict[str, int], is_fenced: bool
) -> None:
    """Another ledger is the head, or Postgres has lost what was acknowledged."""
    writer = await ledgers.writer()
    await hold_all(writer)
    (lease,) = writer.renew([Renewal(member=MEMBER)])
    seen = {"seen_epoch": lease.epoch, "seen_audit_id": lease.audit_id}
    writer.renew([Renewal(member=MEMBER, **seen)])
    assert not ledgers.fatal
    more = {name: number + ahead.get(name, 0) for name, number in seen.items()}
    with pytest.raises(ServiceError) as refused:
        writer.renew([Renewal(member=MEMBER, **more)])
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE
    (error,) = ledgers.fatal
    assert isinstance(error, LedgerFenced) == is_fenced
    with pytest.raises(ServiceError):
        await writer.submit([deposit(1)])
