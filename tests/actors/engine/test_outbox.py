"""Outboxes: a watcher hears of every finished workflow once, in one poll per wave."""

from __future__ import annotations

import asyncio

from actors.engine.outbox import Outboxes


async def test_a_poll_that_waits_is_woken_by_the_first_finish() -> None:
    boxes = Outboxes()
    poll = asyncio.ensure_future(boxes.take("w", 30.0))
    await asyncio.sleep(0)
    boxes.put("a", {"w", "other"})
    assert await poll == ["a"]
    assert await boxes.take("other", 0.0) == ["a"]


async def test_what_finished_before_the_poll_is_handed_over_once() -> None:
    boxes = Outboxes()
    boxes.put("a", {"w"})
    boxes.put("b", {"w"})
    assert await boxes.take("w", 30.0) == ["a", "b"]
    assert await boxes.take("w", 0.001) == []
