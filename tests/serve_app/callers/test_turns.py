"""Turns of callers within a replica. Decision 0191."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from serve_app.callers.turns import AT_ONCE, RequestTurns

pytestmark = pytest.mark.anyio

GREEDY, OTHER = "did:x:greedy", "did:x:other"


async def request(turns: RequestTurns, holder: str, order: list[str]) -> None:
    """Wait for the holder's turn and add it to the order."""
    await turns.take(holder)
    order.append(holder)


async def test_a_burst_of_one_caller_lets_others_through() -> None:
    turns = RequestTurns()
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(10 * AT_ONCE):
            group.create_task(request(turns, GREEDY, order))
        await asyncio.sleep(0)
        assert order == [GREEDY] * AT_ONCE
        group.create_task(request(turns, OTHER, order))
    assert order.index(OTHER) <= 3 * AT_ONCE
    assert len(order) == 10 * AT_ONCE + 1


async def test_a_lone_caller_never_waits() -> None:
    turns = RequestTurns()
    for _ in range(AT_ONCE):
        taken = turns.take(OTHER)
        with pytest.raises(StopIteration):
            taken.send(None)


async def test_waiting_callers_are_served_in_turn() -> None:
    turns = RequestTurns()
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        for holder in (GREEDY, OTHER):
            for _ in range(2 * AT_ONCE):
                group.create_task(request(turns, holder, order))
    late = order[2 * AT_ONCE :]
    assert late == [GREEDY, OTHER] * AT_ONCE


async def test_a_client_that_leaves_takes_no_turn() -> None:
    turns = RequestTurns()
    tasks = [asyncio.create_task(turns.take(GREEDY)) for _ in range(AT_ONCE + 3)]
    await asyncio.sleep(0)
    for task in tasks[AT_ONCE:]:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert len(turns._waiting) == 0
    await asyncio.wait_for(turns.take(GREEDY), 5)
