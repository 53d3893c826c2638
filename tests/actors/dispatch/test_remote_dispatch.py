"""Dispatches over several machines' loops, with messages between them lost and repeated.

Real dispatchers and a real HTTP agent; between the machines a wire that loses a request, loses the
answer to one that was carried out, or carries it out twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from actors.dispatch import remote_dispatch
from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.handed_calls import HandedCall, HandedShard
from actors.dispatch.remote_dispatch import Abort, PeerCalls, RemoteDispatch, Send
from actors.ports import DispatchOrder
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from core.settings import Settings
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Verdict,
    WorkStarted,
)
from federation.name_resolver import NameResolver
from tests.actors.orders import sources_of

pytestmark = pytest.mark.anyio

WORKFLOW = "0198c0de-0000-7000-8000-000000000001"
DEADLINE_S = 60.0
ORDERS = 60


@dataclass
class Wire:
    """Carries batches between machines, badly. Chances are of 1."""

    chance: random.Random = field(default_factory=lambda: random.Random(7))
    request_lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0
    is_cut: bool = False

    def to(self, method: Callable[[Any], list[None]]) -> Callable[[Any], Awaitable[list[None]]]:
        """Return the call of a method on another machine."""

        async def call(batch: Any) -> list[None]:
            await asyncio.sleep(0)
            if self.is_cut or self.chance.random() < self.request_lost:
                raise ConnectionError("the request was lost")
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

    def introduce(self, *draining: str, **epochs: int) -> None:
        """Let every machine know the members there: of each, the process of this number."""
        for own, spread in self.spreads.items():
            spread.set_peers(
                {
                    name + number * (number != "1"): PeerCalls(
                        self.wire.to(partial(self.called, name, "accept")),
                        self.wire.to(partial(self.called, name, "deliver")),
                    )
                    for name, number in ((n, str(e)) for n, e in epochs.items())
                    if name != own
                },
                draining,
            )

    def called(self, name: str, method: str, batch: Any) -> list[None]:
        """Call a machine's process as it is now."""
        answer: list[None] = getattr(self.spreads[name], method)(batch)
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

    def order(self, node: str, attempt: int = 1, *, path: str = "/node") -> DispatchOrder:
        """Return an order to the agent."""
        return DispatchOrder(
            workflow_id=WORKFLOW,
            task_id="t",
            node=node,
            attempt=attempt,
            capability_id="cap.x.v1",
            agent_did="did:x:a",
            url=f"{self.url}{path}",
            cancel_url=f"{self.url}/cancel",
            secret=None,
            timeout_ms=60_000,
            sources=sources_of(),
        )

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)


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

    application = web.Application()

    async def accept(request: web.Request) -> web.Response:
        await work(request)
        return web.json_response({"ok": True}, status=202)

    application.router.add_post("/node", work)
    application.router.add_post("/later", accept)
    server = web.AppRunner(application, shutdown_timeout=0.1)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
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
    url = f"http://127.0.0.1:{server.addresses[0][1]}"
    wire = Wire(**chances)  # type: ignore[arg-type]
    machines = Machines(spreads, dispatchers, wire, url, seen, gate)
    machines.introduce(a=1, b=1, c=1)
    try:
        yield machines
    finally:
        gate.set()
        machines.introduce()
        for dispatcher in dispatchers.values():
            await dispatcher.close()
        await server.cleanup()


