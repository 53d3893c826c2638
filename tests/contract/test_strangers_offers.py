"""A stranger's offer blocks nobody: neither by its price nor by declining the work.

Rows 4 and 5 of issue 10b; money.md (Estimate, Full agents).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.conftest import Caller, Json, MakeAgent, MakeCaller, answer, unique
from tests.contract.stub_agent import Answer

HUGE_CENTS = 10**11
BUDGETS = pytest.mark.parametrize("settings", [{}, {"maxBudgetCredits": 5}], ids=["open", "budget"])
PER_TOKEN = {"pricing": {"model": "per-token", "inputRate": 999, "outputRate": 999}}


def two_nodes(capability: str, settings: Json, **options: Any) -> Json:
    """Return a manifest of two nodes that are ready at once."""
    node = {"capabilityId": capability, **options}
    return {"nodes": {"a": node, "b": {**node}}, "settings": settings}


def approve(dispatch: Json) -> tuple[int, Json]:
    """Approve every result."""
    reply = {"eventId": dispatch["eventId"], "status": "success", "result": {"approved": True}}
    return 200, reply


def spend_tokens(dispatch: Json) -> tuple[int, Json]:
    """Reply with more tokens than any node may pay by a stranger's rates."""
    metrics = {"input_tokens": 1_000, "output_tokens": 1_000}
    reply = {"eventId": dispatch["eventId"], "status": "success", "result": {}, "metrics": metrics}
    return 200, reply


def decline(status: int, **body: Any) -> Answer:
    """Return an answer that declines every dispatch."""
    return lambda dispatch: (status, {"error": "too busy", **body})


@BUDGETS
@pytest.mark.parametrize(
    "price", [{"price_cents": HUGE_CENTS}, PER_TOKEN], ids=["10^11 cents", "by tokens"]
)
def test_row_4_an_honest_agent_works_beside_a_strangers_offer(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, price: Json, settings: Json
) -> None:
    honest = make_agent(price_cents=100)
    make_agent(spend_tokens, price=price, capability=honest.capability, owner=make_caller())
    manifest = two_nodes(honest.capability, settings)
    foreseen = answer(payer.publish({**manifest, "dryRun": True}))
    assert foreseen["estimatedCredits"] <= 6
    record = payer.run(manifest)
    assert record["status"] == "success", record["nodes"]
    assert (record["spentCredits"], payer.balance()["balance"]) == (2, 98)
    assert {node["agentDid"] for node in record["nodes"].values()} == {honest.did}


