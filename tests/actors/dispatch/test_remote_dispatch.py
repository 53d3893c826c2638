"""Dispatches over several machines' loops, with messages between them lost and repeated.

Real dispatchers and a real HTTP agent; between the machines a wire that loses a request, loses the
answer to one that was carried out, or carries it out twice.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from actors.dispatch.remote_dispatch import ORDERS as ORDERS_WIRE
from actors.dispatch.remote_dispatch import End, OrderMessage, RemoteDispatch, Send
from actors.ports import DispatchOrder
from actors.process.loop_clock import LoopClock
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    WorkStarted,
)
from tests.actors.dispatch.machines import (
    ORDERS,
    Machines,
    three_machines,
)
from tests.platform.waiting import until


def encoded(*messages: OrderMessage) -> list[bytes]:
    """Return messages as they travel."""
    return [ORDERS_WIRE.encode(message) for message in messages]


async def test_each_machine_sends_its_share() -> None:
    async with three_machines() as machines:
        await machines.send_and_hear(ORDERS)
        sent = [dispatcher.statistics().sent for dispatcher in machines.dispatchers.values()]
        assert sent == [ORDERS // 3] * 3
        assert set(machines.seen.values()) == {1}


@pytest.mark.parametrize(
    "chances",
    [{"repeated": 0.6}, {"request_lost": 0.2, "answer_lost": 0.2, "repeated": 0.3}],
    ids=["requests repeated", "all of it"],
)
async def test_every_order_is_answered_once_over_a_bad_wire(chances: dict[str, float]) -> None:
    async with three_machines(**chances) as machines:
        for number in range(ORDERS):
            machines.send(f"n{number}")
            await asyncio.sleep(0)
        await until(lambda: len(machines.heard) == ORDERS)
        await machines.wait_idle()
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
        await machines.hold(3)
        await machines.dispatchers["b"].close()  # its process died: no reply will ever come
        machines.dispatchers["b"] = machines.dispatchers["c"]
        machines.introduce(**after)
        machines.gate.set()
        await until(lambda: len(machines.heard) == 3)
        assert [len(events) for events in machines.heard.values()] == [1, 1, 1]
        assert sum(key.endswith("#2") for key in machines.seen) == 1


async def test_a_machine_that_cannot_be_reached_is_avoided_for_a_while() -> None:
    """Lost attempts are repeated at once: without a pause they would run in a circle."""
    async with three_machines() as machines:
        machines.wire.is_cut = True
        await machines.send_and_hear(ORDERS)
        assert max(int(key.partition("#")[2]) for key in machines.seen) <= 4


async def test_what_waits_is_counted_also_on_its_way_to_another_machine() -> None:
    async with three_machines() as machines:
        for number in range(9):
            machines.send(f"n{number}")
        assert machines.spreads["a"].waiting == 6, "its own share has left at once"
        await until(lambda: len(machines.heard) == 9)
        assert machines.spreads["a"].waiting == 0


@pytest.mark.parametrize(
    "chances", [{}, {"answer_lost": 0.4, "repeated": 0.3}], ids=["good", "bad"]
)
async def test_accepted_orders_hold_their_places_where_they_were_sent_until_they_end(
    chances: dict[str, float],
) -> None:
    async with three_machines(**chances) as machines:
        await machines.send_and_hear(9, path="/later")
        assert all(type(events[0]) is AttemptAccepted for events in machines.heard.values())
        if not chances:
            assert machines.accepted() == {"a": 3, "b": 3, "c": 3}
        assert sum(machines.accepted().values()) >= 9
        machines.release_all()
        await until(lambda: sum(machines.accepted().values()) == 0)


@pytest.mark.parametrize("after", [{"a": 1, "c": 1}, {"a": 1, "b": 2, "c": 1}], ids=["gone", "new"])
async def test_accepted_orders_of_a_machine_that_is_gone_hold_their_places_at_their_owner(
    after: dict[str, int],
) -> None:
    async with three_machines() as machines:
        await machines.send_and_hear(3, path="/later")
        machines.introduce(**after)
        assert machines.accepted()["a"] == 2, "its own and the one that was at b"
        assert [len(events) for events in machines.heard.values()] == [1, 1, 1], "none is lost"
        machines.release_all()
        await until(lambda: machines.accepted()["a"] == machines.accepted()["c"] == 0)


async def test_places_held_for_an_owner_that_was_started_anew_are_free() -> None:
    """It takes the places of what it restores itself."""
    async with three_machines() as machines:
        await machines.send_and_hear(3, path="/later")
        machines.introduce(a=2, b=1, c=1)
        assert machines.accepted() == {"a": 1, "b": 0, "c": 0}


async def test_an_order_that_ended_before_its_acceptance_was_heard_holds_nothing() -> None:
    async with three_machines() as machines:
        await machines.hold(3, path="/later")
        machines.release_all()
        machines.gate.set()
        await machines.wait_idle()
        await until(lambda: sum(machines.accepted().values()) == 0)
        assert set(machines.heard) == {"n0"}, "the reply to its own machine's order is delivered"


@pytest.mark.parametrize(
    "chances", [{}, {"request_lost": 0.4, "answer_lost": 0.4, "repeated": 0.3}], ids=["good", "bad"]
)
async def test_an_abort_closes_the_request_at_the_machine_that_sent_it(
    chances: dict[str, float],
) -> None:
    """Its socket and the agent's place were taken until the reply, 30 days at most."""
    async with three_machines() as machines:
        await machines.hold(6)
        for name, chance in chances.items():
            setattr(machines.wire, name, chance)
        for order in machines.orders.values():
            machines.spreads["a"].abort(order, "user_request")
        await machines.wait_idle()
        assert not machines.heard
        assert set(machines.seen.values()) == {1}


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
        await until(lambda: machines.seen["v#1"] == 1)
        spread.abort(first, "error")
        await until(lambda: machines.dispatchers["b"].statistics().in_flight == 0)
        machines.send("n2")
        machines.send("n3")
        send_verification()
        machines.gate.set()
        await until(lambda: len(heard) == 1)
        assert machines.seen["v#1"] == 2
        assert machines.dispatchers["b"].statistics().sent == 2, "both were sent from there"


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
        await until(lambda: len(machines.seen) == 9)
        machines.introduce(a=1, c=1)
        assert [getattr(event, "node", "") for event in heard] == ["n1", "n7"]