async def test_each_machine_sends_its_share() -> None:
    async with three_machines() as machines:
        for number in range(ORDERS):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.heard) == ORDERS)
        sent = [dispatcher.statistics().sent for dispatcher in machines.dispatchers.values()]
        assert sent == [ORDERS // 3] * 3
        assert set(machines.seen.values()) == {1}


@pytest.mark.parametrize(
    "chances",
    [
        {"request_lost": 0.4},
        {"answer_lost": 0.4},
        {"repeated": 0.6},
        {"request_lost": 0.2, "answer_lost": 0.2, "repeated": 0.3},
    ],
    ids=["requests lost", "answers lost", "requests repeated", "all of it"],
)
async def test_every_order_is_answered_once_over_a_bad_wire(chances: dict[str, float]) -> None:
    async with three_machines(**chances) as machines:
        for number in range(ORDERS):
            machines.send(f"n{number}")
            await asyncio.sleep(0)
        await machines.wait(lambda: len(machines.heard) == ORDERS)
        await machines.wait(
            lambda: all(not d.statistics().in_flight for d in machines.dispatchers.values())
        )
        assert all(len(events) == 1 for events in machines.heard.values())
        assert all(isinstance(events[0], AttemptSucceeded) for events in machines.heard.values())
        if chances.keys() == {"repeated"}:
            assert set(machines.seen.values()) == {1}, "an order that came twice left twice"


@pytest.mark.parametrize("after", [{"a": 1, "c": 1}, {"a": 1, "b": 2, "c": 1}], ids=["gone", "new"])
async def test_orders_of_a_machine_that_is_gone_or_new_are_lost_at_once(
    after: dict[str, int],
) -> None:
    """A process that was started anew under its old name knows nothing of what it had accepted."""
    async with three_machines() as machines:
        machines.gate.clear()
        for number in range(3):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.seen) == 3)
        await machines.dispatchers["b"].close()  # its process died: no reply will ever come
        machines.dispatchers["b"] = machines.dispatchers["c"]
        machines.introduce(**after)
        machines.gate.set()
        await machines.wait(lambda: len(machines.heard) == 3)
        assert [len(events) for events in machines.heard.values()] == [1, 1, 1]
        assert sum(key.endswith("#2") for key in machines.seen) == 1


async def test_a_machine_that_cannot_be_reached_is_avoided_for_a_while() -> None:
    """Lost attempts are repeated at once: without a pause they would run in a circle."""
    async with three_machines() as machines:
        machines.wire.is_cut = True
        for number in range(ORDERS):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.heard) == ORDERS)
        assert max(int(key.partition("#")[2]) for key in machines.seen) <= 4


async def test_what_waits_is_counted_also_on_its_way_to_another_machine() -> None:
    async with three_machines() as machines:
        for number in range(9):
            machines.send(f"n{number}")
        assert machines.spreads["a"].waiting == 6, "its own share has left at once"
        await machines.wait(lambda: len(machines.heard) == 9)
        assert machines.spreads["a"].waiting == 0


@pytest.mark.parametrize(
    "chances", [{}, {"answer_lost": 0.4, "repeated": 0.3}], ids=["good", "bad"]
)
async def test_accepted_orders_hold_their_places_where_they_were_sent_until_they_end(
    chances: dict[str, float],
) -> None:
    async with three_machines(**chances) as machines:
        for number in range(9):
            machines.send(f"n{number}", path="/later")
        await machines.wait(lambda: len(machines.heard) == 9)
        assert all(type(events[0]) is AttemptAccepted for events in machines.heard.values())
        if not chances:
            assert machines.accepted() == {"a": 3, "b": 3, "c": 3}
        assert sum(machines.accepted().values()) >= 9
        for order in machines.orders.values():
            machines.spreads["a"].release(order)
        await machines.wait(lambda: sum(machines.accepted().values()) == 0)


@pytest.mark.parametrize("after", [{"a": 1, "c": 1}, {"a": 1, "b": 2, "c": 1}], ids=["gone", "new"])
async def test_accepted_orders_of_a_machine_that_is_gone_hold_their_places_at_their_owner(
    after: dict[str, int],
) -> None:
    async with three_machines() as machines:
        for number in range(3):
            machines.send(f"n{number}", path="/later")
        await machines.wait(lambda: len(machines.heard) == 3)
        machines.introduce(**after)
        assert machines.accepted()["a"] == 2, "its own and the one that was at b"
        assert [len(events) for events in machines.heard.values()] == [1, 1, 1], "none is lost"
        for order in machines.orders.values():
            machines.spreads["a"].release(order)
        await machines.wait(lambda: machines.accepted()["a"] == machines.accepted()["c"] == 0)


async def test_places_held_for_an_owner_that_was_started_anew_are_free() -> None:
    """It takes the places of what it restores itself."""
    async with three_machines() as machines:
        for number in range(3):
            machines.send(f"n{number}", path="/later")
        await machines.wait(lambda: len(machines.heard) == 3)
        machines.introduce(a=2, b=1, c=1)
        assert machines.accepted() == {"a": 1, "b": 0, "c": 0}


async def test_an_order_that_ended_before_its_acceptance_was_heard_holds_nothing() -> None:
    async with three_machines() as machines:
        machines.gate.clear()
        for number in range(3):
            machines.send(f"n{number}", path="/later")
        await machines.wait(lambda: len(machines.seen) == 3)
        for order in machines.orders.values():
            machines.spreads["a"].release(order)
        machines.gate.set()
        await machines.wait(
            lambda: all(d.statistics().in_flight == 0 for d in machines.dispatchers.values())
        )
        await machines.wait(lambda: sum(machines.accepted().values()) == 0)
        assert set(machines.heard) == {"n0"}, "the reply to its own machine's order is delivered"


