"""What is done for many workflows at once lets the loop turn in between.

Method: each of a hundred items costs a millisecond of work; a task that only counts turns has to
get some while they are worked on. How long a turn takes is not asserted. Decision
fairness-and-long-work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from actors.transport.channel import Channel
from core.workflow.events import Event
from tests.actors.dispatch.test_dispatcher_turns import Agents, scene, send
from tests.platform.waiting import until

ITEMS = 100
WORK_S = 0.001
# A hundred milliseconds of work in slices of five, on a machine that may stand still for most.
TURNS_MIN = 5


def work(_: object = None) -> None:
    """Hold the loop for a millisecond."""
    ends = time.perf_counter() + WORK_S
    while time.perf_counter() < ends:
        pass


@asynccontextmanager
async def counting() -> AsyncIterator[list[int]]:
    """Count the turns of the loop within the block."""
    turns = [0]

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            turns[0] += 1

    task = asyncio.create_task(count())
    await asyncio.sleep(0)
    turns[0] = 0
    yield turns
    task.cancel()


async def test_outcomes_of_one_batch_are_delivered_in_slices() -> None:
    async def call(batch: list[int]) -> Sequence[int]:
        return batch

    channel: Channel[int, int] = Channel("test", call, capacity=ITEMS, batch_size=ITEMS)
    during: list[int] = []
    async with counting() as turns:
        for value in range(ITEMS):
            channel.submit(value, lambda reply: (work(), during.append(turns[0])))
        await until(lambda: len(during) >= ITEMS)
    assert during[-1] - during[0] >= TURNS_MIN


async def test_orders_that_wait_for_an_agent_out_of_reach_are_refused_in_slices() -> None:
    """A thousand workflows' orders at once held the owner until it was killed as silent."""
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here, counting() as turns:
        send(here, "/gated", "open")
        await agents.wait_nodes(1)
        during: list[int] = []

        def receive(_: str, event: Event) -> None:
            work()
            during.append(turns[0])

        for number in range(ITEMS):
            fields = {"url": f"{here.url}/gated", "agent_did": "did:x:gated"}
            here.dispatcher.send(here.order(node=f"n{number}", **fields), receive)
        here.dispatcher.refuse_waiting("did:x:gated")
        here.dispatcher.refuse_waiting("did:x:gated")  # shares the first
        await until(lambda: len(during) >= ITEMS)
        assert during[-1] - during[0] >= TURNS_MIN
        assert here.dispatcher.statistics().queued == 0
        agents.gate.set()
