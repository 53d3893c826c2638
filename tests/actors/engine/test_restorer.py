"""Restoring: page by page, in the background, each failure repeated by itself, reads shared."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from actors.engine import restorer as restorer_module
from actors.engine.restorer import IDS_MAX, Restorer
from actors.transport.ledger_client import LedgerClient
from actors.transport.wire import COMMANDS, OUTCOMES
from core.errors import ErrorCode, ServiceError
from ledger.commands import Outcome
from ledger.features.accounts import Deposit
from ledger.features.unfinished import PageKey
from ledger.reads.stored import StoredWorkflow
from tests.actors.engine.runner_bench import SHARD, Bench, wid
from tests.platform.waiting import until

PAGE = 3


def key_of(stored: StoredWorkflow) -> PageKey:
    """Return a workflow's place in the order of pages."""
    return PageKey(stored.row["deadline_ms"], stored.id)


class ModelRows:
    """The pages of the bench's ledger; reads fail as often as the test says."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.failing = 0
        self.pages: list[PageKey | None] = []
        self.ids: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def page(self, after: PageKey | None) -> tuple[Sequence[StoredWorkflow], PageKey | None]:
        """Implement `UnfinishedPages`."""
        await asyncio.sleep(0)  # a read takes a turn of the loop at least
        await self.gate.wait()
        self.pages.append(after)
        self._fail()
        stored = sorted(self._bench.model.unfinished([SHARD]), key=key_of)
        rest = [one for one in stored if after is None or key_of(one) > after]
        return rest[:PAGE], key_of(rest[PAGE - 1]) if len(rest) > PAGE else None

    async def by_ids(self, ids: Sequence[str]) -> Sequence[StoredWorkflow]:
        """Implement `UnfinishedPages`."""
        await self.gate.wait()
        self.ids.append(list(ids))
        self._fail()
        return [one for one in self._bench.model.unfinished([SHARD]) if one.id in ids]

    def _fail(self) -> None:
        if self.failing:
            self.failing -= 1
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "too slow")


def restorer_of(bench: Bench, rows: ModelRows, ledger: LedgerClient | None = None) -> Restorer:
    """Return the restorer of an owner that has just been restarted."""

    async def nothing() -> None:
        return None

    bench.runner = bench.new_runner(ledger=ledger)
    return Restorer(
        bench.runner, bench.held, lambda shards: rows, refresh=nothing, ledger=bench.ledger
    )


def unfinished(count: int) -> Bench:
    """Return a bench whose owner has ended with so many unfinished workflows."""
    bench = Bench()
    for number in range(count):
        bench.publish(workflow_id=wid(f"w{number:03}"))
    bench.gate.commit()
    bench.outbox.sent.clear()
    return bench


async def test_everything_is_restored_page_by_page_whatever_fails() -> None:
    bench = unfinished(10)
    rows = ModelRows(bench)
    rows.failing = 1
    restorer = restorer_of(bench, rows)
    async with asyncio.timeout(60):
        await restorer.restore_shards([SHARD])
    after = [key and key.workflow_id for key in rows.pages]
    assert after == [None, None, wid("w002"), wid("w005"), wid("w008")]
    assert (restorer.count, restorer.is_scanning) == (10, False)
    bench.gate.commit()
    assert len(bench.outbox.sent) == 10


async def test_first_workflows_are_driven_and_new_ones_taken_while_later_pages_are_read() -> None:
    bench = unfinished(10)
    rows = ModelRows(bench)
    restorer = restorer_of(bench, rows)
    done = restorer.restore_shards([SHARD])
    async with asyncio.timeout(60):
        await until(lambda: restorer.count >= PAGE)
        rows.gate.clear()
        await until(lambda: bench.gate.waiting)
    bench.gate.commit()
    assert bench.outbox.sent, "resumed before everything is read"
    bench.publish_and_commit(workflow_id=wid("new"))
    assert bench.replies[-1].workflow_id == wid("new")
    assert restorer.is_scanning
    rows.gate.set()
    async with asyncio.timeout(60):
        await done
    assert restorer.count == 10


async def test_rows_that_come_while_their_shard_is_frozen_begin_nothing() -> None:
    """Found by the simulation: a read that was under way when its shard was frozen restored a
    workflow, whose step was committed before the Give and dispatched after it."""
    bench = unfinished(2)
    restorer = restorer_of(bench, ModelRows(bench))
    bench.held.freeze(SHARD)
    async with asyncio.timeout(60):
        await restorer.restore_ids([wid("w000")])
        await restorer.restore_shards([SHARD])
    assert (restorer.count, bench.gate.waiting) == (0, [])
    bench.held.thaw(SHARD)
    async with asyncio.timeout(60):
        await restorer.restore_shards([SHARD])
    assert restorer.count == 2
    await restorer.close()


async def test_workflows_that_are_asked_for_meanwhile_share_one_read() -> None:
    """Three hundred halted workflows were three hundred reads of everything."""
    bench = unfinished(10)
    rows = ModelRows(bench)
    rows.gate.clear()
    restorer = restorer_of(bench, rows)
    for _ in range(30):
        for number in range(10):
            restorer.restore_one(wid(f"w{number:03}"))
    rows.gate.set()
    await until(lambda: restorer.count >= 10)
    assert len(rows.ids) == 1
    assert rows.pages == []


async def test_reads_by_ids_are_bounded() -> None:
    bench = unfinished(IDS_MAX + 5)
    rows = ModelRows(bench)
    restorer = restorer_of(bench, rows)
    for number in range(IDS_MAX + 5):
        restorer.restore_one(wid(f"w{number:03}"))
    await until(lambda: restorer.count >= IDS_MAX + 5)
    assert [len(ids) for ids in rows.ids] == [IDS_MAX, 5]


async def test_scan_that_is_asked_for_during_a_scan_follows_it() -> None:
    bench = unfinished(4)
    rows = ModelRows(bench)
    restorer = restorer_of(bench, rows)
    first, second = restorer.restore_shards([SHARD]), restorer.restore_shards([SHARD])
    async with asyncio.timeout(60):
        await first
        third = restorer.restore_shards([SHARD])
        await asyncio.gather(second, third)
    assert rows.pages.count(None) == 2


class Unreadable(list[StoredWorkflow]):
    """A page in which something fails that belongs to no workflow."""

    def __iter__(self) -> Iterator[StoredWorkflow]:
        """Fail."""
        raise RuntimeError("unforeseen")


async def test_scan_that_fails_unforeseen_is_begun_anew() -> None:
    class Rows(ModelRows):
        async def page(
            self, after: PageKey | None
        ) -> tuple[Sequence[StoredWorkflow], PageKey | None]:
            page, last = await super().page(after)
            return (page, last) if len(self.pages) != 2 else (Unreadable(page), last)

    bench = unfinished(4)
    rows = Rows(bench)
    restorer = restorer_of(bench, rows)
    async with asyncio.timeout(60):
        await restorer.restore_shards([SHARD])
    assert rows.pages.count(None) == 2
    assert restorer.count == 4


async def test_a_page_waits_for_the_outcomes_of_the_pages_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A payer's publishes queue behind its restored steps, and all others' behind their commit."""
    monkeypatch.setattr(restorer_module, "AHEAD_MAX", PAGE + 1)
    bench = unfinished(10)
    restorer = restorer_of(bench, ModelRows(bench))
    done = restorer.restore_shards([SHARD])
    for restored in (2 * PAGE, 3 * PAGE):
        for _ in range(100):
            await asyncio.sleep(0)
        assert restorer.count == restored
        while len(bench.gate.waiting) > PAGE + 1:
            command, answer = bench.gate.waiting.pop(0)
            answer(bench.model.commit([command])[0])
    async with asyncio.timeout(60):
        await done
    assert restorer.count == 10


