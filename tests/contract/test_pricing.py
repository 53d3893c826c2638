"""What nodes are paid: the card's price, the capability's as it was at publish, or tokens.

Spec: Settlement rules 1, 2 and 6; money.md (Estimate, Prices, Per-token prices).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Caller, MakeAgent, answer, chain_of, refusal, unique
from tests.contract.stub_agent import Json

PER_TOKEN = {"model": "per-token", "inputRate": 0.0001, "outputRate": "0.0005"}


def metered(dispatch: Json) -> tuple[int, Json]:
    """Reply with the tokens that the payload asks for."""
    metrics = {"input_tokens": dispatch["inputs"]["read"], "output_tokens": 10}
    reply = {"eventId": dispatch["eventId"], "status": "success", "result": {}, "metrics": metrics}
    return 200, reply


def one(capability: str, read: int, **settings: Any) -> Json:
    """Return a workflow of one node."""
    node = {"capabilityId": capability, "payload": {"read": read}}
    return {"nodes": {"a": node}, "settings": settings}


def set_price(admin: Caller, capability: str, body: Json) -> None:
    """Register a capability's price."""
    answer(admin.http.put(f"/v1/capabilities/{capability}/price", json=body))


def test_rule_6_tokens_are_paid_by_their_rates(make_agent: MakeAgent, payer: Caller) -> None:
    agent = make_agent(metered, price={"pricing": PER_TOKEN})
    record = payer.run(one(agent.capability, 1_000, maxBudgetCredits=2))
    assert record["status"] == "success"
    # 1,000 x 0.0001 + 10 x 0.0005
    assert record["nodes"]["a"]["costCredits"] == record["spentCredits"] == 0.105
    assert payer.balance()["balance"] == 100 - 0.105


def test_case_02_a_node_by_tokens_needs_a_budget(make_agent: MakeAgent, payer: Caller) -> None:
    agent = make_agent(metered, price={"pricing": PER_TOKEN})
    body = refusal(payer.publish(one(agent.capability, 1)), 400, "BUDGET_REQUIRED")
    assert [problem["path"] for problem in body["errors"]] == ["nodes.a.maxCostCredits"]
    assert payer.balance() == {**payer.balance(), "balance": 100, "pending": 0}
    limited = one(agent.capability, 1)
    limited["nodes"]["a"]["maxCostCredits"] = 0.01
    assert payer.run(limited)["spentCredits"] == 0.0051


def test_case_07_tokens_above_the_budget_fail_the_node_unpaid(
    make_agent: MakeAgent, payer: Caller
) -> None:
    agent = make_agent(metered, price={"pricing": PER_TOKEN})
    record = payer.run(one(agent.capability, 100_000, maxBudgetCredits=1))
    assert record["status"] == "failed"
    assert record["nodes"]["a"]["error"]["code"] == "BUDGET_EXCEEDED"
    assert payer.balance()["balance"] == 100


def test_a_card_without_a_price_is_paid_the_capabilitys(
    make_agent: MakeAgent, payer: Caller, admin: Caller
) -> None:
    agent = make_agent(price={})
    set_price(admin, agent.capability, {"price_cents": 30})
    answer(payer.http.get(f"/v1/capabilities/{agent.capability}/price"))
    assert payer.run(chain_of(agent.capability, "ab"))["spentCredits"] == 0.6


def test_case_17_a_price_that_changes_leaves_what_runs_alone(
    make_agent: MakeAgent, payer: Caller, admin: Caller
) -> None:
    agent = make_agent(price={}, is_held=True)
    set_price(admin, agent.capability, {"price_cents": 30})
    published = answer(payer.publish(chain_of(agent.capability, "ab")))
    agent.stub.wait_dispatched()
    set_price(admin, agent.capability, {"price_cents": 70})
    agent.stub.gate.set()
    path = f"/v1/workflows/{published['workflowId']}"
    record = payer.finished(path)
    assert (record["status"], record["spentCredits"]) == ("success", 0.6)
    assert payer.run(chain_of(agent.capability, "a"))["spentCredits"] == 0.7


def test_nobody_dearer_than_the_capabilitys_price_is_taken(
    make_agent: MakeAgent, payer: Caller, admin: Caller
) -> None:
    capability = unique("cap.test.")
    set_price(admin, capability, {"price_cents": 20})
    dear = make_agent(price_cents=21, capability=capability)
    cheap = make_agent(price_cents=19, capability=capability)
    record = payer.run(chain_of(capability, "a", maxBudgetCredits=5))
    assert record["nodes"]["a"]["agentDid"] == cheap.did
    weighed = {seen["agentDid"]: seen for seen in record["nodes"]["a"]["selection"]["candidates"]}
    assert weighed[dear.did]["excluded"] == "too_dear"
    assert weighed[cheap.did]["score"] > 0


@pytest.mark.parametrize(
    ("price", "path"),
    [
        ({"pricing": {"model": "per-word", "inputRate": 1, "outputRate": 1}}, "pricing.model"),
        (
            {"pricing": {"model": "per-token", "inputRate": -1, "outputRate": 1}},
            "pricing.inputRate",
        ),
        ({"price_cents": 5, "pricing": PER_TOKEN}, "pricing"),
    ],
)
def test_a_card_with_a_price_that_is_none_is_refused(admin: Caller, price: Json, path: str) -> None:
    card = {
        "did": unique("did:net:agent-"),
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": [{"id": "cap.test.v1", **price}],
    }
    body = refusal(
        admin.http.post("/v1/agents/register", json={"acard": card}), 400, "INVALID_REQUEST"
    )
    assert [problem["path"] for problem in body["errors"]] == [f"acard.capabilities[0].{path}"]
