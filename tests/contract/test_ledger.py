"""Balance, deposit, transactions and settlement, row by row.

Spec: Ledger records, Settlement rules 1 to 4; money.md.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
)

DEPOSIT = "/v1/ledger/deposit"


def test_balance_has_balance_currency_pending(payer: Caller) -> None:
    assert payer.balance() == {
        "ownerDid": payer.did,
        "balance": 100,
        "credits": 100,
        "currency": "CREDITS",
        "pending": 0,
    }


def test_deposit_answers_with_the_entry_and_the_new_balance(make_caller: MakeCaller) -> None:
    rich = make_caller(scopes=["ledger:deposit", "ledger:read"])
    reply = answer(rich.http.post(DEPOSIT, json={"amount": 12.5}))
    assert reply["balance"] == 12.5
    assert reply["entry"]["amount"] == 12.5
    assert reply["entry"]["debitAccountId"] != reply["entry"]["creditAccountId"]
    assert reply["entry"]["id"] == reply["id"]
    assert answer(rich.http.post(DEPOSIT, json={"amount": "0.000001"}))["balance"] == 12.500001


def test_case_31_without_a_key_each_deposit_is_a_new_one(make_caller: MakeCaller) -> None:
    rich = make_caller(scopes=["ledger:deposit", "ledger:read"])
    replies = [answer(rich.http.post(DEPOSIT, json={"amount": 5})) for _ in range(2)]
    assert replies[0]["id"] != replies[1]["id"]
    assert rich.balance()["balance"] == 10


@pytest.mark.parametrize(
    "amount", [0, -1, 0.0000001, "1e3", "much", True, None, [], 1e16, "1.0000001"]
)
def test_case_31_a_bad_amount_is_400(make_caller: MakeCaller, amount: object) -> None:
    rich = make_caller(scopes=["ledger:deposit", "ledger:read"])
    body = refusal(rich.http.post(DEPOSIT, json={"amount": amount}), 400, "INVALID_REQUEST")
    assert body["errors"][0]["path"] == "amount"
    assert rich.balance()["balance"] == 0


def test_deposit_for_another_needs_an_administrator(make_caller: MakeCaller) -> None:
    rich = make_caller(scopes=["ledger:deposit"])
    body = {"amount": 1, "ownerDid": unique("did:net:other-")}
    refusal(rich.http.post(DEPOSIT, json=body), 403, "FORBIDDEN")


@pytest.mark.parametrize("list_or_balance", ["balance", "transactions"])
def test_anothers_money_is_as_unknown_as_nobodys(
    payer: Caller, make_caller: MakeCaller, list_or_balance: str
) -> None:
    for did in (make_caller(1).did, unique("did:net:nobody-")):
        path = f"/v1/ledger/{list_or_balance}?ownerDid={did}"
        body = refusal(payer.http.get(path), 404, "NOT_FOUND")
        assert body["detail"] == f"the account {did} is not known"


def test_case_01_publish_holds_the_budget_and_the_rest_returns(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=200, is_held=True)
    manifest = chain_of(agent.capability, "ab", maxBudgetCredits=10)
    workflow_id = answer(payer.publish(manifest))["workflowId"]
    agent.stub.wait_dispatched()
    assert payer.balance() == {**payer.balance(), "balance": 90, "pending": 10}
    agent.stub.gate.set()
    path = f"/v1/workflows/{workflow_id}"
    record = payer.finished(path)
    assert record["spentCredits"] == 4
    assert payer.balance() == {**payer.balance(), "balance": 96, "pending": 0}


def test_node_payment_is_split_95_to_the_agent_and_5_to_the_protocol(
    payer: Caller, make_agent: MakeAgent, admin: Caller
) -> None:
    agent = make_agent(price_cents=100)
    record = payer.run(chain_of(agent.capability, maxBudgetCredits=5))
    earned = answer(admin.http.get(f"/v1/ledger/balance?ownerDid={agent.did}"))
    assert earned["balance"] == 2.85
    path = f"/v1/ledger/transactions?workflowId={record['id']}"
    entries = answer(payer.http.get(path))["transactions"]
    kinds = Counter(entry["kind"] for entry in entries)
    assert kinds["node_payment"] == kinds["protocol_fee"] == 3
    amounts = {kind: sum(e["amount"] for e in entries if e["kind"] == kind) for kind in kinds}
    assert amounts["node_payment"] == pytest.approx(2.85)
    assert amounts["protocol_fee"] == pytest.approx(0.15)
    others = set(kinds) - {"node_payment", "protocol_fee"}
    assert sorted(amounts[kind] for kind in others) == [2, 5]


def test_transactions_have_the_entrys_fields_and_page_newest_first(
    payer: Caller, make_agent: MakeAgent
) -> None:
    record = payer.run(chain_of(make_agent().capability))
    page = answer(payer.http.get("/v1/ledger/transactions?limit=1"))
    assert len(page["transactions"]) == 1
    seen = page["transactions"]
    while page["nextCursor"] is not None:
        path = f"/v1/ledger/transactions?limit=1&cursor={page['nextCursor']}"
        page = answer(payer.http.get(path))
        seen += page["transactions"]
    ids = [entry["id"] for entry in seen]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) >= 2
    required = {"id", "debitAccountId", "creditAccountId", "amount", "description", "createdAt"}
    for entry in seen:
        assert required <= set(entry)
    assert {entry.get("workflowId") for entry in seen} == {None, record["id"]}


def test_anothers_workflow_has_no_transactions_for_me(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    workflow_id = payer.run(chain_of(make_agent().capability))["id"]
    path = f"/v1/ledger/transactions?workflowId={workflow_id}"
    assert answer(make_caller(1).http.get(path))["transactions"] == []
    refusal(payer.http.get("/v1/ledger/transactions?workflowId=x"), 400, "INVALID_REQUEST")
