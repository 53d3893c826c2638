"""Searches: one at a time, on a connection of their own, ended by the server in time."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sql

from core.errors import ErrorCode, ServiceError
from ledger.reads.expensive_reads import READS_MAX, READS_OF_ONE_MAX, ExpensiveReads
from ledger.reads.reader import LedgerReader
from ledger.reads.search_reads import SearchReads
from tests.conftest import Database


class Turns:
    """Callers that take turns, and the order in which they had them."""

    def __init__(self) -> None:
        self.turns = ExpensiveReads()
        self.had: list[str] = []
        self.may_end = asyncio.Event()

    async def take(self, caller: str) -> None:
        """Have a turn until the test lets it end."""
        async with self.turns.turn(caller):
            self.had.append(caller)
            await self.may_end.wait()

    async def start(self, *callers: str) -> list[asyncio.Task[None]]:
        """Let callers ask for a turn, one after the other."""
        started = []
        for caller in callers:
            started.append(asyncio.create_task(self.take(caller)))
            await asyncio.sleep(0)
        return started


async def test_one_caller_fills_only_its_own_places() -> None:
    all_ = Turns()
    started = await all_.start(*["a"] * READS_OF_ONE_MAX, "b")
    (refused,) = await all_.start("a")
    with pytest.raises(ServiceError, match=f"{READS_OF_ONE_MAX} of this caller"):
        await refused
    all_.may_end.set()
    await asyncio.gather(*started)
    assert all_.had[:2] == ["a", "b"], "callers take turns"


async def test_a_bounded_number_waits_of_all() -> None:
    """Four callers with five searches each let nobody else search."""
    all_ = Turns()
    started = await all_.start(*(f"c{number}" for number in range(READS_MAX)))
    (second,) = await all_.start("c0")
    with pytest.raises(ServiceError, match="limit 20"):
        await second
    started += await all_.start(*(f"d{number}" for number in range(READS_MAX)))
    (refused,) = await all_.start("late")
    with pytest.raises(ServiceError) as caught:
        await refused
    assert caught.value.code is ErrorCode.OVERLOADED
    all_.may_end.set()
    await asyncio.gather(*started)
    assert len(all_.had) == 2 * READS_MAX


async def test_a_turn_is_passed_on_by_those_that_leave() -> None:
    all_ = Turns()
    first, waits, last = await all_.start("a", "b", "c")
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    all_.may_end.set()
    await last
    assert all_.had == ["a", "c"]
    # One that is cancelled when the turn has just become its own passes it on, too.
    all_.may_end.clear()
    first, waits, last = await all_.start("a", "b", "c")
    all_.may_end.set()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    waits.cancel()
    await asyncio.gather(waits, last, return_exceptions=True)
    assert all_.had[-1] == "c"
    async with all_.turns.turn("d"):
        assert "reads=1" in repr(all_.turns)


async def test_the_server_ends_a_search_that_takes_too_long(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchReads, "search_timeout_ms", 50)
    searches = SearchReads(database.service_url, timeout_s=30)
    with pytest.raises(ServiceError) as caught:
        await searches.rows(sql.text("SELECT pg_sleep(60)"), caller="a")
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.OVERLOADED, 5)
    (row,) = await searches.rows(sql.text("SELECT 1 AS one"), caller="a")
    assert row == {"one": 1}
    await searches.close()


async def test_searches_hold_no_connection_that_other_reads_wait_for(database: Database) -> None:
    """Eight searches at once took all connections of a replica, and a balance took five seconds."""
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        sleep = sql.text("SELECT pg_sleep(1)")
        searches = [
            asyncio.create_task(reader.searches.rows(sleep, caller=f"did:x:{n}")) for n in range(4)
        ]
        await reader.balance("did:x:y")
        assert not any(search.done() for search in searches)
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
