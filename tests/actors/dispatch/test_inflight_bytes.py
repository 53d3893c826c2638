"""The bytes of dispatches on their way: estimated, counted per payer, bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from aiohttp import web

from actors.dispatch.dispatcher import Dispatcher, _Ticket
from actors.dispatch.envelope import SAMPLED_MAX, estimate_bytes
from actors.ports import DispatchOrder
from core.workflow.events import AttemptSucceeded, Event, WorkStarted
from tests.actors.dispatch.test_dispatcher import PATIENCE_S, Scene, replying, scene

MIB = 1024 * 1024
BYTES_MAX = 8 * MIB
GOOD = replying(status="success", result={})
GREEDY, OTHER = "did:x:greedy", "did:x:other"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: they write to sockets in ways of their own."""
    return "asyncio", {"use_uvloop": request.param}


@contextmanager
def never_reading() -> Iterator[str]:
    """Listen where connections are accepted by the kernel alone, and not read."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def begun(here: Scene, orders: list[DispatchOrder]) -> set[str]:
    """Send orders, wait until those that may have begun, and return their nodes."""
    nodes: set[str] = set()

    def receive(_: str, event: Event) -> None:
        if isinstance(event, WorkStarted):
            nodes.add(event.node)

    for order in orders:
        here.dispatcher.send(order, receive)
    while len(nodes) < here.dispatcher.statistics().sent:
        await asyncio.sleep(0.001)
    return nodes


async def test_bodies_that_nobody_reads_are_bounded_and_leave_others_room() -> None:
    """100 such orders of 6 MiB took 1.2 GB; all places of a payer would have taken 7 GB."""
    large = {"text": "x" * 3 * MIB}  # a body of 6 MiB, of which the sockets take some
    room = 16 * MIB
    with never_reading() as sink:
        async with scene(GOOD, inflight_bytes_max=room) as here:
            hanging = [
                here.order(node=f"n{n}", url=sink, cancel_url=sink, inputs=large, payer_did=GREEDY)
                for n in range(10)
            ]
            nodes = await begun(here, hanging)
            assert 0 < here.dispatcher._bytes.total < room + BYTES_MAX
            assert len(nodes) < len(hanging)
            assert here.dispatcher.waiting_of(GREEDY) == len(hanging) - len(nodes)
            done = await here.outcome(agent_did="did:x:good", payer_did=OTHER)
            assert isinstance(done, AttemptSucceeded)
            # Its own orders go on when its bytes are free.
            for order in hanging:
                here.dispatcher.abort(order, "user_request")
            assert here.dispatcher._bytes.total == 0
            done = await here.outcome(agent_did="did:x:good", inputs=large, payer_did=GREEDY)
            assert isinstance(done, AttemptSucceeded)
    assert here.dispatcher._bytes.total == 0


@pytest.mark.parametrize(
    ("other_held", "given_back", "waiting"),
    [
        (17 * MIB // 2, MIB, {OTHER: 3}),
        (4 * MIB, 11 * MIB // 2, {}),
        (8 * MIB - 1, MIB // 10, {}),
    ],
    ids=["its own payer has room", "all have room", "its own payer had room before"],
)
async def test_bytes_that_are_given_back_let_those_go_that_have_room_then(
    monkeypatch: pytest.MonkeyPatch, other_held: int, given_back: int, waiting: dict[str, int]
) -> None:
    """Where their own payer had room before, the orders of others waited for a timer."""
    monkeypatch.setattr("actors.dispatch.dispatcher.AGED_MS", 3_600_000)
    never = asyncio.Event()

    async def work(_: web.Request) -> web.Response:
        await never.wait()
        raise AssertionError

    async with scene(work, inflight_bytes_max=9 * MIB) as here:
        held = here.dispatcher._bytes
        held.change(OTHER, 0, other_held)
        held.change(GREEDY, 0, given_back)
        for number, payer in enumerate([GREEDY, OTHER] * 3):
            order = here.order(payer_did=payer, agent_did=f"did:x:{number}")
            here.dispatcher.send(order, lambda *_: None)
        assert here.dispatcher.waiting_of(OTHER) == 3
        ended = _Ticket(here.order(payer_did=GREEDY), lambda *_: None, bytes_held=given_back)
        here.dispatcher._hold_bytes(ended, 0)
        found = {payer: here.dispatcher.waiting_of(payer) for payer in (GREEDY, OTHER)}
        assert {payer: count for payer, count in found.items() if count} == waiting


async def test_a_body_that_is_written_counts_no_more_while_the_agent_works() -> None:
    may_answer, came = asyncio.Event(), asyncio.Event()

    async def work(request: web.Request) -> web.Response:
        await request.read()
        came.set()
        await may_answer.wait()
        return web.json_response({"status": "success", "result": {}})

    async with scene(work, inflight_bytes_max=MIB) as here:
        sent = asyncio.create_task(here.outcome(inputs={"text": "x" * MIB}))
        async with asyncio.timeout(PATIENCE_S):
            await came.wait()
            while here.dispatcher._bytes.total:
                await asyncio.sleep(0.001)
        assert here.dispatcher.statistics().in_flight == 1
        may_answer.set()
        assert isinstance(await sent, AttemptSucceeded)


async def test_large_orders_begin_in_slices_of_the_loop() -> None:
    """100 of them held the loop for 1.5 s."""
    turns = 0
    begun_in: list[int] = []
    ends = asyncio.Event()

    def receive(_: str, event: Event) -> None:
        if isinstance(event, WorkStarted):
            begun_in.append(turns)

    async def count() -> None:
        nonlocal turns
        while not ends.is_set():
            turns += 1
            await asyncio.sleep(0)

    with never_reading() as sink:
        async with scene(GOOD) as here:
            counting = asyncio.create_task(count())
            for n in range(30):
                order = here.order(node=f"n{n}", url=sink, inputs={"text": "x" * MIB})
                here.dispatcher.send(order, receive)
            async with asyncio.timeout(PATIENCE_S):
                while len(begun_in) < 30:
                    await asyncio.sleep(0)
            ends.set()
            await counting
    assert len(set(begun_in)) > 3


@pytest.mark.parametrize(
    ("inputs", "parents", "low", "high"),
    [
        ({}, {}, 0, 0),
        ({"a": "x" * 8_000}, {}, 0, 0),
        ({"a": "x" * 9_000}, {}, 18_000, 19_000),
        ({"a": "x" * MIB, "b": {"c": ["y" * MIB]}}, {}, 4 * MIB, 5 * MIB),
        ({}, {"p": {"result": "x" * MIB}}, MIB, 2 * MIB),
        ({"many": [0] * (SAMPLED_MAX + 1)}, {}, BYTES_MAX, BYTES_MAX),
        ({"a": "x" * 9 * MIB}, {}, BYTES_MAX, BYTES_MAX),
    ],
)
def test_a_body_is_estimated_before_it_is_built(
    inputs: dict[str, Any], parents: dict[str, Any], low: int, high: int
) -> None:
    order = Scene(cast(Dispatcher, None), "http://x").order(inputs=inputs, parents=parents)
    assert low <= estimate_bytes(order, BYTES_MAX) <= high
