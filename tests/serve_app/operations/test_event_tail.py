"""Event streams of a replica against the real Postgres: each shows its entries once, in order.

Reference: features.md (Streams).
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sql

from core.errors import ErrorCode, ServiceError
from ledger.features.tasks import SettleTask, settle_task_key
from ledger.reads import event_entries
from ledger.reads.event_entries import RequestedEntries
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from serve_app.operations.streams import event_tail
from serve_app.operations.streams.event_tail import EventStream, EventTail
from tests.conftest import Database
from tests.ledger.making import AGENT, AT, PAYER, Flow, deposit, open_with_member
from tests.platform.waiting import until

OTHER = "did:test:other"
FRAME = re.compile(rb"id: (\d+)\nevent: ([a-z_.]+)\ndata: (\{[^\n]*\})\n\n")


async def is_permitted() -> bool:
    return True


@dataclass
class Reader:
    """Reads a stream to its end; `ids` are those of the events so far."""

    stream: EventStream
    body: bytes = b""
    parts: int = 0
    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def start(self) -> Reader:
        self.may_read.set()
        self.task = asyncio.create_task(self._read())
        return self

    @property
    def ids(self) -> list[int]:
        return [int(number) for number, _, _ in FRAME.findall(self.body)]

    async def _read(self) -> None:
        async for part in self.stream.sent():
            self.body += part
            self.parts += 1
            await self.may_read.wait()

    async def has(self, count: int) -> None:
        """Return when so many events have come."""
        await until(lambda: len(self.ids) >= count)

    async def joined(self, tail: EventTail) -> None:
        """Return when the tail reads new entries for it."""
        await until(lambda: self.stream in tail.streams and tail._position > 0)
        await until(lambda: self.parts > 0)

    async def end(self) -> None:
        assert self.task is not None
        async with asyncio.timeout(30):
            await self.task


@dataclass
class Scene:
    """A ledger, and the tail of a replica."""

    store: LedgerStore
    reader: LedgerReader
    tail: EventTail

    def open(
        self, after: int = 0, *, party: str | None = None, until: str | None = None, **shown: Any
    ) -> Reader:
        permitted: Callable[[], Awaitable[bool]] = shown.pop("is_permitted", is_permitted)
        asked = RequestedEntries(until, party)
        stream = EventStream(
            tail=self.tail, after=after, is_permitted=permitted, asked=asked, **shown
        )
        return Reader(stream).start()

    async def deposits(self, count: int, owner: str = PAYER) -> None:
        await self.store.commit([deposit(1, owner_did=owner) for _ in range(count)], AT)

    async def stored(self, condition: str = "true") -> list[int]:
        query = f"SELECT id FROM callboard.audit AS a WHERE {condition} ORDER BY id"
        return [row["id"] for row in await self.reader.rows(sql.text(query))]


def of(party: str) -> str:
    return f"id IN (SELECT audit_id FROM callboard.audit_party WHERE party = '{party}')"


@pytest.fixture
async def scene(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(event_tail, "POLL_S", 0.005)
    store = await open_with_member(database.service_url)
    async with LedgerReader(database.service_url, pool_size=3) as reader:
        tail = EventTail(lambda: reader)
        yield Scene(store, reader, tail)
        tail.stop()
        if tail._following is not None:
            tail._following.cancel()
            await asyncio.wait([tail._following])
    await store.close()


async def test_streams_that_begin_anywhere_during_writes_have_no_gap_and_no_double(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, drawn_from: int
) -> None:
    """With few and small pages, so that stored, kept and skipped entries follow one another."""
    monkeypatch.setattr(event_entries, "PAGE_ENTRIES", 7)
    monkeypatch.setattr(event_tail, "BEHIND_MAX", 100)
    monkeypatch.setattr(event_entries, "PAGE_BYTES", 2_200)
    scene.tail._pages = deque(maxlen=3)
    draw = random.Random(drawn_from)
    opened: list[tuple[int, str | None, Reader]] = []

    async def write() -> None:
        for _ in range(40):
            await scene.deposits(draw.randint(1, 9), draw.choice((PAYER, OTHER)))
            await asyncio.sleep(draw.choice((0, 0.002)))

    writing = asyncio.create_task(write())
    while not writing.done() and len(opened) < 40:
        after, party = draw.randint(0, 150), draw.choice((None, PAYER, OTHER))
        opened.append((after, party, scene.open(after, party=party)))
        await asyncio.sleep(0.005)
    await writing
    await scene.deposits(150)
    await scene.deposits(1, OTHER)
    assert len(opened) > 10
    for after, party, reader in opened:
        everything = await scene.stored("true" if party is None else of(party))
        expected = [number for number in everything if number > after]
        assert expected
        await reader.has(len(expected))
        assert reader.ids == expected, (after, party)


async def test_a_stream_that_begins_within_a_page_shows_nothing_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "POLL_S", 3_600.0)
    first = scene.open()
    await first.joined(scene.tail)
    await first.has(len(await scene.stored()))
    await scene.deposits(30)
    everything = await scene.stored()
    second = scene.open(everything[-11])
    await second.joined(scene.tail)
    await scene.tail._read()
    await first.has(len(everything))
    await second.has(10)
    await scene.deposits(1)
    await scene.tail._read()
    await second.has(11)
    everything = await scene.stored()
    await first.has(len(everything))
    assert (first.ids, second.ids) == (everything, everything[-11:])


async def test_a_stream_reads_by_itself_what_the_tail_has_skipped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "POLL_S", 3_600.0)
    monkeypatch.setattr(event_tail, "COMMENT_S", 3_600.0)
    monkeypatch.setattr(event_tail, "BEHIND_MAX", 5)
    reader = scene.open((await scene.stored())[-1], party=PAYER)
    await reader.joined(scene.tail)
    await scene.deposits(10)
    await scene.tail._read()
    assert not scene.tail._pages[-1].asked
    await reader.has(10)
    assert reader.ids == (await scene.stored())[-10:]


async def test_entries_of_several_readers_are_read_whole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries count once for a page, also those of two parties that are asked for."""
    monkeypatch.setattr(event_tail, "POLL_S", 3_600.0)
    monkeypatch.setattr(event_entries, "PAGE_ENTRIES", 4)
    flows = [Flow() for _ in range(9)]
    await scene.store.commit([flow.publish() for flow in flows], AT)
    newest = (await scene.stored())[-1]
    opened = {one: scene.open(newest, party=one) for one in (PAYER, AGENT)}
    for reader in opened.values():
        await reader.joined(scene.tail)
    await scene.store.commit([flow.pay(1) for flow in flows], AT)
    shared = await scene.stored(f"id > {newest} AND {of(PAYER)} AND {of(AGENT)}")
    assert len(shared) >= 9
    while await scene.tail._read():
        pass
    for party, reader in opened.items():
        await reader.has(len(shared))
        assert reader.ids == await scene.stored(f"id > {newest} AND {of(party)}")


