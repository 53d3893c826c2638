"""Money as its owner reads it, row by row.

Spec: Account, Entry, Escrow, Balance response.
"""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
)


def test_an_account_has_the_specifications_fields(payer: Caller, admin: Caller) -> None:
    path = f"/v1/ledger/accounts/{payer.did}"
    record = answer(payer.http.get(path))
    assert set(record) == {"id", "ownerDid", "balance", "currency", "createdAt"}
    assert (record["ownerDid"], record["balance"], record["currency"]) == (
        payer.did,
        100,
        "CREDITS",
    )
    assert isinstance(record["id"], int)
    assert answer(admin.http.get(f"/v1/ledger/accounts/{quote(payer.did, safe='')}")) == record


def test_there_is_no_account_until_something_came_in(make_caller: MakeCaller) -> None:
    new = make_caller()
    refusal(new.http.get(f"/v1/ledger/accounts/{new.did}"), 404, "NOT_FOUND")
    assert answer(new.http.get(f"/v1/balances/{new.did}")) == new.balance()


@pytest.mark.parametrize(
    "path", ["/v1/ledger/accounts/{}", "/v1/balances/{}", "/v1/ledger/{}/history"]
)
def test_anothers_money_is_not_known(payer: Caller, make_caller: MakeCaller, path: str) -> None:
    refusal(make_caller(1).http.get(path.format(payer.did)), 404, "NOT_FOUND")
    assert payer.http.get(path.format(payer.did)).status_code == 200


def test_history_lists_what_moved_newest_first(payer: Caller, make_agent: MakeAgent) -> None:
    record = payer.run(chain_of(make_agent(price_cents=100).capability, "a", maxBudgetCredits=3))
    answer(payer.http.post("/v1/stakes", json={"amount": 7}))
    path = f"/v1/ledger/{payer.did}/history"
    events = answer(payer.http.get(path))["events"]
    assert [(event["eventType"], event["change"]) for event in events] == [
        ("stake_deposit", -7),
        ("escrow_release", 2),
        ("escrow_hold", -3),
        ("deposit", 100),
    ]
    assert events[1]["workflowId"] == record["id"]
    assert sum(event["change"] for event in events) == payer.balance()["balance"]
    seen, page = [], answer(payer.http.get(f"{path}?limit=1"))
    while True:
        seen += page["events"]
        if page["nextCursor"] is None:
            break
        page = answer(payer.http.get(f"{path}?limit=1&cursor={page['nextCursor']}"))
    assert seen == events
    assert answer(payer.http.get(f"{path}?limit=2&offset=1"))["events"] == events[1:3]


def test_an_escrow_is_held_and_then_released(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent = make_agent(price_cents=100, is_held=True)
    manifest = chain_of(agent.capability, "a", maxBudgetCredits=3)
    workflow_id = answer(payer.publish(manifest))["workflowId"]
    path = f"/v1/workflows/{workflow_id}/escrow"
    held = answer(payer.http.get(path))
    assert held["workflow_id"] == workflow_id
    assert (held["payer_did"], held["amount"], held["status"]) == (payer.did, 3, "held")
    assert (held["remaining"], held["feeBps"], held["releasedAt"]) == (3, 500, None)
    agent.stub.gate.set()
    payer.finished(f"/v1/workflows/{workflow_id}")
    released = answer(payer.http.get(path))
    assert (released["amount"], released["status"], released["remaining"]) == (3, "released", 0)
    assert released["releasedAt"] is not None
    refusal(make_caller().http.get(path), 404, "NOT_FOUND")
    refusal(payer.http.get("/v1/workflows/none/escrow"), 404, "NOT_FOUND")


def test_a_budget_says_what_is_spent_and_left(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent = make_agent(price_cents=100, is_held=True)
    manifest = chain_of(agent.capability, "a", maxBudgetCredits=3)
    workflow_id = answer(payer.publish(manifest))["workflowId"]
    path = f"/v1/workflows/{workflow_id}/budget"
    budget = {"workflowId": workflow_id, "payerDid": payer.did, "maxCents": 300}
    assert answer(payer.http.get(path)) == {
        **budget,
        "spentCents": 0,
        "remainingCents": 300,
        "heldCredits": 3,
    }
    agent.stub.gate.set()
    payer.finished(f"/v1/workflows/{workflow_id}")
    assert answer(payer.http.get(path)) == {
        **budget,
        "spentCents": 100,
        "remainingCents": 200,
        "heldCredits": 0,
    }
    refusal(make_caller().http.get(path), 404, "NOT_FOUND")


def test_a_workflow_above_its_budget_has_a_budget_and_no_escrow(
    payer: Caller, make_agent: MakeAgent
) -> None:
    manifest = chain_of(make_agent(price_cents=100).capability, "a", maxBudgetCredits=0.5)
    workflow_id = answer(payer.publish(manifest))["workflowId"]
    refusal(payer.http.get(f"/v1/workflows/{workflow_id}/escrow"), 404, "NOT_FOUND")
    budget = answer(payer.http.get(f"/v1/workflows/{workflow_id}/budget"))
    assert (budget["maxCents"], budget["spentCents"], budget["heldCredits"]) == (50, 0, 0)


def test_without_a_budget_of_its_own_the_estimate_is_the_budget(
    payer: Caller, make_agent: MakeAgent
) -> None:
    record = payer.run(chain_of(make_agent(price_cents=100).capability, "ab"))
    budget = answer(payer.http.get(f"/v1/workflows/{record['id']}/budget"))
    assert (budget["maxCents"], budget["spentCents"], budget["remainingCents"]) == (200, 200, 0)