async def test_replies_are_kept_for_a_machine_out_of_reach_however_many_wait() -> None:
    """They follow from accepted orders: one that was refused was lost, and its node hung."""
    async with three_machines() as machines:
        await machines.hold(12)
        machines.wire.is_cut = True
        for name in "bc":
            machines.spreads[name]._peers["a"]._capacity = 1
        machines.gate.set()
        await machines.wait_idle()
        machines.wire.is_cut = False
        await until(lambda: len(machines.heard) == 12)
    assert all(isinstance(events[0], AttemptSucceeded) for events in machines.heard.values())


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
        await until(lambda: len(machines.heard) == 8)


async def test_an_event_that_its_owner_cannot_read_is_a_failed_attempt() -> None:
    """An owner of an older version would wait for it until the workflow's deadline."""
    async with three_machines() as machines:
        machines.wire.newer = b"AttemptSucceeded", b"AttemptSurpassed"
        await machines.send_and_hear(3)
        failures = [machines.heard[node][0] for node in ("n1", "n2")]
        assert all(isinstance(event, AttemptFailed) for event in failures), failures
        assert all(
            event.failure.is_spared for event in failures if isinstance(event, AttemptFailed)
        )
        assert isinstance(machines.heard["n0"][0], AttemptSucceeded), "it did not travel"


async def test_an_acceptance_that_its_owner_cannot_read_holds_no_place() -> None:
    async with three_machines() as machines:
        machines.wire.newer = b"AttemptAccepted", b"AttemptAdmitted"
        await machines.send_and_hear(3, path="/later")
        await until(lambda: machines.accepted() == {"a": 1, "b": 0, "c": 0})
        assert [type(machines.heard[node][0]) for node in ("n0", "n1", "n2")] == [
            AttemptAccepted,
            AttemptFailed,
            AttemptFailed,
        ]


async def test_an_order_that_the_other_machine_cannot_read_is_sent_from_here() -> None:
    async with three_machines() as machines:
        machines.wire.newer = b"\xa4Send", b"\xa4Pass"
        await machines.send_and_hear(ORDERS)
        assert all(isinstance(events[0], AttemptSucceeded) for events in machines.heard.values())
        assert [one.statistics().sent for one in machines.dispatchers.values()] == [ORDERS, 0, 0]


async def test_an_order_that_cannot_travel_ends_here() -> None:
    """A number of more than 64 bits; the orders of its batch were not sent either."""
    async with three_machines() as machines:
        spread, heard = machines.spreads["a"], list[Event]()
        machines.send("n0")  # the next one goes to `b`
        order = machines.order("n1")
        assert order.sources is not None
        node = replace(order.sources.node, payload={"n": 10**5_000})
        spread.send(
            replace(order, sources=replace(order.sources, node=node)),
            lambda _, event: heard.append(event),
        )
        await until(lambda: any(not isinstance(one, WorkStarted) for one in heard))
        assert machines.dispatchers["b"].statistics().sent == 0