async def test_a_page_waits_for_the_quarantines_of_the_pages_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of another version are as many commits as rows that can be driven on."""
    monkeypatch.setattr(restorer_module, "AHEAD_MAX", PAGE)
    bench = unfinished(10)
    for row in bench.model.workflows.values():
        row["manifest"] = "[]"
    done = restorer_of(bench, ModelRows(bench)).restore_shards([SHARD])
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(bench.gate.waiting) == 2 * PAGE
    async with asyncio.timeout(60):
        while not done.done():
            bench.gate.commit()
            await asyncio.sleep(0)
    assert all(map(bench.runner.is_quarantined, bench.model.workflows))


async def test_single_workflows_that_are_restored_keep_no_page_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One payer can have its workflows halted without end."""
    monkeypatch.setattr(restorer_module, "AHEAD_MAX", 5)
    bench = unfinished(10)
    rows = ModelRows(bench)
    restorer = restorer_of(bench, rows)
    for number in range(5):
        restorer.restore_one(wid(f"w{number:03}"))
    async with asyncio.timeout(60):
        await until(lambda: restorer.count >= 5)
        await restorer.restore_shards([SHARD])
    assert restorer.count == 10


@pytest.mark.parametrize(("outstanding", "size"), [(210, 40_000), (420, 600)])
async def test_the_steps_of_a_busy_payer_do_not_keep_others_from_being_restored(
    outstanding: int, size: int
) -> None:
    """A page waited until few commands of all payers waited: 3 of 30 workflows were restored."""
    bench, calls, number, is_over = unfinished(30), 0, 0, False

    async def call(bodies: list[bytes]) -> list[bytes]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        commands = [COMMANDS.decode(body) for body in bodies]
        return [OUTCOMES.encode(outcome) for outcome in bench.model.commit(commands)]

    client = LedgerClient(call, lambda _: False, capacity=10_000, batch_size=512)

    def submit(_: Outcome | None = None) -> None:
        nonlocal number
        if is_over:
            return
        number += 1  # the next step of accepted work follows from the commit of the one before
        client.submit(
            Deposit(
                key=f"d{number}",
                request_hash=b"",
                actor_did="did:x:busy",
                owner_did="did:x:busy",
                amount_micro=1,
                description="x" * size,
            ),
            submit,
            "did:x:busy",
        )

    for _ in range(outstanding):
        submit()
    restorer = restorer_of(bench, ModelRows(bench), client)
    done = restorer.restore_shards([SHARD])
    async with asyncio.timeout(60):
        while not done.done() and calls < 1_000:
            await asyncio.sleep(0)
    assert restorer.count == 30
    is_over = True
    await until(lambda: not client.queued)


