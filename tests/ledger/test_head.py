"""The ledger's head changes hands: planned, or because the writer's session has ended.

Goal: of several processes one is the writer, and what was acknowledged stays. Method: real writers
on a real Postgres; only the leases' clock is the test's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest

from core.errors import ServiceError
from core.shards.lease_messages import Renewal
from core.shards.leases import FIRST_LEASE_MS
from core.shards.shard import SHARDS
from ledger.commands import OutcomeStatus
from ledger.errors import LedgerFenced, LedgerIntegrityError
from ledger.features.head_row import WRITER_LOCK, HeadReader, LedgerHead, wait_for_lock
from ledger.writer.group_commit import GroupCommit
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AT,
    GENESIS,
    MEMBER,
    PAYER,
    deposit,
    end_writer,
    hold_all,
    join,
    take,
)
from tests.ledger.writers import DEADLINE_S, Clock, WatchedWriter, one, unavailable
from tests.platform.waiting import until

pytestmark = pytest.mark.usefixtures("short_timeout")
FIRST, SECOND, THIRD = "ledger", "ledger#1", "ledger#2"
OTHER = "member-2"


class Ledgers:
    """Writers and standbys of one database."""

    def __init__(self, database: Database, auditor: Auditor) -> None:
        self.auditor = auditor
        self.clock = Clock()
        self.fatal: list[LedgerIntegrityError] = []
        self.url = database.service_url
        self._reader = HeadReader(self.url)
        self._made: list[GroupCommit] = []
        self._starts: list[asyncio.Task[None]] = []

    async def read(self) -> LedgerHead:
        """Return the head."""
        return await self._reader.read()

    def begin(self, actor: str) -> tuple[GroupCommit, asyncio.Task[None]]:
        """Begin to start a ledger; return it, and its start."""
        commits = WatchedWriter(
            self.url,
            genesis=GENESIS,
            on_fatal=self.fatal.append,
            now_ms=lambda: AT,
            boot_ms=self.clock,
        )
        start = asyncio.create_task(commits.start(actor))
        self._made.append(commits)
        self._starts.append(start)
        return commits, start

    async def writer(self, actor: str = FIRST) -> GroupCommit:
        """Return a ledger that is the writer."""
        commits, start = self.begin(actor)
        await within(start)
        return commits

    async def standby(self, actor: str = SECOND) -> tuple[GroupCommit, asyncio.Task[None]]:
        """Return a ledger that waits for the lock, and its start."""
        commits, start = self.begin(actor)
        await until(lambda: commits.is_standby)
        return commits, start

    async def close(self) -> None:
        """Stop every ledger."""
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        async with asyncio.timeout(DEADLINE_S):
            for commits in self._made:
                await commits.stop()
            await self._reader.close()


@pytest.fixture
async def ledgers(database: Database, auditor: Auditor) -> AsyncIterator[Ledgers]:
    """The ledgers of a test; all are stopped when it is over."""
    made = Ledgers(database, auditor)
    yield made
    await made.close()


async def within(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await task


# -- the lock --------------------------------------------------------------------------------------


async def test_writer_raises_the_epoch_and_names_its_actor(ledgers: Ledgers) -> None:
    writer = await ledgers.writer()
    assert await ledgers.read() == LedgerHead(1, FIRST)
    await writer.stop()
    await ledgers.writer(SECOND)
    assert await ledgers.read() == LedgerHead(2, SECOND)


@pytest.mark.slow
async def test_standby_waits_while_an_idle_writer_lives(ledgers: Ledgers) -> None:
    """Longer than Postgres lets a session be idle: the writer's beats keep it."""
    writer = await ledgers.writer()
    standby, start = await ledgers.standby()
    await asyncio.wait([start], timeout=4.5)
    assert not start.done()
    with unavailable():
        await standby.submit([deposit(1)])
    assert (await one(writer, deposit(1))).error is None
    assert (await ledgers.read()).epoch == 1


async def test_of_two_standbys_one_takes_the_head(ledgers: Ledgers) -> None:
    writer = await ledgers.writer()
    waiting = dict([await ledgers.standby(SECOND), await ledgers.standby(THIRD)])
    await writer.stop()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
    (taken,) = (commits for commits, start in waiting.items() if start.done())
    assert (await one(taken, deposit(1))).error is None
    (other,) = (commits for commits in waiting if commits is not taken)
    assert (await ledgers.read()).epoch == 2
    await taken.stop()
    await within(waiting[other])
    assert (await one(other, deposit(1))).error is None
    assert ledgers.auditor.balance(PAYER) == 2