async def test_a_stream_has_a_head_and_frames_as_entries_are_read(scene: Scene) -> None:
    await scene.deposits(1)
    (last,) = (await scene.stored())[-1:]
    reader = scene.open(last - 1, party=PAYER)
    await reader.has(1)
    head, _, rest = reader.body.partition(b"\n\n")
    assert head == b": callboard\nretry: 1000\nid: %d" % (last - 1)
    ((number, kind, data),) = FRAME.findall(rest)
    assert (int(number), kind) == (last, b"ledger.deposited")
    assert b',"hash":"sha256:' in data


async def test_a_stream_of_later_entries_than_there_are_shows_none_before(scene: Scene) -> None:
    newest = (await scene.stored())[-1]
    reader = scene.open(newest + 3)
    await scene.deposits(5)
    await reader.has(1)
    assert reader.ids == [newest + 4, newest + 5]


async def test_filters_look_at_all_events_of_an_entry(scene: Scene) -> None:
    flow, other = Flow(), Flow()
    held = frozenset({"escrow.held"})
    live = scene.open((await scene.stored())[-1], party=PAYER, types=held, workflow_id=flow.id)
    await scene.store.commit([other.publish(), flow.publish(), flow.pay(10), flow.end()], AT)
    wanted, *_ = await scene.stored(f"workflow_id = '{flow.id}'")
    await live.has(1)
    later = scene.open(0, party=PAYER, types=held, workflow_id=flow.id)
    await later.has(1)
    assert live.ids == later.ids == [wanted]
    assert FRAME.findall(live.body)[0][1] == b"workflow.published"


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_workflows_stream_ends_with_it_also_for_those_who_are_not_shown_the_end(
    scene: Scene, is_live: bool
) -> None:
    flow, other = Flow(), Flow()
    await scene.store.commit([flow.publish(), other.publish()], AT)
    parties = (PAYER, AGENT, OTHER, None)
    opened = [scene.open(0, party=one, until=flow.id) for one in parties] if is_live else []
    for reader in opened:
        await reader.joined(scene.tail)
    settled = SettleTask(
        key=settle_task_key(flow.id), actor_did=PAYER, request_hash=b"", workflow_id=flow.id,
        task_id=flow.id,
    )  # fmt: skip
    ending = [flow.pay(10), other.pay(10), flow.end(), other.end(), settled]
    await scene.store.commit(ending, AT)
    await scene.deposits(1)
    opened = opened or [scene.open(0, party=one, until=flow.id) for one in parties]
    about_it = f"workflow_id = '{flow.id}'"
    last, after = (await scene.stored(about_it))[-2:]
    its = f"{about_it} AND id < {after}"
    for party, reader in zip(parties, opened, strict=True):
        await reader.end()
        assert reader.ids == await scene.stored(its if party is None else f"{its} AND {of(party)}")
        assert reader.stream not in scene.tail.streams
        assert (b"id: %d\n" % last) in reader.body
    assert await event_entries.end_entry_id(scene.reader, flow.id) == last
    assert await event_entries.end_entry_id(scene.reader, Flow(1).id) == 0