async def test_an_acceptance_that_nobody_waits_for_frees_its_place() -> None:
    """The owner's process is new; the other machine has not heard of that yet."""
    async with three_machines() as machines:
        await machines.hold(3, path="/later")
        local = machines.dispatchers["a"]
        machines.spreads["a"] = RemoteDispatch(
            local, "a", now_ms=LoopClock().now_ms, is_always=True
        )
        machines.introduce(a=1, b=1, c=1)
        machines.gate.set()
        await machines.wait_idle()
        await until(lambda: machines.accepted()["b"] == machines.accepted()["c"] == 0)


def only(machines: Machines, own: str, *others: str) -> None:
    """Let a machine know these others."""
    machines.spreads[own].set_members({name: partial(machines.calls, name) for name in others})


async def test_events_for_a_member_that_is_not_known_for_a_while_reach_it_later() -> None:
    """Its lease had expired for a moment, or it has just joined: its events were dropped.

    It waited for them until its workflow's deadline.
    """
    async with three_machines() as machines:
        await machines.hold(3)
        only(machines, "b", "c")
        machines.gate.set()
        await until(lambda: machines.dispatchers["b"].statistics().in_flight == 0)
        only(machines, "b", "a", "c")
        await until(lambda: len(machines.heard) == 3)
        assert set(machines.seen.values()) == {1}


async def test_what_is_not_sent_yet_for_a_member_whose_lease_has_expired_never_is() -> None:
    """The member that takes its shards repeats it; if it lives on, it hears of the loss."""
    async with three_machines() as machines:
        machines.gate.clear()
        orders = [machines.order(f"n{number}") for number in range(ORDERS)]
        sends = [Send(number, "a", order) for number, order in enumerate(orders)]
        late = [Send(1_000 + number, "a", machines.order(f"late{number}")) for number in range(5)]
        machines.spreads["b"].accept(encoded(*sends, *late))
        await until(lambda: len(machines.seen) == ORDERS)
        only(machines, "b", "c")
        machines.gate.set()
        await until(lambda: machines.dispatchers["b"].statistics().in_flight == 0)
        assert not [name for name in machines.seen if name.startswith("late")]
        assert machines.spreads["b"].waiting == 0


async def test_accepted_orders_are_no_open_calls() -> None:
    """Their agents hand the results in, wherever they were sent."""
    async with three_machines() as machines:
        for number in range(3):
            machines.send(f"n{number}", path="/later")
        await until(lambda: machines.accepted() == {"a": 1, "b": 1, "c": 1})
        await until(lambda: all(not one.open_calls for one in machines.spreads.values()))
        machines.release_all()
        await until(lambda: machines.accepted() == {"a": 0, "b": 0, "c": 0})
        assert machines.spreads["a"].open_calls == 0


@pytest.mark.parametrize("is_on_its_way", [True, False], ids=["on its way", "not sent yet"])
async def test_orders_of_a_member_without_a_lease_are_not_sent_by_others(
    *, is_on_its_way: bool
) -> None:
    """It was suspended: the others have leases, and another member had taken its shards."""
    async with three_machines() as machines:
        may_send = is_on_its_way
        machines.spreads["a"] = RemoteDispatch(
            machines.dispatchers["a"],
            "a",
            now_ms=LoopClock().now_ms,
            is_always=True,
            may_send=lambda: may_send,
        )
        machines.introduce(a=1, b=1, c=1)
        for number in range(3):
            machines.send(f"n{number}")
        may_send = False
        await until(lambda: len(machines.heard) == 3)
        sent = {name: one.statistics().sent for name, one in machines.dispatchers.items()}
        assert sent == {"a": 3, "b": 0, "c": 0}
        assert sum(key.endswith("#2") for key in machines.seen) == (2 if is_on_its_way else 0)


async def test_an_order_of_a_member_that_has_ended_is_not_sent() -> None:
    """It was on its way while its machine was cut off; another member has taken its shards."""
    async with three_machines() as machines:
        sent = encoded(Send(7, "a", machines.order("n0")))
        only(machines, "b", "c")
        assert machines.spreads["b"].accept(sent) == [False]
        assert machines.dispatchers["b"].statistics().in_flight == 0
        only(machines, "b", "a", "c")
        assert machines.spreads["b"].accept(sent) == [True]
        await until(lambda: machines.seen["n0#1"] == 1)


async def test_what_one_message_raises_is_its_own_refusal() -> None:
    """The call failed for the whole batch, which its sender repeats until it is answered: every
    event of that member waited behind it for ever."""
    async with three_machines() as machines:
        spread, taken = machines.spreads["b"], list[int]()

        def end(sending: tuple[str, int], *, is_abort: bool = False) -> None:
            if sending[1] == 2:
                raise RuntimeError("a defect")
            taken.append(sending[1])

        spread._end_foreign = end  # type: ignore[method-assign]
        bodies = encoded(End(1, "a"), End(2, "a"), End(3, "a"))
        assert spread.accept([*bodies, b"no message"]) == [True, False, True, False]
        assert taken == [1, 3]
