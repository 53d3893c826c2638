"""When changed cards are read: beside those who register, none of them left for later."""

from __future__ import annotations

import asyncio

from ledger.agents.offer_index import OfferIndex


class Index(OfferIndex):
    """An index whose steps see what is due when they begin, and end when the test says so."""

    def __init__(self) -> None:
        super().__init__("postgresql://nowhere")
        self.due = 0
        self.ends = asyncio.Event()

    async def index_some(self) -> int:
        """Read all that was due when the step began."""
        seen, self.due = self.due, 0
        await self.ends.wait()
        return seen


async def test_what_is_registered_during_the_last_step_is_read_without_a_search() -> None:
    index = Index()
    index.follow()
    await asyncio.sleep(0)
    index.due = 5  # committed after the step's snapshot
    index.follow()
    index.ends.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert index.due == 0
    await index.close()
