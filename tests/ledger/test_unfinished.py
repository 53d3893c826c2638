"""What an owner restores from is read in pages, whatever it has: bounded by rows and by bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from ledger.agents.directory_reads import directory_pages
from ledger.reads.reader import LedgerReader
from ledger.workflows.unfinished import PageKey, unfinished_by_ids, unfinished_page
from tests.conftest import Database
from tests.ledger.making import AT, OWNER, Flow, all_of, card, open_with_owner

pytestmark = pytest.mark.anyio


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[LedgerReader]:
    """A reader of the test's ledger."""
    async with LedgerReader(database.service_url, pool_size=2) as opened:
        yield opened


async def paged(reader: LedgerReader, **bounds: int) -> list[list[str]]:
    """Return the ids of every page."""
    found: list[list[str]] = []
    after: PageKey | None = None
    while True:
        page, after = await unfinished_page(reader, OWNER, after=after, **bounds)
        found.append([stored.workflow_id for stored in page])
        if after is None:
            return found


async def test_pages_follow_each_other_and_leave_nothing_out(
    database: Database, reader: LedgerReader
) -> None:
    store, epoch = await open_with_owner(database.service_url)
    flows = [Flow(epoch) for _ in range(7)]
    ended = Flow(epoch)
    await store.commit([*(flow.publish() for flow in flows), ended.publish(), ended.end()], AT)
    ids = sorted(flow.id for flow in flows)
    for most in (1, 2, 3, 7, 100):
        pages = await paged(reader, workflows_max=most)
        assert [one for page in pages for one in page] == ids
        assert all(len(page) <= most for page in pages)
    assert [len(page) for page in await paged(reader, bytes_max=1)][:7] == [1] * 7
    assert await unfinished_page(reader, "nobody") == ([], None)
    some = await unfinished_by_ids(reader, OWNER, [ids[0], ids[5], ended.id])
    assert [stored.workflow_id for stored in some] == [ids[0], ids[5]]
    await store.close()


async def test_workflow_with_an_earlier_deadline_comes_first(
    database: Database, reader: LedgerReader
) -> None:
    """By their ids, the deadlines that fall into the restore of 20,000 waited for its end."""
    store, epoch = await open_with_owner(database.service_url)
    flows = sorted((Flow(epoch) for _ in range(6)), key=lambda flow: flow.id)
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
    some = await unfinished_by_ids(reader, OWNER, [flow.id for flow in flows])
    assert [stored.workflow_id for stored in some] == expected
    await store.close()


async def test_page_is_bounded_by_its_nodes(database: Database, reader: LedgerReader) -> None:
    store, epoch = await open_with_owner(database.service_url)
    flows = [Flow(epoch) for _ in range(4)]
    await store.commit([flow.publish() for flow in flows], AT)
    await store.commit([flow.pay(1, node=node) for flow in flows for node in "ab"], AT)
    assert [len(page) for page in await paged(reader, nodes_max=4)] == [2, 2]
    stored = (await unfinished_page(reader, OWNER))[0]
    assert [sorted(node["name"] for node in one.nodes) for one in stored] == [["a", "b"]] * 4
    await store.close()


async def test_agents_are_read_in_pages_in_the_order_of_registration(
    database: Database, reader: LedgerReader
) -> None:
    store, _ = await open_with_owner(database.service_url)
    dids = [f"did:x:{name}" for name in "hgfedcba"]
    for number, did in enumerate(dids):
        await store.commit([card(did)], AT + number // 2)  # two at once, by their names
    expected = [did for pair in range(4) for did in sorted(dids[2 * pair : 2 * pair + 2])]
    for page_rows in (1, 2, 3, 8, 100):
        rows = await all_of(directory_pages(reader, page_rows=page_rows))
        assert [row["did"] for row in rows] == expected
    await store.close()