async def test_writer_whose_session_was_ended_comes_back_as_a_standby(ledgers: Ledgers) -> None:
    """And when it is the writer again, it has read what the other one has committed."""
    writer = await ledgers.writer()
    await one(writer, deposit(1))
    second, start = await ledgers.standby()
    while not start.done():  # the one whose session was ended may be quicker
        assert writer._store is not None
        pid = writer._store._connection.info.backend_pid
        ledgers.auditor.one("SELECT pg_terminate_backend(%s, 60000)", pid)
        await until(lambda: start.done() or writer._store is None)
        await until(lambda: start.done() or writer._store is not None)
    await until(lambda: writer.is_standby)
    with pytest.raises(ServiceError):
        await writer.submit([deposit(1)])
    known = deposit(10)
    await one(second, known)
    await second.stop()
    await until(lambda: not writer.is_standby)
    assert (await one(writer, known)).status is OutcomeStatus.REPEATED
    assert (await one(writer, deposit(100))).error is None
    assert ledgers.auditor.balance(PAYER) == 111
    assert (await ledgers.read()).actor == FIRST
    assert not ledgers.fatal


async def test_commit_under_way_when_the_session_ends_is_stored_once(ledgers: Ledgers) -> None:
    """Here it is not stored; `test_group_commit.py` ends sessions at any moment."""
    writer = await ledgers.writer()
    await one(writer, deposit(1))
    second, start = await ledgers.standby()
    command = deposit(10)
    with psycopg.connect(ledgers.auditor.url) as blocking:
        blocking.execute("SELECT 1 FROM callboard.head FOR UPDATE")
        asking = asyncio.create_task(writer.submit([command]))
        await until(lambda: bool(waiting_for_a_lock(ledgers.auditor)))
        await end_writer(ledgers.url)
        with unavailable():
            await asking
    await until(lambda: start.done() or writer._store is not None)
    now = second if start.done() else writer
    outcomes = [(await one(now, command)).status for _ in range(2)]
    assert outcomes == [OutcomeStatus.APPLIED, OutcomeStatus.REPEATED]
    assert ledgers.auditor.balance(PAYER) == 11


def waiting_for_a_lock(auditor: Auditor) -> object:
    return auditor.one(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'callboard-ledger'"
        " AND datname = current_database() AND wait_event_type = 'Lock'"
    )


async def test_session_that_has_done_nothing_for_long_is_ended_by_who_waits(
    ledgers: Ledgers,
) -> None:
    """As one that Postgres does not find idle, since its client takes no answer."""
    url = ledgers.url
    async with (
        await psycopg.AsyncConnection.connect(url, autocommit=True) as holder,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as waiting,
    ):
        await holder.execute("SELECT pg_advisory_lock(%s)", (WRITER_LOCK,))
        polls = 0

        def note() -> None:
            nonlocal polls
            polls += 1

        async with asyncio.timeout(DEADLINE_S):
            await wait_for_lock(waiting, note, silent_s=0.5)
        assert polls > 1
        with pytest.raises(psycopg.OperationalError):
            await holder.execute("SELECT 1")


FROZEN = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from core.errors import ServiceError
from ledger.writer.group_commit import GroupCommit
from tests.ledger.making import GENESIS, deposit

