"""When changed cards are read: beside those who register, none of them left for later."""

from __future__ import annotations

import asyncio

import pytest

from ledger.agents import offer_index
from ledger.agents.offer_index import OfferIndex

pytestmark = pytest.mark.anyio


class Index(OfferIndex):
    """An index whose steps see what is due when they begin, and end when the test says so."""

    def __init__(self) -> None:
        super().__init__("postgresql://nowhere")
        self.due = self.read = 0
        self.ends = asyncio.Event()

    async def index_some(self) -> int:
        """Read all that was due when the step began."""
        seen, self.due = self.due, 0
        await self.ends.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        self.read += seen
        return seen


async def test_what_is_registered_during_the_last_step_is_read_without_a_search() -> None:
    index = Index()
    first = asyncio.create_task(index.followed())
    await asyncio.sleep(0)
    index.due = 5  # committed after the step's snapshot
    second = asyncio.create_task(index.followed())
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
    await index.followed()
    index.ends.set()
    index.due = 1
    await index.followed()
    assert index.due == 0, "one who left holds up no other"
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