def test_row_4_a_budget_is_not_for_a_stranger_paid_by_tokens(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Its rates are next to nothing, and it says how many tokens it has used."""
    honest = make_agent(price_cents=100)
    rates = {"pricing": {"model": "per-token", "inputRate": 0.000001, "outputRate": 0.000001}}
    greedy = make_agent(
        spend_tokens, price=rates, capability=honest.capability, owner=make_caller()
    )
    record = payer.run(two_nodes(honest.capability, {"maxBudgetCredits": 40}))
    assert (record["status"], record["spentCredits"]) == ("success", 2)
    assert not greedy.stub.dispatches


def test_row_4_a_free_agent_stays_free_beside_a_strangers_offer(
    payer: Caller, make_agent: MakeAgent
) -> None:
    honest = make_agent(price_cents=0)
    make_agent(price_cents=HUGE_CENTS, capability=honest.capability)
    record = payer.run(two_nodes(honest.capability, {}))
    assert (record["status"], record["spentCredits"]) == ("success", 0)


@BUDGETS
def test_row_4_a_strangers_verifier_at_a_huge_price_is_left_out(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, settings: Json
) -> None:
    agent = make_agent(price_cents=100, owner=make_caller())
    honest = make_agent(approve, price_cents=10)  # of the administrator, whom the agent trusts
    make_agent(approve, price_cents=HUGE_CENTS, capability=honest.capability, owner=make_caller())
    record = payer.run(
        two_nodes(
            agent.capability,
            settings,
            requiresVerification=True,
            verifierCapabilityId=honest.capability,
        )
    )
    assert record["status"] == "success", record["nodes"]
    assert record["spentCredits"] == 2.2


def test_row_4_a_limit_of_the_payers_own_bounds_what_an_offer_holds(
    payer: Caller, make_agent: MakeAgent
) -> None:
    honest = make_agent(price_cents=100)
    make_agent(price_cents=HUGE_CENTS, capability=honest.capability)
    make_agent(spend_tokens, price=PER_TOKEN, capability=honest.capability)
    manifest = two_nodes(honest.capability, {}, maxCostCredits=4)
    assert answer(payer.publish({**manifest, "dryRun": True}))["holdCredits"] == 8
    within = {**manifest, "settings": {"maxBudgetCredits": 6}}
    assert payer.run(within)["spentCredits"] == 2, "two limits of 4 are above it, the work is not"


def test_row_4_an_agent_above_the_limit_is_named_in_credits(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """The cheapest agent fails for good; the next asks more than three times as much."""
    cheap = make_agent(lambda _: (400, {"error": "no"}), price_cents=10)
    make_agent(price_cents=31, capability=cheap.capability)
    record = payer.run({"nodes": {"a": {"capabilityId": cheap.capability}}})
    error = record["nodes"]["a"]["error"]
    assert error["code"] == "BUDGET_EXCEEDED"
    assert "costs 0.31 credits, 0.3 are left" in error["message"]
    assert "agents that cost more are not considered" in error["message"]


@BUDGETS
@pytest.mark.parametrize("how", ["429", "503", "refused"])
def test_row_5_a_node_moves_on_from_a_free_agent_that_declines(
    payer: Caller,
    make_agent: MakeAgent,
    make_caller: MakeCaller,
    free_address: str,
    how: str,
    settings: Json,
) -> None:
    capability = unique("cap.test.")
    replies: dict[str, Callable[[Json], tuple[int, Json]]] = {
        "429": decline(429),
        "503": decline(503, __retry_after=20),
        "refused": decline(500),
    }
    stranger = make_agent(
        replies[how],
        price_cents=0,
        capability=capability,
        owner=make_caller(),
        endpoint=free_address if how == "refused" else None,
    )
    honest = make_agent(price_cents=100, capability=capability, owner=make_caller())
    record = payer.run(two_nodes(capability, settings, maxRetries=0))
    nodes = record["nodes"].values()
    assert record["status"] == "success", nodes
    assert {node["agentDid"] for node in nodes} == {honest.did}
    assert max(node["attempts"] for node in nodes) == 2, "the free agent was asked first"
    assert bool(stranger.stub.dispatches) == (how != "refused")
    assert record["spentCredits"] == 2


def test_an_agent_that_promises_its_result_after_the_timeout_gets_no_node(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    honest = make_agent(price_cents=100)
    slow = {"price_cents": 1, "etaMs": 30 * 86_400_000}
    make_agent(is_held=True, price=slow, capability=honest.capability, owner=make_caller())
    record = payer.run(two_nodes(honest.capability, {}, timeoutMs=5_000, maxCostCredits=2))
    assert record["status"] == "success", record["nodes"]
    assert {node["agentDid"] for node in record["nodes"].values()} == {honest.did}


@pytest.mark.parametrize("status", [400, 429])
def test_one_owner_of_many_free_agents_that_refuse_is_asked_once(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, status: int
) -> None:
    honest = make_agent(price_cents=100)
    stranger = make_caller()
    many = [
        make_agent(decline(status), price_cents=0, capability=honest.capability, owner=stranger)
        for _ in range(4)
    ]
    node = {"capabilityId": honest.capability, "maxRetries": 0}
    record = payer.run({"nodes": {"a": node}})
    assert record["status"] == "success", record["nodes"]
    assert record["nodes"]["a"]["agentDid"] == honest.did
    assert sum(len(one.stub.dispatches) for one in many) <= 1
