"""What counts against an agent, and what nobody can make count. money.md (Promised time,
Reputation);
issue 10b, rows 1 and 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
    unique,
)
from tests.contract.test_execution_async import PATH, begin, handed_in, later, one_node

Json = dict[str, Any]
ROUNDS = 5
# The counts of `GET /v1/reputation/{did}`.
COUNTS = ("totalTasks", "successfulTasks", "failedTasks", "cancelledTasks")
NOTHING = (0, 0, 0, 0)
PRICED = {"price_cents": 10}
FREE = {"price_cents": 0}
AT_ONCE = {**PRICED, "etaMs": 0}


def counts(payer: Caller, agent: RegisteredAgent) -> tuple[int, ...]:
    """Return how many of an agent's outcomes count, in the order of `COUNTS`."""
    read = answer(payer.http.get(f"/v1/reputation/{agent.did}"))
    return tuple(read[name] for name in COUNTS)


def cut_by_timeout(agent: RegisteredAgent) -> Json:
    return one_node(agent.capability, timeoutMs=100, maxRetries=0)


def cut_by_runtime(agent: RegisteredAgent) -> Json:
    return {**one_node(agent.capability, maxRetries=0), "settings": {"maxRuntimeMs": 400}}


CUTS = pytest.mark.parametrize(
    ("cut", "counted"),
    [(cut_by_timeout, (1, 0, 1, 0)), (cut_by_runtime, (1, 0, 0, 1))],
    ids=["timeoutMs", "maxRuntimeMs"],
)
MANNERS = pytest.mark.parametrize(
    "manner", [{"is_held": True}, {"reply": later}], ids=["silent", "accepted"]
)


@CUTS
@MANNERS
def test_a_cut_before_the_promised_time_counts_for_nothing(
    payer: Caller,
    make_agent: MakeAgent,
    manner: Json,
    cut: Callable[[RegisteredAgent], Json],
    counted: tuple[int, ...],
) -> None:
    agent = make_agent(**manner)
    assert payer.run(cut(agent))["status"] in ("failed", "timeout")
    assert counts(payer, agent) == NOTHING


@CUTS
@MANNERS
def test_a_cut_after_the_promised_time_counts(
    payer: Caller,
    make_agent: MakeAgent,
    manner: Json,
    cut: Callable[[RegisteredAgent], Json],
    counted: tuple[int, ...],
) -> None:
    agent = make_agent(price=AT_ONCE, **manner)
    assert payer.run(cut(agent))["status"] in ("failed", "timeout")
    assert counts(payer, agent) == counted


