"""How long the restore of a given shard waits for what its giver tells."""

from __future__ import annotations

import asyncio

import pytest

from actors.shards import hint_waits
from actors.shards.held_shards import HeldShards
from actors.shards.hint_waits import HintWaits
from core.shards.lease_messages import HeldShard

pytestmark = pytest.mark.anyio

SHARD = 5


def held_after(*others: HeldShard, epoch: int = 3) -> HeldShards:
    """Return what a member holds that has seen these holders of a shard before."""
    held = HeldShards("me")
    for other in others:
        held.note_other(SHARD, other)
    held.add(SHARD, epoch)
    return held


async def begun(waits: HintWaits) -> asyncio.Task[None]:
    """Return a wait that is under way, or over."""
    task = asyncio.create_task(waits.wait(SHARD))
    await turns()
    return task


async def turns() -> None:
    """Let everything go on that need not wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_giver_is_the_one_that_held_the_shard_just_before() -> None:
    assert held_after(HeldShard("giver", 2), HeldShard("older", 1)).giver(SHARD) == "giver"
    assert held_after(HeldShard("older", 1)).giver(SHARD) == ""
    assert held_after().giver(SHARD) == ""


async def test_a_hint_is_waited_for_while_its_giver_lives() -> None:
    """It was waited for half a second, and on a busy machine the agents were called again."""
    waits = HintWaits(held_after(HeldShard("giver", 2)))
    waits.set_live({"giver", "other"})
    waiting = await begun(waits)
    waits.set_live({"giver"})
    await asyncio.sleep(0)
    assert not waiting.done(), "another member's end says nothing of the giver"
    waits.set_live({"other"})
    await turns()
    assert waiting.done()


async def test_nothing_is_waited_for_when_the_giver_has_ended_before() -> None:
    waits = HintWaits(held_after(HeldShard("giver", 2)))
    waits.set_live({"other"})
    assert (await begun(waits)).done()


async def test_a_giver_that_is_not_known_is_one_of_those_that_live() -> None:
    waits = HintWaits(held_after(HeldShard("older", 1)))
    assert (await begun(waits)).done(), "no member lives that could have given it"
    waits.set_live({"one", "two"})
    waiting = await begun(waits)
    waits.set_live({"one", "two", "three"})
    await asyncio.sleep(0)
    assert not waiting.done()
    waits.set_live({"one", "three"})
    await turns()
    assert waiting.done()


async def test_a_wait_ends_with_the_hint() -> None:
    waits = HintWaits(held_after(HeldShard("giver", 2)))
    waits.set_live({"giver"})
    waiting = await begun(waits)
    assert not waiting.done()
    waits.end(SHARD)
    waits.end(SHARD)
    await turns()
    assert waiting.done()
    assert repr(waits) == "<HintWaits []>"


async def test_a_giver_that_lives_and_tells_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hint_waits, "HINT_TIMEOUT_S", 0.01)
    waits = HintWaits(held_after(HeldShard("giver", 2)))
    waits.set_live({"giver"})
    async with asyncio.timeout(60):
        await waits.wait(SHARD)
    assert repr(waits) == "<HintWaits []>"
