"""When changed cards are read: beside those who register, none of them left for later."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from core.errors import ErrorCode, ServiceError
from ledger.features import offers as offer_index
from ledger.features.offers import OfferIndex


class Index(OfferIndex):
    """An index whose steps see what is due when they begin, and end when the test says so."""

    def __init__(self) -> None:
        super().__init__("postgresql://nowhere")
        self.due: set[str] = set()
        self.read: set[str] = set()
        self.ends = asyncio.Event()
        # Whether steps have always more to read, of others.
        self.is_endless = False
        self.slow_steps = 0

    async def index_some(self, awaited: Collection[str] = ()) -> set[str]:
        """Read one card that was due when the step began, an awaited one if there is one."""
        seen = sorted(self.due, key=lambda did: (did not in awaited, did))[:1]
        await self.ends.wait()
        await asyncio.sleep(0)
        if self.slow_steps:
            self.slow_steps -= 1
            raise ServiceError(ErrorCode.OVERLOADED, "the step took too long")
        self.due -= {*seen}
        self.read |= {*seen}
        return {*seen} or ({"did:x:other"} if self.is_endless else set())


async def test_what_is_registered_during_the_last_step_is_read_without_a_search() -> None:
    index = Index()
    first = asyncio.create_task(index.followed(["a"]))
    await asyncio.sleep(0)
    index.due = {"b", "c"}  # committed after the step's snapshot
    second = asyncio.create_task(index.followed(["b", "c"]))
    await asyncio.sleep(0)
    assert not first.done()
    index.slow_steps = 1
    index.ends.set()
    await first
    await second
    assert index.read == {"b", "c"}
    await index.close()


async def test_who_waits_for_slow_steps_goes_on_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offer_index, "FOLLOWED_MAX_S", 0.01)
    index = Index()
    await index.followed(["a"])
    index.ends.set()
    index.due = {"b"}
    await index.followed(["b"])
    assert not index.due, "one who left holds up no other"
    await index.close()


async def test_who_registers_waits_for_none_of_the_cards_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cards of one owner that are due without end made every other one wait, for 5 s."""
    monkeypatch.setattr(offer_index, "FOLLOWED_MAX_S", 1e9)
    index = Index()
    index.is_endless = True
    index.ends.set()
    async with asyncio.timeout(10):
        await index.followed(["a"])
        index.due = {"a", "b"}
        await index.followed(["b"])
    assert "b" in index.read
    await index.close()
