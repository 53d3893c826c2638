"""Dispatchers of several owners at one agent: real requests, one process."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from aiohttp import web

from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.remote_dispatch import ORDERS, OwnerCalls, RemoteDispatch, Send
from actors.ports import DispatchOrder
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from core.settings import Settings
from core.shards.agent_shares import AgentShares
from core.workflow.events import AttemptSucceeded, Event, WorkStarted
from federation.name_resolver import NameResolver
from tests.actors.orders import order_to, serving
from tests.platform.waiting import until

AGENT = "did:x:a"


class Agent:
    """Counts the requests that are open, by who sent them; they wait for `gate` or `end_one`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.open_by: Counter[str] = Counter()
        self.open_max = 0
        self.order: list[str] = []
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def open_now(self) -> int:
        """Return how many requests are open."""
        return self.open_by.total()

    async def end_one(self) -> None:
        """Answer the oldest request that is open; return when it has ended."""
        answered = len(self.order)
        self._waiting.popleft().set_result(None)
        await until(lambda: len(self.order) > answered)

    async def serve(self, request: web.Request) -> web.Response:
        """Answer a dispatch after some turns of the loop."""
        name = (await request.json())["nodeId"][:2]
        self.open_by[name] += 1
        self.open_max = max(self.open_max, self.open_now)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        opened = asyncio.ensure_future(self.gate.wait())
        await asyncio.wait([opened, ended], return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        self.order.append(name)
        self.open_by[name] -= 1
        return web.json_response({"status": "success", "result": {}})


class Owner:
    """One owner: its dispatcher and its share of the agent."""

    def __init__(self, name: str, limit: int, url: str) -> None:
        self.name, self.url = name, url
        self.ended: list[Event] = []
        self.shares = AgentShares(name, lambda _: limit)
        clock = LoopClock()
        self.dispatcher = Dispatcher(
            Settings(deployment_key="00" * 32),
            clock,
            begin=lambda _: None,
            note=lambda *_: None,
            names=NameResolver(),
            at_work=AtWork(),
            concurrency_of=self.shares.own,
        )
        self.remote = RemoteDispatch(
            self.dispatcher, name, now_ms=clock.now_ms, is_always=False, shares=self.shares
        )

    def send(self, count: int) -> None:
        """Send orders to the agent."""
        for number in range(count):
            order = order_of(f"{self.name}-{number}", self.url)
            self.remote.send(order, lambda _, event: self._receive(event))

    def _receive(self, event: Event) -> None:
        if not isinstance(event, WorkStarted):
            self.ended.append(event)


def order_of(node: str, url: str) -> DispatchOrder:
    """Return an order to the agent."""
    return order_to(url, node=node, payer_did=node[:2])


@dataclass
class Shared:
    """An agent and the owners at it."""

    agent: Agent
    url: str
    owners: dict[str, Owner] = field(default_factory=dict)

    def join(self, count: int, limit: int) -> list[Owner]:
        """Let so many owners join; all know each other then."""
        for _ in range(count):
            name = f"m{len(self.owners)}"
            self.owners[name] = Owner(name, limit, self.url)
        for one in self.owners.values():
            one.shares.set_owners(self.owners)
            one.remote.set_members(
                {name: partial(self._calls, name) for name in self.owners if name != one.name}
            )
            one.dispatcher.wake()
        return list(self.owners.values())

    def _calls(self, name: str) -> OwnerCalls:
        async def call(take: str, bodies: list[bytes]) -> list[bool]:
            await asyncio.sleep(0)
            taken: list[bool] = getattr(self.owners[name].remote, take)(bodies)
            return taken

        return OwnerCalls(partial(call, "accept"))


@asynccontextmanager
async def shared_agent() -> AsyncIterator[Shared]:
    """Run an agent, and owners as they join."""
    agent = Agent()
    async with serving({"/node": agent.serve}) as url:
        shared = Shared(agent, url)
        try:
            yield shared
        finally:
            agent.gate.set()
            for one in shared.owners.values():
                one.remote.set_members({})
                await one.dispatcher.close()


@pytest.mark.parametrize("limit", [1, 2, 4], ids="{} calls".format)
async def test_one_owner_gets_all_of_an_agent_that_the_others_do_not_use(limit: int) -> None:
    """With fewer calls than owners, one without a share sends its orders to those that have one."""
    async with shared_agent() as shared:
        owners = shared.join(3, limit)
        first = min(owners, key=lambda one: one.shares.own(AGENT))
        first.send(40)
        await until(lambda: shared.agent.open_now == limit)
        shared.agent.gate.set()
        await until(lambda: len(first.ended) == 40)
        assert {type(event) for event in first.ended} == {AttemptSucceeded}
        assert shared.agent.open_max == limit


@pytest.mark.parametrize("limit", [2, 4], ids="{} calls".format)
async def test_all_owners_go_on_together_within_the_limit(limit: int) -> None:
    async with shared_agent() as shared:
        owners = shared.join(3, limit)
        for one in owners:
            one.send(40)
        await until(lambda: shared.agent.open_now == limit)
        for _ in range(60):
            await shared.agent.end_one()
            await until(lambda: shared.agent.open_now == limit)
        shared.agent.gate.set()
        await until(lambda: all(len(one.ended) == 40 for one in owners))
        assert shared.agent.open_max == limit
        assert set(shared.agent.order[:60]) == {"m0", "m1", "m2"}, "none waits for the others' end"
        ended = [event for one in owners for event in one.ended]
        assert {type(event) for event in ended} == {AttemptSucceeded}
        assert len(shared.agent.order) == 120, "each was sent once"


async def test_owner_that_was_alone_shares_with_one_that_joins() -> None:
    async with shared_agent() as shared:
        (first,) = shared.join(1, 4)
        first.send(20)
        await until(lambda: shared.agent.open_now == 4)
        _, second = shared.join(1, 4)
        second.send(20)
        for _ in range(8):
            await shared.agent.end_one()
            await until(lambda: shared.agent.open_now >= 4)
        assert shared.agent.open_by == {"m0": 2, "m1": 2}
        shared.agent.gate.set()
        await until(lambda: len(first.ended) == len(second.ended) == 20)
        assert shared.agent.open_max <= 6, "its open calls and the other's share"


async def test_cancelled_order_that_waits_at_another_owner_is_never_sent() -> None:
    async with shared_agent() as shared:
        owners = shared.join(3, 1)
        first = min(owners, key=lambda one: one.shares.own(AGENT))
        first.send(1)
        await until(lambda: shared.agent.open_now == 1)
        order = order_of("late", first.url)
        first.remote.send(order, lambda _, event: first.ended.append(event))
        await until(lambda: sum(one.dispatcher.waiting for one in owners if one is not first) == 1)
        first.remote.abort(order, "user_request")
        await until(lambda: not any(one.dispatcher.waiting for one in owners))
        shared.agent.gate.set()
        await until(lambda: len(first.ended) == 1)
        assert shared.agent.order == [first.name]


async def test_an_offer_that_would_have_to_wait_is_refused() -> None:
    async with shared_agent() as shared:
        first, second = shared.join(2, 2)
        second.send(1)
        await until(lambda: shared.agent.open_now == 1)
        offer = Send(1, first.name, order_of("offer", first.url), is_offer=True)
        assert second.remote.accept([ORDERS.encode(offer)]) == [False]
        assert second.dispatcher.waiting == 0
