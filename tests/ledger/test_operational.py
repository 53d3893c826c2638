"""Rate blocks: what a window grants sums to its limit, however many ask at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ledger.operational import OperationalStore
from tests.conftest import Database

WINDOW_MS = 60_000


@pytest.fixture
async def operational(database: Database) -> AsyncIterator[OperationalStore]:
    """The operational tables of the test's database."""
    store = OperationalStore(database.service_url)
    yield store
    await store.close()


async def test_blocks_of_a_window_sum_to_its_limit(operational: OperationalStore) -> None:
    async def take() -> int:
        block = await operational.take_rate_block("p", "read", wanted=7, limit=100)
        assert 0 < block.ends_in_ms <= WINDOW_MS
        return block.calls

    granted = await asyncio.gather(*(take() for _ in range(30)))
    assert sum(granted) == 100
    assert sorted(set(granted)) == [0, 2, 7]


async def test_window_begins_with_its_first_call_and_ends_after_its_length(
    operational: OperationalStore,
) -> None:
    async def take(at_ms: int, limit: int = 10) -> tuple[int, int, int]:
        block = await operational.take_rate_block("p", "bulk", wanted=6, limit=limit, at_ms=at_ms)
        return block.calls, block.used, block.ends_in_ms

    assert await take(1_000) == (6, 6, 60_000)
    assert await take(60_999) == (4, 10, 1)
    assert await take(60_999) == (0, 10, 1)
    assert await take(61_000) == (6, 6, 60_000)
    assert await take(61_001, limit=3) == (0, 6, 59_999), "a lowered limit grants no more"


async def test_a_statement_that_was_overtaken_belongs_to_the_window(
    operational: OperationalStore,
) -> None:
    """It read the clock, then waited for the row that a later one began the window with."""
    first = await operational.take_rate_block("p", "bulk", wanted=6, limit=10, at_ms=5_000)
    overtaken = await operational.take_rate_block("p", "bulk", wanted=6, limit=10, at_ms=4_990)
    assert (first.calls, overtaken.calls, overtaken.used) == (6, 4, 10)
    assert overtaken.ends_in_ms == WINDOW_MS


async def test_a_clock_that_was_set_back_begins_a_new_window(
    operational: OperationalStore,
) -> None:
    async def take(at_ms: int) -> tuple[int, int]:
        block = await operational.take_rate_block("p", "bulk", wanted=10, limit=10, at_ms=at_ms)
        return block.calls, block.ends_in_ms

    assert await take(10**9) == (10, WINDOW_MS)
    back_ms = 10**9 - 3_600_000
    assert await take(back_ms) == (10, WINDOW_MS), "an hour's step locks no caller out for an hour"
    assert await take(back_ms) == (0, WINDOW_MS)


async def test_replicas_count_by_the_databases_clock(operational: OperationalStore) -> None:
    first = await operational.take_rate_block("p", "bulk", wanted=6, limit=10)
    again = await operational.take_rate_block("p", "bulk", wanted=6, limit=10)
    assert (first.calls, again.calls) == (6, 4)
    assert again.ends_in_ms <= first.ends_in_ms <= WINDOW_MS


async def test_principals_and_classes_are_counted_apart(operational: OperationalStore) -> None:
    for principal, rate_class in (("a", "read"), ("a", "write"), ("b", "read")):
        block = await operational.take_rate_block(principal, rate_class, wanted=5, limit=5)
        assert block.calls == 5