def test_a_card_promises_whole_milliseconds(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(owner=payer, price={**PRICED, "etaMs": 4_000})
    (stored,) = answer(payer.http.get(f"/v1/agents/{agent.did}"))["acard"]["capabilities"]
    assert stored["etaMs"] == 4_000
    card = {**agent.card, "capabilities": [{"id": agent.capability, "etaMs": -1}]}
    refused = refusal(
        payer.http.post("/v1/agents/register", json={"acard": card}), 400, "INVALID_REQUEST"
    )
    assert refused["errors"][0]["path"] == "acard.capabilities[0].etaMs"


def test_short_deadlines_cost_a_bidder_no_stake(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Row 1: with 26 such nodes a payer took three quarters of an agent's stake."""
    owner = make_caller(20)
    price = {"price_cents": 5, "standingBid": {"bidAmount": 0.1}}
    agent = make_agent(owner=owner, price=price, is_held=True, stake=10)
    for cut in ({"timeoutMs": 1}, {"timeoutMs": 1_000}):
        node = {"selection": "auction", "maxCostCredits": 9, "maxRetries": 0, **cut}
        record = payer.run(one_node(agent.capability, **node))
        assert record["status"] == "failed"
    assert answer(owner.http.get(f"/v1/stakes/{agent.did}"))["stakedAmount"] == 10
    assert payer.balance()["balance"] == 100
    assert counts(payer, agent) == NOTHING


@pytest.mark.parametrize("place", ["bid", "card"])
def test_a_deadline_after_the_promised_time_costs_a_bidder_stake(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, place: str
) -> None:
    """A bid's `etaMs` comes before its card's; without either it would be ten seconds."""
    owner = make_caller(20)
    bid: Json = {"bidAmount": 1, **({"etaMs": 0} if place == "bid" else {})}
    card: Json = {"price_cents": 5, "etaMs": 0 if place == "card" else 60_000}
    agent = make_agent(owner=owner, price={**card, "standingBid": bid}, is_held=True, stake=10)
    node = {"selection": "auction", "maxCostCredits": 9, "maxRetries": 0, "timeoutMs": 100}
    assert payer.run(one_node(agent.capability, **node))["status"] == "failed"
    lost = 10 - answer(owner.http.get(f"/v1/stakes/{agent.did}"))["stakedAmount"]
    assert 0 < lost <= 0.1, "a tenth of what is locked, which is at most the bid"
    assert counts(payer, agent) == (1, 0, 1, 0)


def test_nodes_on_agents_of_the_payers_own_count_for_nothing(
    payer: Caller, make_agent: MakeAgent
) -> None:
    """Row 6: 300 of them made a reputation of 0.999."""
    agent = make_agent(owner=payer, price=FREE)
    nodes = {f"n{number}": {"capabilityId": agent.capability} for number in range(ROUNDS)}
    assert payer.run({"nodes": nodes})["status"] == "success"
    assert counts(payer, agent) == NOTHING


def test_what_was_done_for_nothing_does_not_count_for_an_agent_that_asks_a_price(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Row 6: otherwise a reputation is farmed at price 0 and used at a price."""
    owner, dear = make_caller(), unique("cap.test.") + ".v1"
    agent = make_agent(owner=owner, price=FREE)
    nodes = {f"n{number}": {"capabilityId": agent.capability} for number in range(ROUNDS)}
    assert payer.run({"nodes": nodes})["status"] == "success"
    assert counts(payer, agent) == (ROUNDS, ROUNDS, 0, 0), "a free agent is scored by all"
    offered = [*agent.card["capabilities"], {"id": dear, **PRICED}]
    answer(owner.http.patch(f"/v1/agents/{agent.did}", json={"capabilities": offered}))
    assert counts(payer, agent) == NOTHING
    found = answer(payer.http.get("/v1/discover", params={"capabilityId": dear}))["results"]
    assert [one["reputation"] for one in found] == [0.5]
    assert payer.run(one_node(dear))["status"] == "success"
    assert counts(payer, agent) == (1, 1, 0, 0)


def test_what_was_done_for_nothing_does_not_count_for_an_agent_that_bids(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Row 6: its price stays 0, and an auction pays what another bids."""
    owner = make_caller()
    agent = make_agent(owner=owner, price=FREE)
    nodes = {f"n{number}": {"capabilityId": agent.capability} for number in range(ROUNDS)}
    assert payer.run({"nodes": nodes})["status"] == "success"
    offered = [{**agent.card["capabilities"][0], "standingBid": {"bidAmount": 0}}]
    answer(owner.http.patch(f"/v1/agents/{agent.did}", json={"capabilities": offered}))
    assert counts(payer, agent) == NOTHING
    asked = {"capabilityId": agent.capability}
    found = answer(payer.http.get("/v1/discover", params=asked))["results"]
    assert [one["reputation"] for one in found] == [0.5]


def test_what_a_payer_cancels_counts_for_nothing(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True, price=AT_ONCE)
    path = begin(payer, one_node(agent.capability))
    agent.stub.wait_dispatched()
    answer(payer.cancel(path))
    assert payer.finished(path)["status"] == "cancelled"
    assert counts(payer, agent) == NOTHING


def test_what_an_agent_gives_up_after_it_had_accepted_it_counts_as_cancelled(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability, maxRetries=0))
    agent.stub.wait_dispatched()
    body = handed_in(agent.stub.dispatches[0], status="error", error="out of paint")
    body.pop("result")
    answer(anonymous.post(PATH, json=body))
    assert payer.finished(path)["status"] == "failed"
    assert counts(payer, agent) == (1, 0, 0, 1)


def test_feedback_for_an_agent_of_ones_own_is_refused(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    own, foreign = make_agent(owner=payer), make_agent(owner=make_caller())
    nodes = {"a": {"capabilityId": own.capability}, "b": {"capabilityId": foreign.capability}}
    record = payer.run({"nodes": nodes})
    path = f"/v1/workflows/{record['id']}/feedback"
    rating = {"rating": 1, "scale": 1}
    refusal(payer.http.post(path, json={"agentDid": own.did, **rating}), 403, "FORBIDDEN")
    answer(payer.http.post(path, json={"agentDid": foreign.did, **rating}))
