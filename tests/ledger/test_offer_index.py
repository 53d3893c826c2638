"""When changed cards are read: beside those who register, none of them left for later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ledger.agents import offer_index
from ledger.agents.offer_index import OfferIndex
from ledger.reads.reader import LedgerReader

pytestmark = pytest.mark.anyio


class Index(OfferIndex):
    """An index whose steps see what is due when they begin, and end when the test says so."""

    def __init__(self) -> None:
        super().__init__("postgresql://nowhere")
        self.due = self.read = 0
        self.ends = asyncio.Event()
        # Whether steps have always more to read, of others.
        self.is_endless = False

    async def index_some(self) -> int:
        """Read all that was due when the step began."""
        seen, self.due = self.due, 0
        await self.ends.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        self.read += seen
        return seen or self.is_endless

    async def is_due(self, reader: LedgerReader, dids: Sequence[str]) -> bool:
        """Whether the cards of the test are due, by how many are read."""
        return self.read < int(dids[0])


async def followed(index: Index, read: int = 0) -> None:
    """Return when so many of the test's cards are read."""
    await index.followed(cast("Any", None), [str(read)])


async def test_what_is_registered_during_the_last_step_is_read_without_a_search() -> None:
    index = Index()
    first = asyncio.create_task(followed(index))
    await asyncio.sleep(0)
    index.due = 5  # committed after the step's snapshot
    second = asyncio.create_task(followed(index))
    await asyncio.sleep(0)
    assert not first.done()
    index.ends.set()
    await first
    await second
    assert index.read == 5
    await index.close()


async def test_who_waits_for_slow_steps_goes_on_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offer_index, "FOLLOWED_MAX_S", 0.01)
    index = Index()
    await followed(index)
    index.ends.set()
    index.due = 1
    await followed(index)
    assert index.due == 0, "one who left holds up no other"
    await index.close()


async def test_who_registers_waits_for_none_of_the_cards_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cards of one owner that are due without end made every other one wait, for 5 s."""
    monkeypatch.setattr(offer_index, "FOLLOWED_MAX_S", 1e9)
    monkeypatch.setattr(offer_index, "FOLLOW_PAUSE_S", 0.0)
    index = Index()
    index.is_endless = True
    index.ends.set()
    async with asyncio.timeout(10):
        await followed(index)
        waiting = asyncio.create_task(followed(index, 2))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done(), "its own are due"
        index.due = 2
        await waiting
    await index.close()


async def test_many_searches_have_changed_cards_read_once() -> None:
    index = Index()
    index.ends.set()
    index.due = 1
    for _ in range(3):
        index.follow()
    while index.due:
        await asyncio.sleep(0)
    await index.close()
    index.follow()
    await index.close()
