"""What a member restores from is read in pages, whatever it has: bounded by rows and by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from core.shards.shard import SHARDS, id_in_shard
from ledger.features.directory import AGENTS
from ledger.features.unfinished import (
    _SIZES,
    PageKey,
    UnfinishedPages,
)
from ledger.reads.reader import LedgerReader, RowDict
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import AT, Flow, all_of, card, new_id

ALL = range(SHARDS)


async def paged(reader: LedgerReader, **bounds: int) -> list[list[str]]:
    """Return the ids of every page."""
    found: list[list[str]] = []
    after: PageKey | None = None
    pages = UnfinishedPages(reader, ALL)
    for name, most in bounds.items():
        setattr(pages, name, most)
    while True:
        page, after = await pages.page(after)
        found.append([stored.id for stored in page])
        if after is None:
            return found


async def test_pages_follow_each_other_and_leave_nothing_out(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flows = [Flow() for _ in range(7)]
    ended = Flow()
    await store.commit([*(flow.publish() for flow in flows), ended.publish(), ended.end()], AT)
    ids = sorted(flow.id for flow in flows)
    for most in (1, 2, 3, 7, 100):
        pages = await paged(reader, workflows_max=most)
        assert [one for page in pages for one in page] == ids
        assert all(len(page) <= most for page in pages)
    assert [len(page) for page in await paged(reader, bytes_max=1)][:7] == [1] * 7
    assert await UnfinishedPages(reader, []).page(None) == ([], None)
    some = await UnfinishedPages(reader, ALL).by_ids([ids[0], ids[5], ended.id])
    assert [stored.id for stored in some] == [ids[0], ids[5]]


async def test_pages_have_the_workflows_of_their_shards_alone(
    store: LedgerStore, reader: LedgerReader
) -> None:
    of = {shard: Flow(id=id_in_shard(new_id(), shard)) for shard in (0, 7, 255)}
    await store.commit([flow.publish() for flow in of.values()], AT)
    ids = [flow.id for flow in of.values()]
    for shards in ([0], [7], [255], [7, 255], [255, 3, 0], [1]):
        pages = UnfinishedPages(reader, shards)
        expected = sorted(of[shard].id for shard in shards if shard in of)
        found, after = await pages.page(None)
        assert ([one.id for one in found], after) == (expected, None)
        assert [one.id for one in await pages.by_ids(ids)] == expected


async def test_workflow_with_an_earlier_deadline_comes_first(
    store: LedgerStore, reader: LedgerReader
) -> None:
    """By their ids, the deadlines that fall into the restore of 20,000 waited for its end."""
    flows = sorted((Flow() for _ in range(6)), key=lambda flow: flow.id)
    # The newest ids are due first, two at the same time.
    due = [AT + ms for ms in (5_000, 4_000, 3_000, 3_000, 2_000, 1_000)]
    await store.commit(
        [
            replace(flow.publish(), deadline_ms=deadline_ms)
            for flow, deadline_ms in zip(flows, due, strict=True)
        ],
        AT,
    )
    expected = [flows[number].id for number in (5, 4, 2, 3, 1, 0)]
    for most in (1, 2, 3, 4, 100):
        pages = await paged(reader, workflows_max=most)
        assert [one for page in pages for one in page] == expected
    some = await UnfinishedPages(reader, ALL).by_ids([flow.id for flow in flows])
    assert [stored.id for stored in some] == expected


async def test_page_is_bounded_by_its_nodes(store: LedgerStore, reader: LedgerReader) -> None:
    flows = [Flow() for _ in range(4)]
    await store.commit([flow.publish() for flow in flows], AT)
    await store.commit([flow.pay(1, node=node) for flow in flows for node in "ab"], AT)
    assert [len(page) for page in await paged(reader, nodes_max=4)] == [2, 2]
    stored = (await UnfinishedPages(reader, ALL).page(None))[0]
    assert [sorted(node["name"] for node in one.nodes) for one in stored] == [["a", "b"]] * 4


class CountingReader(LedgerReader):
    """Counts the looks at sizes; the reads that the test names fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url, pool_size=2)
        self.looks = 0
        self.failing: set[int] = set()
        self._reads = 0

    async def rows(self, query: Any, values: Mapping[str, Any] | None = None) -> list[RowDict]:
        """As `LedgerReader.rows`."""
        self._reads += 1
        if self._reads in self.failing:
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "too slow")
        self.looks += query is _SIZES
        return await super().rows(query, values)


async def test_sizes_are_looked_at_once_for_many_pages(
    store: LedgerStore, database: Database
) -> None:
    """With large workflows a page held one of the hundred that each page sized anew."""
    flows = sorted((Flow() for _ in range(7)), key=lambda flow: flow.id)
    await store.commit([flow.publish() for flow in flows], AT)
    async with CountingReader(database.service_url) as reader:
        pages = await paged(reader, bytes_max=1)
        assert (pages, reader.looks) == ([[flow.id] for flow in flows], 1)
        pages = await paged(reader, bytes_max=1, workflows_max=3)
        assert (pages, reader.looks) == ([[flow.id] for flow in flows], 1 + 3)


async def test_page_that_fails_is_read_again_and_says_what_is_stored_by_then(
    store: LedgerStore, database: Database
) -> None:
    flows = sorted((Flow() for _ in range(4)), key=lambda flow: flow.id)
    await store.commit([flow.publish() for flow in flows], AT)
    async with CountingReader(database.service_url) as reader:
        pages = UnfinishedPages(reader, ALL)
        pages.bytes_max = 1
        first, after = await pages.page(None)
        reader.failing = {4}
        with pytest.raises(ServiceError):
            await pages.page(after)
        await store.commit([flows[1].end()], AT)
        second, after = await pages.page(after)
        third, after = await pages.page(after)
        assert [[one.id for one in page] for page in (first, second, third)] == [
            [flows[0].id],
            [],
            [flows[2].id],
        ]
        new = Flow()
        await store.commit([new.publish()], AT)
        anew = [one.id for one in (await UnfinishedPages(reader, ALL).page(None))[0]]
        assert anew == sorted([flows[0].id, flows[2].id, flows[3].id, new.id])
        assert [one.id for one in (await pages.page(None))[0]] == anew[:1], "a scan begins anew"
        assert reader.looks == 3


async def test_agents_are_read_in_pages_in_the_order_of_registration(
    store: LedgerStore, reader: LedgerReader
) -> None:
    dids = [f"did:x:{name}" for name in "hgfedcba"]
    for number, did in enumerate(dids):
        await store.commit([card(did)], AT + number // 2)  # two at once, by their names
    expected = [did for pair in range(4) for did in sorted(dids[2 * pair : 2 * pair + 2])]
    for page_rows in (1, 2, 3, 8, 100):
        rows = await all_of(AGENTS.pages(reader.lookups, page_rows=page_rows))
        assert [row["did"] for row in rows] == expected
