"""The dispatcher's turns at real HTTP agents: own lines, payers in turn, hanging agents aside,
and places that are held for as long as an agent works on what it has accepted."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from actors.ports import Contact, DispatchOrder
from core.errors import NodeErrorCode
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Verdict,
    WorkStarted,
)
from tests.actors.dispatch.test_dispatcher import PATIENCE_S, Scene, scene
from tests.platform.waiting import until


class Agents:
    """Serves `/hang` for ever and everything else at once; `gated` waits for `gate`.

    `/later` and `/gatedlater` accept, the others deliver.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.nodes: list[str] = []
        self.open_now = 0
        self.open_max = 0

    async def serve(self, request: web.Request) -> web.Response:
        """Answer a dispatch."""
        self.nodes.append((await request.json())["nodeId"])
        self.open_now += 1
        self.open_max = max(self.open_max, self.open_now)
        try:
            if request.path == "/hang":
                await asyncio.Event().wait()
            if request.path.startswith("/gated"):
                await self.gate.wait()
        finally:
            self.open_now -= 1
        if request.path.endswith("later"):
            return web.json_response({"ok": True}, status=202)
        return web.json_response({"status": "success", "result": {}})

    async def wait_nodes(self, count: int) -> None:
        """Return when so many dispatches have arrived."""
        await until(lambda: len(self.nodes) >= count)


def send(here: Scene, path: str, node: str, **fields: object) -> DispatchOrder:
    """Send an order to the agent at this path; its events go to the scene."""
    order = here.order(url=f"{here.url}{path}", agent_did=f"did:x:{path[1:]}", node=node, **fields)
    here.dispatcher.send(order, lambda _, event: here.events.put_nowait(event))
    return order


async def ends(here: Scene, count: int) -> list[Event]:
    """Return the next events that end an attempt."""
    found: list[Event] = []
    while len(found) < count:
        event = await asyncio.wait_for(here.events.get(), PATIENCE_S)
        if not isinstance(event, WorkStarted):
            found.append(event)
    return found


async def test_payers_take_turns_at_an_agent_by_weight() -> None:
    agents = Agents()
    weights = ("did:x:heavy=2",)
    async with scene(agents.serve, agent_concurrency=1, payer_weights=weights) as here:
        send(here, "/gated", "first", payer_did="did:x:greedy")
        for number in range(4):
            send(here, "/gated", f"greedy{number}", payer_did="did:x:greedy")
        for payer in ("modest", "heavy"):
            for number in range(2):
                send(here, "/gated", f"{payer}{number}", payer_did=f"did:x:{payer}")
        await agents.wait_nodes(1)
        agents.gate.set()
        await ends(here, 9)
    assert agents.nodes == [
        "first", "greedy0", "modest0", "heavy0", "heavy1", "greedy1", "modest1", "greedy2",
        "greedy3",
    ]  # fmt: skip


@pytest.mark.slow
async def test_a_nodes_clock_starts_when_its_request_is_written_not_in_the_queue() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        hanging = here.order(url=f"{here.url}/hang", node="h", timeout_ms=1_000)
        here.dispatcher.send(hanging, lambda _, event: here.events.put_nowait(event))
        waiting = here.order(url=f"{here.url}/well", node="w", timeout_ms=1_000)
        here.dispatcher.send(waiting, lambda _, event: here.events.put_nowait(event))
        first, second = await ends(here, 2)
    assert isinstance(first, AttemptFailed)
    assert first.failure.code is NodeErrorCode.AGENT_TIMEOUT
    assert isinstance(second, AttemptSucceeded)
    assert second.started_ms >= first.at_ms


async def test_what_waits_for_an_agent_out_of_reach_is_answered_at_once() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        send(here, "/gated", "open")
        for number in range(3):
            send(here, "/gated", f"n{number}")
        await agents.wait_nodes(1)
        here.dispatcher.refuse_waiting("did:x:gated")
        for event in await ends(here, 3):
            assert isinstance(event, AttemptFailed)
            failure = event.failure
            assert (failure.code, failure.details, failure.verdict) == (
                NodeErrorCode.AGENT_UNAVAILABLE,
                "agent_unhealthy",
                Verdict.RETRYABLE,
            )
        agents.gate.set()
        (last,) = await ends(here, 1)
        assert isinstance(last, AttemptSucceeded)
        assert here.dispatcher.statistics().queued == 0
    assert agents.nodes == ["open"]


async def test_what_waits_for_others_stays_when_an_agent_is_out_of_reach_for_one_payer() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        send(here, "/gated", "open", payer_did="did:x:hasty")
        for number in range(2):
            send(here, "/gated", f"h{number}", payer_did="did:x:hasty")
        send(here, "/gated", "patient", payer_did="did:x:patient")
        await agents.wait_nodes(1)
        here.dispatcher.refuse_waiting("did:x:gated", "did:x:hasty")
        refused = await ends(here, 2)
        assert all(isinstance(event, AttemptFailed) for event in refused)
        assert here.dispatcher.statistics().queued == 1
        agents.gate.set()
        assert all(isinstance(event, AttemptSucceeded) for event in await ends(here, 2))
    assert agents.nodes == ["open", "patient"]


def raising(_: str, event: Event) -> None:
    """Receive an event as a receiver with a defect does."""
    raise RuntimeError("a defect")