@pytest.mark.parametrize("is_single", [False, True], ids=["scan", "single"])
async def test_rows_from_before_the_shard_went_away_are_not_driven_when_it_is_back(
    is_single: bool,
) -> None:
    """They passed as the new epoch's: a member drove on what another had long driven further."""
    bench = unfinished(2)
    rows = ModelRows(bench)
    restorer = restorer_of(bench, rows)
    reading = asyncio.Event()

    async def old_rows(*_: object) -> object:
        stored = bench.model.unfinished([SHARD])
        reading.set()
        await rows.gate.wait()
        return stored if is_single else (stored, None)

    rows.page = rows.by_ids = old_rows  # type: ignore[assignment, method-assign]
    rows.gate.clear()
    if is_single:
        restorer.restore_one(wid("w000"))
    else:
        restorer.restore_shards([SHARD])
    async with asyncio.timeout(60):
        await reading.wait()
    before = bench.held.epoch(SHARD)
    bench.held.drop(SHARD)
    bench.held.add(SHARD, before + 2)
    rows.gate.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert restorer.count == 0
    assert not bench.gate.waiting
    await restorer.close()


async def test_pages_of_a_shard_that_came_back_during_their_scan_are_not_restored() -> None:
    """They passed as those of the new epoch, although another member had driven the workflows."""
    bench = unfinished(10)
    rows = ModelRows(bench)
    read, may_read = rows.page, asyncio.Event()

    async def page(after: PageKey | None) -> tuple[Sequence[StoredWorkflow], PageKey | None]:
        if after is not None:
            await may_read.wait()
        return await read(after)

    rows.page = page  # type: ignore[method-assign]
    restorer = restorer_of(bench, rows)
    first = restorer.restore_shards([SHARD])
    async with asyncio.timeout(60):
        while restorer.count < PAGE:
            await asyncio.sleep(0)
    epoch = bench.held.epoch(SHARD)
    bench.held.drop(SHARD)
    bench.held.add(SHARD, epoch + 2)
    may_read.set()
    async with asyncio.timeout(60):
        await first
        assert restorer.count == 10 - PAGE, "the page that was read before is left out"
        await restorer.restore_shards([SHARD])
    assert restorer.count == 10