@pytest.mark.parametrize(
    "chances", [{}, {"request_lost": 0.4, "answer_lost": 0.4, "repeated": 0.3}], ids=["good", "bad"]
)
async def test_an_abort_closes_the_request_at_the_machine_that_sent_it(
    chances: dict[str, float],
) -> None:
    """Its socket and the agent's place were taken until the reply, 30 days at most."""
    async with three_machines() as machines:
        machines.gate.clear()
        for number in range(6):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.seen) == 6)
        for name, chance in chances.items():
            setattr(machines.wire, name, chance)
        for order in machines.orders.values():
            machines.spreads["a"].abort(order, "user_request")
        await machines.wait(
            lambda: all(d.statistics().in_flight == 0 for d in machines.dispatchers.values())
        )
        assert not machines.heard
        assert set(machines.seen.values()) == {1}


async def test_an_abort_that_overtakes_its_order_keeps_it_from_being_sent() -> None:
    async with three_machines() as machines:
        order = machines.order("n")
        machines.spreads["b"].accept([Abort(7, "a"), Send(7, "a", order)])
        assert machines.dispatchers["b"].statistics().in_flight == 0


async def test_an_order_that_is_sent_again_after_its_abort_is_sent() -> None:
    """A halt aborts a verification, and the restore sends it again under its own id.

    The other machine dropped it without a word, and its node waited until the deadline.
    """
    async with three_machines() as machines:
        machines.gate.clear()
        spread, heard = machines.spreads["a"], list[Event]()

        def send_verification() -> DispatchOrder:
            order = replace(machines.order("v"), is_verification=True, verify_attempt=1)
            spread.send(order, lambda _, event: heard.append(event))
            return order

        machines.send("n0")  # from `a`, so that the verification is sent from `b`
        first = send_verification()
        await machines.wait(lambda: machines.seen["v#1"] == 1)
        spread.abort(first, "error")
        await machines.wait(lambda: machines.dispatchers["b"].statistics().in_flight == 0)
        machines.send("n2")
        machines.send("n3")
        send_verification()
        machines.gate.set()
        await machines.wait(lambda: len(heard) == 1)
        assert machines.seen["v#1"] == 2
        assert machines.dispatchers["b"].statistics().sent == 2, "both were sent from there"


async def test_an_order_that_comes_again_while_its_agent_works_on_is_sent_once() -> None:
    async with three_machines() as machines:
        machines.wire.is_cut = True
        sent, other = Send(7, "a", machines.order("n", path="/later")), machines.spreads["b"]
        other.accept([sent])
        await machines.wait(lambda: machines.accepted()["b"] == 1)
        other.accept([sent])
        assert machines.dispatchers["b"].statistics().in_flight == 0


async def test_a_receiver_that_aborts_another_lost_order_keeps_no_third_from_being_lost() -> None:
    """As when a workflow is quarantined by the loss of one of its orders."""
    async with three_machines() as machines:
        machines.gate.clear()
        spread, heard = machines.spreads["a"], list[Event]()
        orders = [machines.order(f"n{number}") for number in range(9)]

        def receive(_: str, event: Event) -> None:
            if isinstance(event, AttemptFailed):
                heard.append(event)
                spread.abort(orders[4], "error")

        for order in orders:  # from `a`, `b` and `c` in turn
            spread.send(order, receive)
        await machines.wait(lambda: len(machines.seen) == 9)
        machines.introduce(a=1, c=1)
        assert [getattr(event, "node", "") for event in heard] == ["n1", "n7"]


async def test_replies_are_kept_for_a_machine_out_of_reach_however_many_wait() -> None:
    """They follow from accepted orders: one that was refused was lost, and its node hung."""
    async with three_machines() as machines:
        machines.gate.clear()
        for number in range(12):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.seen) == 12)
        machines.wire.is_cut = True
        for name in "bc":
            machines.spreads[name]._peers["a"].replies._capacity = 1
        machines.gate.set()
        await machines.wait(
            lambda: all(d.statistics().in_flight == 0 for d in machines.dispatchers.values())
        )
        machines.wire.is_cut = False
        await machines.wait(lambda: len(machines.heard) == 12)
    assert all(isinstance(events[0], AttemptSucceeded) for events in machines.heard.values())


