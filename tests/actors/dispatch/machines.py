"""Three machines with real dispatchers, an agent that counts, and a wire that may be bad."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.remote_dispatch import OwnerCalls, RemoteDispatch
from actors.ports import DispatchOrder
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from core.settings import Settings
from core.workflow.events import (
    AttemptFailed,
    Event,
    Verdict,
    WorkStarted,
)
from federation.name_resolver import NameResolver
from tests.actors.orders import order_to, serving
from tests.platform.waiting import until

ORDERS = 60


@dataclass
class Wire:
    """Carries batches between machines, badly. Chances are of 1.

    `newer`: a name in messages, and the name of as many characters that a newer version gives it.
    """

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    request_lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0
    is_cut: bool = False
    newer: tuple[bytes, bytes] = (b"", b"")

    def to(self, method: Callable[[Any], list[bool]]) -> Callable[[Any], Awaitable[list[bool]]]:
        """Return the call of a method on another machine."""

        async def call(batch: Any) -> list[bool]:
            await asyncio.sleep(0)
            if self.is_cut or self.chance.random() < self.request_lost:
                raise ConnectionError("the request was lost")
            if self.newer[0]:
                batch = [body.replace(*self.newer) for body in batch]
            answer = method(batch)
            if self.chance.random() < self.repeated:
                answer = method(batch)
            if self.chance.random() < self.answer_lost:
                raise ConnectionError("the answer was lost")
            return answer

        return call


@dataclass
class Machines:
    """Three machines, who asked the agent how often, and the gate before its answers."""

    spreads: dict[str, RemoteDispatch]
    dispatchers: dict[str, Dispatcher]
    wire: Wire
    url: str
    seen: Counter[str]
    gate: asyncio.Event
    heard: dict[str, list[Event]] = field(default_factory=dict)
    orders: dict[str, DispatchOrder] = field(default_factory=dict)

    def introduce(self, **epochs: int) -> None:
        """Let every machine know the members there: of each, the process of this number."""
        for own, spread in self.spreads.items():
            spread.set_members(
                {
                    name + number * (number != "1"): partial(self.calls, name)
                    for name, number in ((n, str(e)) for n, e in epochs.items())
                    if name != own
                }
            )

    def calls(self, name: str) -> OwnerCalls:
        """Return the calls to a machine."""
        return OwnerCalls(self.wire.to(partial(self.called, name, "accept")))

    def called(self, name: str, method: str, batch: Any) -> list[bool]:
        """Call a machine's process as it is now."""
        answer: list[bool] = getattr(self.spreads[name], method)(batch)
        return answer

    def accepted(self) -> dict[str, int]:
        """Return how many places of accepted orders each machine holds."""
        return {name: d.statistics().accepted for name, d in self.dispatchers.items()}

    def send(self, node: str, attempt: int = 1, *, path: str = "/node") -> None:
        """Send an order from machine `a`; a lost one goes again under its next number."""

        def receive(_: str, event: Event) -> None:
            if isinstance(event, WorkStarted):
                return
            if isinstance(event, AttemptFailed) and event.failure.verdict is Verdict.LOST:
                self.send(node, attempt + 1, path=path)
                return
            self.heard.setdefault(node, []).append(event)

        order = self.orders[node] = self.order(node, attempt, path=path)
        self.spreads["a"].send(order, receive)

    async def send_and_hear(self, count: int, *, path: str = "/node") -> None:
        """Send the orders `n0`, `n1`, … and return when each has an event."""
        for number in range(count):
            self.send(f"n{number}", path=path)
        await until(lambda: len(self.heard) == count)

    async def hold(self, count: int, *, path: str = "/node") -> None:
        """Send the orders `n0`, `n1`, … and return when the agent holds all of them."""
        self.gate.clear()
        for number in range(count):
            self.send(f"n{number}", path=path)
        await until(lambda: len(self.seen) == count)

    async def wait_idle(self) -> None:
        """Return when no machine has a call that is open."""
        await until(lambda: not any(d.statistics().in_flight for d in self.dispatchers.values()))

    def release_all(self) -> None:
        """Free the places of all accepted orders."""
        for order in self.orders.values():
            self.spreads["a"].release(order)

    def order(self, node: str, attempt: int = 1, *, path: str = "/node") -> DispatchOrder:
        """Return an order to the agent."""
        return order_to(self.url, node=node, attempt=attempt, url=f"{self.url}{path}")


@asynccontextmanager
async def three_machines(**chances: float) -> AsyncIterator[Machines]:
    """Run three machines `a`, `b` and `c` that spread always."""
    seen: Counter[str] = Counter()
    gate = asyncio.Event()
    gate.set()

    async def work(request: web.Request) -> web.Response:
        body = await request.json()
        seen[f"{body['nodeId']}#{body['attempt']}"] += 1
        await gate.wait()
        return web.json_response({"eventId": body["eventId"], "status": "success", "result": {}})

    async def accept(request: web.Request) -> web.Response:
        await work(request)
        return web.json_response({"ok": True}, status=202)

    clock = LoopClock()
    settings = Settings(deployment_key="00" * 32, agent_concurrency=ORDERS)
    dispatchers = {
        name: Dispatcher(
            settings,
            clock,
            begin=lambda _: None,
            note=lambda *_, **__: None,
            names=NameResolver(),
            at_work=AtWork(),
        )
        for name in "abc"
    }
    spreads = {
        name: RemoteDispatch(dispatcher, name, now_ms=clock.now_ms, is_always=True)
        for name, dispatcher in dispatchers.items()
    }
    wire = Wire(**chances)  # type: ignore[arg-type]
    async with serving({"/node": work, "/later": accept}) as url:
        machines = Machines(spreads, dispatchers, wire, url, seen, gate)
        machines.introduce(a=1, b=1, c=1)
        try:
            yield machines
        finally:
            gate.set()
            machines.introduce()
            for dispatcher in dispatchers.values():
                await dispatcher.close()