async def test_a_receiver_that_raises_stops_no_other_order() -> None:
    """Its order began in the turn of others, and no order began after it."""
    agents = Agents()
    async with scene(agents.serve) as here:
        bad = here.order(url=f"{here.url}/well", agent_did="did:x:bad", node="bad")
        here.dispatcher.send(bad, raising)
        send(here, "/well", "good")
        (event,) = await ends(here, 1)
        assert isinstance(event, AttemptSucceeded)
        send(here, "/well", "later")
        (event,) = await ends(here, 1)
        assert isinstance(event, AttemptSucceeded)
        await agents.wait_nodes(3)
        await until(lambda: not here.dispatcher.statistics().in_flight)


async def test_a_receiver_that_raises_keeps_no_other_waiting_order_unanswered() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        send(here, "/gated", "open")
        bad = here.order(url=f"{here.url}/gated", agent_did="did:x:gated", node="bad")
        here.dispatcher.send(bad, raising)
        send(here, "/gated", "good")
        await agents.wait_nodes(1)
        here.dispatcher.refuse_waiting("did:x:gated")
        (event,) = await ends(here, 1)
        assert isinstance(event, AttemptFailed) and event.node == "good"


async def test_an_aborted_order_that_waits_is_never_sent_and_nobody_is_told() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        send(here, "/gated", "open")
        unwanted = send(here, "/gated", "unwanted")
        send(here, "/gated", "wanted")
        await agents.wait_nodes(1)
        here.dispatcher.abort(unwanted, "user_request")
        agents.gate.set()
        assert [getattr(event, "node", "") for event in await ends(here, 2)] == ["open", "wanted"]
        assert here.contacts == [Contact.UNKNOWN, Contact.REACHED, Contact.REACHED]
    assert agents.nodes == ["open", "wanted"], "neither a dispatch nor a notice"


async def test_an_order_aborted_in_the_turn_in_which_it_was_sent_frees_its_place() -> None:
    """As when one batch of outcomes sends a child and halts its workflow."""
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        unwanted = send(here, "/gated", "unwanted")
        assert here.dispatcher.statistics().in_flight == 1
        here.dispatcher.abort(unwanted, "user_request")
        assert here.dispatcher.statistics().in_flight == 0
        send(here, "/gated", "wanted")
        agents.gate.set()
        assert [getattr(event, "node", "") for event in await ends(here, 1)] == ["wanted"]
    assert agents.nodes == ["wanted"], "neither a dispatch nor a notice"


async def test_an_order_aborted_by_who_hears_of_its_start_is_not_sent() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        order = here.order(url=f"{here.url}/gated", agent_did="did:x:gated", node="unwanted")

        def abort(_: str, event: Event) -> None:
            assert isinstance(event, WorkStarted), event
            here.dispatcher.abort(order, "user_request")

        here.dispatcher.send(order, abort)
        agents.gate.set()
        send(here, "/gated", "wanted")
        assert [getattr(event, "node", "") for event in await ends(here, 1)] == ["wanted"]
        assert here.dispatcher.statistics().in_flight == 0
    assert agents.nodes == ["wanted"], "neither a dispatch nor a notice"


async def test_an_attempt_that_was_given_up_says_nothing_about_its_agent() -> None:
    agents = Agents()
    async with scene(agents.serve) as here:
        order = send(here, "/hang", "h")
        await agents.wait_nodes(1)
        here.dispatcher.abort(order, "user_request")
        await until(lambda: here.contacts)
        assert here.contacts == [Contact.UNKNOWN]


async def test_what_an_agent_has_accepted_counts_until_it_ends() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=2) as here:
        orders = [send(here, "/later", f"n{number}") for number in range(4)]
        accepted = await ends(here, 2)
        assert all(isinstance(event, AttemptAccepted) for event in accepted)
        found = here.dispatcher.statistics()
        assert (found.in_flight, found.queued, found.accepted) == (0, 2, 2)
        assert sorted(agents.nodes) == ["n0", "n1"]
        here.dispatcher.release(orders[1])
        (third,) = await ends(here, 1)
        assert getattr(third, "node", "") == "n2"
        here.dispatcher.abort(orders[0], "user_request")
        (fourth,) = await ends(here, 1)
        assert getattr(fourth, "node", "") == "n3"
        for order in orders:
            here.dispatcher.release(order)  # of what has ended already, that says nothing new
        found = here.dispatcher.statistics()
        assert (found.in_flight, found.queued, found.accepted) == (0, 0, 0)


@pytest.mark.slow
async def test_an_accepted_place_is_held_no_longer_than_the_attempt_may_take() -> None:
    """The first one's end is never told: the word was lost between two machines."""
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        send(here, "/later", "forgotten", timeout_ms=1_000)
        send(here, "/later", "next")
        accepted = await ends(here, 2)
        assert [getattr(event, "node", "") for event in accepted] == ["forgotten", "next"]


async def test_an_order_whose_result_overtook_its_acceptance_holds_nothing() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        order = send(here, "/gatedlater", "a")
        await agents.wait_nodes(1)
        here.dispatcher.release(order)
        assert here.dispatcher.statistics().in_flight == 1, "the request goes on"
        agents.gate.set()
        await ends(here, 1)
        found = here.dispatcher.statistics()
        assert (found.in_flight, found.accepted) == (0, 0)


async def test_an_order_accepted_from_an_earlier_process_takes_its_place_again() -> None:
    agents = Agents()
    async with scene(agents.serve, agent_concurrency=1) as here:
        earlier = here.order(agent_did="did:x:well", node="earlier")
        here.dispatcher.hold(earlier)
        send(here, "/well", "n")
        found = here.dispatcher.statistics()
        assert (found.queued, found.accepted) == (1, 1)
        here.dispatcher.release(earlier)
        assert isinstance((await ends(here, 1))[0], AttemptSucceeded)