async def test_a_machine_that_refuses_is_logged_once_and_once_when_it_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it refused was repeated five times a second, without a word."""
    monkeypatch.setattr(remote_dispatch, "REPEAT_S", 0.0)
    refusals = iter([RuntimeError("a defect")] * 5)

    async def call(batch: list[int]) -> list[None]:
        for refusal in refusals:
            raise refusal
        return [None] * len(batch)

    with caplog.at_level("INFO"):
        await remote_dispatch._repeat_until_answered("replies to b", call, [1, 2])
        await remote_dispatch._repeat_until_answered("replies to b", call, [3])
    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [
        ("WARNING", True),
        ("INFO", False),
    ]
    assert all("replies to b" in record.message for record in caplog.records)


async def test_an_event_that_its_receiver_refuses_holds_up_no_other() -> None:
    """The machine that returned it repeated it for ever, and all its later ones waited behind."""

    def defective(_: str, event: Event) -> None:
        raise RuntimeError("a defect")

    async with three_machines() as machines:
        for number in range(9):
            machines.send(f"n{number}")
        spread = machines.spreads["a"]
        sent = spread._away
        sent[spread._serial_of[id(machines.orders["n1"])]].receive = defective
        await machines.wait(lambda: len(machines.heard) == 8)


async def test_an_acceptance_that_nobody_waits_for_frees_its_place() -> None:
    """The owner's process is new; the other machine has not heard of that yet."""
    async with three_machines() as machines:
        machines.gate.clear()
        for number in range(3):
            machines.send(f"n{number}", path="/later")
        await machines.wait(lambda: len(machines.seen) == 3)
        local = machines.dispatchers["a"]
        machines.spreads["a"] = RemoteDispatch(
            local, "a", now_ms=LoopClock().now_ms, is_always=True
        )
        machines.introduce(a=1, b=1, c=1)
        machines.gate.set()
        await machines.wait(
            lambda: all(d.statistics().in_flight == 0 for d in machines.dispatchers.values())
        )
        await machines.wait(lambda: machines.accepted()["b"] == machines.accepted()["c"] == 0)


def handed_of(machines: Machines, node: str, to: str = "b") -> tuple[int, HandedCall] | None:
    """Let machine `a` hand an order over; return its number and the call, None if it was unsent."""
    order = machines.orders[node]
    serial = machines.spreads["a"].hand_over(order, to)
    return None if serial is None else (serial, HandedCall(serial, WORKFLOW, node, 1, 0))


@pytest.mark.parametrize(
    "chances", [{}, {"answer_lost": 0.4, "repeated": 0.3}], ids=["good", "bad"]
)
async def test_replies_to_calls_that_were_handed_over_are_heard_by_the_recipient_alone(
    chances: dict[str, float],
) -> None:
    """Whichever machine has sent them: `a` itself, or `b` and `c` for it."""
    async with three_machines() as machines:
        machines.gate.clear()
        for number in range(6):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.seen) == 6)
        for name, chance in chances.items():
            setattr(machines.wire, name, chance)
        found = [handed_of(machines, f"n{number}") for number in range(6)]
        calls = [call for one in found if one is not None for call in one[1:]]
        assert len(calls) == 6
        handed = HandedShard("a", 0, 1, tuple(calls), ())
        machines.spreads["a"].tell_handed("b", handed, [])
        heard: Counter[str] = Counter()

        def receive(_: str, event: Event) -> None:
            if isinstance(event, AttemptSucceeded):
                heard[event.node] += 1

        machines.gate.set()
        await machines.wait(
            lambda: set(machines.spreads["b"].handed()) == {c.serial for c in calls}
        )
        for call in calls:
            machines.spreads["b"].expect(call.serial, machines.order(call.node), receive)
        await machines.wait(lambda: len(heard) == 6)
        assert set(heard.values()) == {1}
        assert machines.heard == {}, "the giver hears nothing of them"
        assert set(machines.seen.values()) == {1}


