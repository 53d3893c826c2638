"""Cancel notices: places for each payer, nothing kept of those sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from aiohttp import web

from actors.dispatch.cancel_notices import SENT_MAX, WAITING_MAX
from tests.actors.dispatch.test_dispatcher import PATIENCE_S, Scene, scene
from tests.platform.waiting import until

GREEDY, OTHER = "did:x:greedy", "did:x:other"
SECONDS_60 = {"cancel_notice_timeout_ms": 60_000}


class Agents:
    """Serves `/hang` until it may end, and everything else at once."""

    def __init__(self) -> None:
        self.may_end, self.told = asyncio.Event(), asyncio.Event()
        self.came: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []

    async def serve(self, request: web.Request) -> web.Response:
        """Take a notice."""
        self.came[request.path] += 1
        self.bodies.append(await request.json())
        if request.path == "/hang":
            await self.may_end.wait()
        else:
            self.told.set()
        return web.Response()


def notify(here: Scene, payer: str, path: str, count: int = 1) -> None:
    order = here.order(cancel_url=here.url.removesuffix("/") + path, payer_did=payer)
    for _ in range(count):
        here.dispatcher.notify(order, "user_request")


async def test_a_payers_notices_leave_room_for_anothers() -> None:
    """2,000 notices to an agent that hangs displaced those of every other payer."""
    agents = Agents()
    async with scene(agents.serve, **SECONDS_60) as here:
        notify(here, GREEDY, "/hang", 2 * WAITING_MAX)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: agents.came["/hang"] >= SENT_MAX)
            notify(here, OTHER, "/told")
            await agents.told.wait()
        assert agents.came["/hang"] == SENT_MAX
        assert len(here.dispatcher._notices._open) <= WAITING_MAX + 1
        agents.may_end.set()


async def test_notices_of_one_payer_go_on_when_others_of_it_end() -> None:
    agents = Agents()
    async with scene(agents.serve, **SECONDS_60) as here:
        agents.may_end.set()
        notify(here, GREEDY, "/hang", 3 * SENT_MAX)
        await until(lambda: not here.dispatcher._notices._open)
    assert agents.came["/hang"] == 3 * SENT_MAX


async def test_a_notice_that_cannot_be_sent_stops_no_other() -> None:
    agents = Agents()
    async with scene(agents.serve) as here:
        here.dispatcher.notify(here.order(cancel_url="nowhere"), "user_request")
        notify(here, GREEDY, "/told")
        async with asyncio.timeout(PATIENCE_S):
            await agents.told.wait()


async def test_a_notice_names_the_id_that_its_dispatch_had() -> None:
    """A verifier got the id of the attempt that it was to verify, which it had never seen."""
    agents = Agents()
    async with scene(agents.serve) as here:
        for fields in ({}, {"is_verification": True, "verify_attempt": 1}):
            order = here.order(**fields)
            agents.bodies.clear()
            await here.outcome(**fields)
            here.dispatcher.notify(order, "user_request")
            await until(lambda: len(agents.bodies) >= 2)
            dispatched, cancelled = agents.bodies
            assert cancelled["eventId"] == dispatched["eventId"]
