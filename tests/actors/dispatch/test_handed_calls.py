"""A shard that is handed over: what comes of its open calls goes to the recipient alone."""

from __future__ import annotations

from collections import Counter

import pytest

from actors.dispatch.handed_calls import HandedCall, HandedShard
from actors.dispatch.peer_messages import RETURNS
from actors.dispatch.remote_dispatch import RemoteDispatch
from actors.process.loop_clock import LoopClock
from core.workflow.events import (
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Verdict,
)
from tests.actors.dispatch.machines import (
    ORDERS,
    WORKFLOW,
    Machines,
    three_machines,
)

pytestmark = pytest.mark.anyio


def hint(to: str, call: HandedCall) -> list[bytes]:
    """Return what tells a member of one call that machine `a` has handed over."""
    return [RETURNS.encode(HandedShard("a", 0, 1, (call,), (), to))]


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
        handed = HandedShard("a", 0, 1, tuple(calls), (), "b")
        machines.spreads["a"].tell_handed("b", handed, [])
        heard: Counter[str] = Counter()

        def receive(_: str, event: Event) -> None:
            if isinstance(event, AttemptSucceeded):
                heard[event.node] += 1

        machines.gate.set()
        await machines.wait(lambda: set(machines.spreads["b"]._handed) == {c.serial for c in calls})
        for call in calls:
            machines.spreads["b"].expect(call.serial, machines.order(call.node), receive)
        await machines.wait(lambda: len(heard) == 6)
        assert set(heard.values()) == {1}
        assert machines.heard == {}, "the giver hears nothing of them"
        assert set(machines.seen.values()) == {1}


async def test_a_handed_call_whose_giver_ends_is_lost_and_one_without_a_workflow_is_closed() -> (
    None
):
    async with three_machines() as machines:
        machines.gate.clear()
        order = machines.orders["x"] = machines.order("x")
        other = machines.orders["y"] = machines.order("y")
        for one in (order, other):
            machines.dispatchers["a"].send(one, lambda *_: None)
        await machines.wait(lambda: len(machines.seen) == 2)
        found = [handed_of(machines, node) for node in "xy"]
        calls = [call for one in found if one is not None for call in one[1:]]
        machines.spreads["a"].tell_handed("b", HandedShard("a", 0, 1, tuple(calls), (), "b"), [])
        await machines.wait(lambda: len(machines.spreads["b"]._handed) == 2)
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


async def test_a_hint_for_a_process_that_has_ended_is_nothing_to_its_successor() -> None:
    """Messages go to an address, where a successor awaited calls whose events no member returned.

    The giver keeps them for the member that it gave the shard to, and drops their events when that
    is gone: the successor's workflows waited until their deadline.
    """
    async with three_machines() as machines:
        machines.gate.clear()
        order = machines.orders["x"] = machines.order("x")
        machines.dispatchers["a"].send(order, lambda *_: None)
        await machines.wait(lambda: len(machines.seen) == 1)
        found = handed_of(machines, "x")
        assert found is not None
        hints: list[HandedShard] = []
        machines.spreads["b"] = RemoteDispatch(
            machines.dispatchers["b"],
            "b2",
            now_ms=LoopClock().now_ms,
            is_always=True,
            on_handed=hints.append,
        )
        machines.spreads["b"].deliver(hint("b", found[1]))
        assert not machines.spreads["b"]._handed
        assert hints == []
        machines.spreads["b"].deliver(hint("b2", found[1]))
        assert len(hints) == 1


async def test_an_event_that_cannot_travel_is_a_failed_attempt() -> None:
    """Its number has more than 64 bits; the events of its batch were not sent either."""
    async with three_machines() as machines:
        machines.gate.clear()
        order = machines.orders["x"] = machines.order("x")
        machines.dispatchers["a"].send(order, lambda *_: None)
        await machines.wait(lambda: len(machines.seen) == 1)
        found = handed_of(machines, "x")
        assert found is not None
        huge = AttemptSucceeded("x", 1, "{}", None, "", 1, 2, {"n": 10**5_000})
        given = HandedShard("a", 0, 1, found[1:], (), "b")
        machines.spreads["a"].tell_handed("b", given, [(found[0], huge)])
        await machines.wait(lambda: len(machines.spreads["b"]._handed) == 1)
        heard: list[Event] = []
        machines.spreads["b"].expect(
            found[0], machines.order("x"), lambda _, event: heard.append(event)
        )
        await machines.wait(lambda: len(heard) == 1)
        assert isinstance(heard[0], AttemptFailed)


async def test_a_handed_call_is_open_until_its_result_has_arrived() -> None:
    """A machine that is switched off before it would lose the result."""
    async with three_machines() as machines:
        machines.gate.clear()
        order = machines.orders["x"] = machines.order("x")
        machines.dispatchers["a"].send(order, lambda *_: None)
        await machines.wait(lambda: len(machines.seen) == 1)
        found = handed_of(machines, "x")
        assert found is not None
        machines.spreads["a"].tell_handed("b", HandedShard("a", 0, 1, found[1:], (), "b"), [])
        await machines.wait(lambda: len(machines.spreads["b"]._handed) == 1)
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


async def test_a_hint_that_comes_twice_is_heard_once() -> None:
    """It is sent until it is acknowledged: the second would take the calls of the first for old."""
    async with three_machines() as machines:
        hints: list[HandedShard] = []
        recipient = RemoteDispatch(
            machines.dispatchers["b"],
            "b",
            now_ms=LoopClock().now_ms,
            is_always=True,
            on_handed=hints.append,
        )
        hint = HandedShard("a", 0, 1, (HandedCall(7, WORKFLOW, "x", 1, 0),), (), "b")
        recipient.deliver([RETURNS.encode(hint)] * 2)
        recipient.deliver([RETURNS.encode(hint)])
        assert hints == [hint]
        assert list(recipient._handed) == [7]


async def test_calls_that_are_handed_to_a_member_that_has_ended_are_closed() -> None:
    """They held their agents' places until their timeouts, for no workflow."""
    async with three_machines() as machines:
        machines.gate.clear()
        machines.dispatchers["a"].send(machines.order("x"), lambda *_: None)
        order = machines.orders["y"] = machines.order("y")
        machines.dispatchers["a"].send(order, lambda *_: None)
        await machines.wait(lambda: len(machines.seen) == 2)
        found = handed_of(machines, "y")
        assert found is not None
        machines.introduce(a=1, c=1)
        handed = HandedShard("a", 0, 1, (found[1],), (), "b")
        machines.spreads["a"].tell_handed("b", handed, [])
        assert machines.dispatchers["a"].statistics().in_flight == 1
