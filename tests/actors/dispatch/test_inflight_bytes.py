"""Large dispatches on their way: counted per payer, bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from actors.dispatch import dispatcher
from actors.ports import DispatchOrder, InputSources
from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledNode, compile_workflow
from core.workflow.events import AttemptFailed, AttemptSucceeded, Event, WorkStarted
from tests.actors.dispatch.test_dispatcher import PATIENCE_S, Scene, replying, scene
from tests.actors.orders import sources_of
from tests.platform.waiting import until

MIB = 1024 * 1024
WHOLE = sources_of(parents={"p": "x" * 100_000})
LARGE = sources_of({"text": "x" * MIB})
# What is built in the loop, at its bound.
DENSE = sources_of({"items": [{"n": number} for number in range(1_000)]})
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
    await until(lambda: len(nodes) >= here.dispatcher.statistics().sent)
    return nodes


async def test_bodies_that_are_not_read_are_bounded_and_leave_others_room() -> None:
    """100 such orders of 6 MiB took 1.2 GB; all places of a payer would have taken 7 GB."""
    # A body of 6 MiB, of which the sockets take some.
    large = InputSources(node_of({"text": "x" * 3 * MIB}), {"p": "1"})
    with never_reading() as sink:
        async with scene(GOOD, inflight_large=4) as here:
            hanging = [
                here.order(node=f"n{n}", url=sink, cancel_url=sink, sources=large, payer_did=GREEDY)
                for n in range(10)
            ]
            nodes = await begun(here, hanging)
            assert 0 < here.dispatcher._large.total == len(nodes) <= 4
            assert here.dispatcher.waiting_of(GREEDY) == len(hanging) - len(nodes)
            for sources in (sources_of(), large):
                async with asyncio.timeout(PATIENCE_S):
                    done = await here.outcome(
                        agent_did="did:x:good", payer_did=OTHER, sources=sources
                    )
                assert isinstance(done, AttemptSucceeded)
            # Its own orders go on when its places are free.
            for order in hanging:
                here.dispatcher.abort(order, "user_request")
            assert here.dispatcher._large.total == 0
            done = await here.outcome(agent_did="did:x:good", sources=large, payer_did=GREEDY)
            assert isinstance(done, AttemptSucceeded)
    assert here.dispatcher._large.total == 0


async def test_a_body_that_is_written_counts_no_more_while_the_agent_works() -> None:
    may_answer, came = asyncio.Event(), asyncio.Event()

    async def work(request: web.Request) -> web.Response:
        await request.read()
        came.set()
        await may_answer.wait()
        return web.json_response({"status": "success", "result": {}})

    async with scene(work, inflight_large=1) as here:
        sent = asyncio.create_task(here.outcome(sources=LARGE))
        async with asyncio.timeout(PATIENCE_S):
            await came.wait()
            await until(lambda: not here.dispatcher._large.total)
        assert here.dispatcher.statistics().in_flight == 1
        may_answer.set()
        assert isinstance(await sent, AttemptSucceeded)


async def test_orders_begin_in_slices_of_the_loop() -> None:
    """100 of 1 MiB held it for 1.5 s; of those that are built in it, many may begin at once."""
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
        async with scene(GOOD, inflight_start=200) as here:
            counting = asyncio.create_task(count())
            for n in range(200):
                did = f"did:x:{n}"
                order = here.order(agent_did=did, node=f"n{n}", url=sink, sources=DENSE)
                here.dispatcher.send(order, receive)
            await until(lambda: len(begun_in) >= 200)
            ends.set()
            await counting
    assert len(set(begun_in)) > 3


async def test_large_orders_come_to_the_loop_one_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """28 of 3.8 MB, of which nothing is mapped, were read and written in one turn of 287 ms."""
    turn = 0
    written_in: list[int] = []
    real = dispatcher.dispatch_body

    def write(*arguments: Any) -> bytes:
        written_in.append(turn)
        return real(*arguments)

    monkeypatch.setattr(dispatcher, "dispatch_body", write)
    with never_reading() as sink:
        async with scene(GOOD) as here:
            for n in range(10):
                order = here.order(agent_did=f"did:x:{n}", node=f"n{n}", url=sink, sources=WHOLE)
                here.dispatcher.send(order, lambda *_: None)
            async with asyncio.timeout(PATIENCE_S):
                while len(written_in) < 10:
                    turn += 1
                    await asyncio.sleep(0)
    assert len(set(written_in)) == 10


def node_of(payload: dict[str, Any]) -> CompiledNode:
    """Return a node with a parent."""
    node = {"capabilityId": "cap.x.v1", "payload": payload, "dependsOn": ["p"]}
    nodes = {"p": {"capabilityId": "cap.x.v1"}, "n": node}
    return compile_workflow(parse_manifest({"nodes": nodes})).nodes["n"]


async def test_a_body_that_the_agent_does_not_take_is_given_up() -> None:
    """It held its bytes for as long as the payer allowed the node to work, up to 29 days."""
    large = sources_of({"text": "x" * 3 * MIB})
    with never_reading() as sink:
        async with scene(GOOD, transfer_timeout_s=1, transfer_rate_min=10**9) as here:
            done = await here.outcome(url=sink, sources=large, timeout_ms=3_600_000)
            assert isinstance(done, AttemptFailed)
            assert done.failure.is_spared
            assert "not taken within 1 s" in done.failure.message
            assert here.dispatcher._large.total == 0


async def test_a_body_that_is_not_taken_is_given_up_by_no_dispatcher_that_is_closed() -> None:
    """Its timer went on, and its event reached a runner that had ended."""
    large = sources_of({"text": "x" * 3 * MIB})
    with never_reading() as sink:
        async with scene(GOOD) as here:
            here.dispatcher.send(here.order(url=sink, sources=large), lambda *_: None)
            (ticket,) = here.dispatcher._tickets.values()
            await until(lambda: ticket.untaken is not None)
    assert ticket.untaken.cancelled()
