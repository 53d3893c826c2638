"""Turns of callers within a replica. Decision 0191."""

from __future__ import annotations

import asyncio
from collections import Counter
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


@pytest.mark.parametrize("burst", [2 * AT_ONCE, 3 * AT_ONCE, 3 * AT_ONCE + 1])
@pytest.mark.parametrize("pause_turns", range(4))
async def test_a_burst_and_what_follows_it_are_not_more_in_a_turn(
    burst: int, pause_turns: int
) -> None:
    """The last four that had waited and four fresh ones went on in one turn."""
    turns = RequestTurns()
    passed = Counter[int]()
    turn = 0

    async def request() -> None:
        await turns.take(GREEDY)
        passed[turn] += 1

    async with asyncio.TaskGroup() as group:
        for begun in (burst, *pause_turns * [0], *5 * [AT_ONCE]):
            turn += 1
            for _ in range(begun):
                group.create_task(request())
            await asyncio.sleep(0)
        while passed.total() < burst + 5 * AT_ONCE:
            turn += 1
            await asyncio.sleep(0)
    assert max(passed.values()) == AT_ONCE


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