async def test_a_slow_reader_delays_no_other_and_nothing_is_kept_for_it(scene: Scene) -> None:
    scene.tail._pages = deque(maxlen=3)
    slow, quick = scene.open(), scene.open()
    for reader in (slow, quick):
        await reader.joined(scene.tail)
        await reader.has(1)
    slow.may_read.clear()
    for _ in range(20):
        await scene.deposits(10)
        count = len(await scene.stored())
        await quick.has(count)
    assert len(slow.ids) < 100
    kept = {row["id"] for page in scene.tail._pages for row in page.entries[None]}
    assert kept < {*quick.ids[-60:]}
    slow.may_read.set()
    await slow.has(count)
    assert quick.ids == slow.ids


async def test_comments_are_sent_and_a_credential_that_has_ended_ends_the_stream(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "COMMENT_S", 0.01)
    answers = [True]

    async def permitted() -> bool:
        return answers[-1]

    reader = scene.open((await scene.stored())[-1], is_permitted=permitted)
    await until(lambda: reader.body.count(b"\n\n:\n\n") >= 1 and reader.parts > 3)
    answers.append(False)
    await reader.end()
    before = reader.body
    await scene.deposits(1)
    assert (reader.ids, reader.body) == ([], before)


async def test_a_replica_that_stops_ends_its_streams_and_those_that_still_come(
    scene: Scene,
) -> None:
    opened = [scene.open(), scene.open(party=PAYER)]
    for reader in opened:
        await reader.joined(scene.tail)
    scene.tail.stop()
    for reader in (*opened, scene.open()):
        await reader.end()
    assert not scene.tail.streams


async def test_a_reader_that_leaves_is_forgotten_and_the_log_is_read_no_more(scene: Scene) -> None:
    reader = scene.open()
    await reader.joined(scene.tail)
    assert reader.task is not None
    reader.task.cancel()
    with suppress(asyncio.CancelledError):
        await reader.task
    assert not scene.tail.streams
    assert scene.tail._following is not None
    async with asyncio.timeout(30):
        await scene.tail._following


class Away:
    """A reader whose database is away for some reads."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "the database cannot be reached")
        return getattr(self._reader, name)


async def test_nothing_is_lost_while_the_database_is_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "AWAY_S", 0.01)
    away = Away(scene.reader)
    scene.tail.reader = lambda: away  # type: ignore[assignment,return-value]
    reader = scene.open((await scene.stored())[-1])
    await reader.joined(scene.tail)
    away.refusals = 5
    await scene.deposits(3)
    await reader.has(3)
    assert away.refusals == 0
    assert reader.ids == (await scene.stored())[-3:]