async def run():
    commits = GroupCommit(sys.argv[1], genesis=GENESIS, on_fatal=print)
    await commits.start("ledger")
    loop = asyncio.get_running_loop()
    print("open", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        try:
            await commits.submit([deposit(1)])
            print("stored", flush=True)
        except ServiceError as refused:
            print(refused.code, flush=True)
    await commits.stop()

asyncio.run(run())
"""


@pytest.mark.slow
async def test_frozen_writer_loses_the_head_and_commits_nothing_when_it_continues(
    ledgers: Ledgers,
) -> None:
    """Its session ends after 3 s, whether a process waits for the lock or not."""
    root = os.getcwd()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FROZEN, ledgers.url, root, stdin=-1, stdout=-1, cwd=root
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def told() -> bytes:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            return (await process.stdout.readline()).strip()

    assert await told() == b"open"
    process.stdin.write(b"\n")
    assert await told() == b"stored"
    second, start = await ledgers.standby()
    process.send_signal(signal.SIGSTOP)
    process.stdin.write(b"\n")
    await within(start)
    assert (await one(second, deposit(10))).error is None
    process.send_signal(signal.SIGCONT)
    assert await told() == b"LEDGER_UNAVAILABLE"
    process.stdin.write(b"\n")
    assert await told() == b"LEDGER_UNAVAILABLE", "it waits for the lock"
    assert ledgers.auditor.balance(PAYER) == 11
    process.kill()
    await process.wait()


# -- leases ----------------------------------------------------------------------------------------


async def test_first_leases_outlast_what_the_writer_before_may_have_acknowledged(
    ledgers: Ledgers,
) -> None:
    writer = await ledgers.writer()
    epoch = await hold_all(writer)
    await one(writer, join(OTHER))
    await writer.stop()
    second = await ledgers.writer(SECOND)

    async def taken_after(passed_ms: int) -> int:
        """Let time pass in which the taker alone renews; return how many shards it takes then."""
        target_ms = began_ms + passed_ms
        while ledgers.clock.now_ms < target_ms:
            ledgers.clock.now_ms += min(500, target_ms - ledgers.clock.now_ms)
            second._leases.renew(Renewal(member=OTHER))
        return len((await one(second, take(OTHER, epoch=epoch))).result["taken"])

    began_ms = ledgers.clock.now_ms
    assert await taken_after(FIRST_LEASE_MS) == 0
    assert await taken_after(FIRST_LEASE_MS + 1) == SHARDS


# -- planned hand-over -----------------------------------------------------------------------------


async def test_planned_hand_over_refuses_nothing_and_loses_nothing(ledgers: Ledgers) -> None:
    """What was committed is repeated, what was held is committed, by the next writer."""
    writer = await ledgers.writer()
    second, start = await ledgers.standby()
    committed = deposit(1)
    await one(writer, committed)
    await writer.hand_over()
    held = [deposit(10), deposit(100)]
    asking = [asyncio.create_task(writer.submit([command])) for command in held]
    await until(lambda: writer.statistics().queued == len(held))
    assert writer.renew([Renewal(member="")]), "members are acknowledged meanwhile"
    await within(start)
    assert not any(task.done() for task in asking)
    outcomes = [await one(second, command) for command in (committed, *held)]
    assert [outcome.status for outcome in outcomes] == [
        OutcomeStatus.REPEATED, OutcomeStatus.APPLIED, OutcomeStatus.APPLIED
    ]  # fmt: skip
    assert ledgers.auditor.balance(PAYER) == 111
    await writer.stop()
    refused = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(error, ServiceError) for error in refused)


@pytest.mark.slow
async def test_writer_that_was_to_hand_over_goes_on_when_nothing_takes_the_head(
    ledgers: Ledgers,
) -> None:
    writer = await ledgers.writer()
    await writer.hand_over()
    with unavailable():
        await one(writer, deposit(7))
    await until(lambda: writer.statistics().is_open)
    assert (await one(writer, deposit(7))).status is OutcomeStatus.APPLIED
    assert ledgers.auditor.balance(PAYER) == 7


# -- what members saw ------------------------------------------------------------------------------


async def test_members_are_told_the_epoch_and_what_is_committed(ledgers: Ledgers) -> None:
    writer = await ledgers.writer()
    await hold_all(writer)
    newest = "SELECT audit_seq FROM callboard.head"
    (lease,) = writer.renew([Renewal(member=MEMBER)])
    head = await ledgers.read()
    assert (lease.epoch, lease.audit_id) == (head.epoch, ledgers.auditor.one(newest))
    await one(writer, deposit(1))
    (later,) = writer.renew(
        [Renewal(member=MEMBER, seen_epoch=lease.epoch, seen_audit_id=lease.audit_id)]
    )
    assert later.audit_id == ledgers.auditor.one(newest) > lease.audit_id


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
    with unavailable():
        writer.renew([Renewal(member=MEMBER, **more)])
    (error,) = ledgers.fatal
    assert isinstance(error, LedgerFenced) == is_fenced
    with pytest.raises(ServiceError):
        await writer.submit([deposit(1)])