async def test_a_handed_call_whose_giver_ends_is_lost_and_one_nobody_waits_for_is_closed() -> None:
    async with three_machines() as machines:
        machines.gate.clear()
        order = machines.orders["x"] = machines.order("x")
        other = machines.orders["y"] = machines.order("y")
        for one in (order, other):
            machines.dispatchers["a"].send(one, lambda *_: None)
        await machines.wait(lambda: len(machines.seen) == 2)
        found = [handed_of(machines, node) for node in "xy"]
        calls = [call for one in found if one is not None for call in one[1:]]
        machines.spreads["a"].tell_handed("b", HandedShard("a", 0, 1, tuple(calls), ()), [])
        await machines.wait(lambda: len(machines.spreads["b"].handed()) == 2)
        machines.spreads["b"].forget_handed(calls[1:])
        await machines.wait(lambda: machines.dispatchers["a"].statistics().in_flight == 1)
        events: list[Event] = []
        mine = machines.order("x")
        machines.spreads["b"].expect(calls[0].serial, mine, lambda _, event: events.append(event))
        machines.introduce(b=1, c=1)
        assert isinstance(events[0], AttemptFailed)
        assert events[0].failure.verdict is Verdict.LOST


async def test_an_order_that_waits_in_its_queue_is_dropped_and_not_handed_over() -> None:
    async with three_machines() as machines:
        machines.introduce(a=1)
        machines.gate.clear()
        for number in range(ORDERS + 1):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.seen) == ORDERS)
        waiting = [
            node
            for node, order in machines.orders.items()
            if machines.spreads["a"].hand_over(order, "b") is None
        ]
        assert len(waiting) == 1
        assert machines.dispatchers["a"].waiting == 0


async def test_a_draining_machine_gets_no_orders_of_others_and_ends_what_it_has() -> None:
    async with three_machines() as machines:
        machines.gate.clear()
        for number in range(3):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.seen) == 3)
        machines.introduce("b", a=1, b=1, c=1)
        for number in range(3, ORDERS):
            machines.send(f"n{number}")
        await machines.wait(lambda: len(machines.seen) == ORDERS)
        assert machines.dispatchers["b"].statistics().sent == 1
        assert machines.spreads["b"].open_calls == 1
        assert machines.spreads["a"].open_calls == ORDERS, "wherever they were sent"
        machines.gate.set()
        await machines.wait(lambda: len(machines.heard) == ORDERS)
        assert machines.spreads["a"].open_calls == 0
        await machines.wait(lambda: machines.spreads["b"].open_calls == 0)
        machines.introduce(a=1, b=1, c=1)
        for number in range(3):
            machines.send(f"m{number}")
        await machines.wait(lambda: len(machines.heard) == ORDERS + 3)
        assert machines.dispatchers["b"].statistics().sent == 2, "it was resumed"


async def test_a_handed_call_is_open_until_its_result_has_arrived() -> None:
    """A machine that is switched off before it would lose the result."""
    async with three_machines() as machines:
        machines.gate.clear()
        order = machines.orders["x"] = machines.order("x")
        machines.dispatchers["a"].send(order, lambda *_: None)
        await machines.wait(lambda: len(machines.seen) == 1)
        found = handed_of(machines, "x")
        assert found is not None
        machines.spreads["a"].tell_handed("b", HandedShard("a", 0, 1, found[1:], ()), [])
        await machines.wait(lambda: len(machines.spreads["b"].handed()) == 1)
        heard: list[Event] = []
        mine = machines.order("x")
        machines.spreads["b"].expect(found[0], mine, lambda _, event: heard.append(event))
        assert (machines.spreads["a"].open_calls, machines.spreads["b"].open_calls) == (1, 1)
        machines.wire.is_cut = True
        machines.gate.set()
        await machines.wait(lambda: machines.dispatchers["a"].statistics().in_flight == 0)
        assert (machines.spreads["a"].open_calls, heard) == (1, [])
        machines.wire.is_cut = False
        await machines.wait(lambda: machines.spreads["a"].open_calls == 0)
        assert len(heard) == 1
        assert machines.spreads["b"].open_calls == 0


async def test_accepted_orders_are_no_open_calls() -> None:
    """Their agents hand the results in, wherever they were sent."""
    async with three_machines() as machines:
        for number in range(3):
            machines.send(f"n{number}", path="/later")
        await machines.wait(lambda: machines.accepted() == {"a": 1, "b": 1, "c": 1})
        await machines.wait(lambda: all(not one.open_calls for one in machines.spreads.values()))
        for order in machines.orders.values():
            machines.spreads["a"].release(order)
        await machines.wait(lambda: machines.accepted() == {"a": 0, "b": 0, "c": 0})
        assert machines.spreads["a"].open_calls == 0
