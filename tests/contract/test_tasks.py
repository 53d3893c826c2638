"""Tasks: one node, described in words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    chain_of,
    client,
    refusal,
    unique,
)
from tests.contract.test_auctions import WINDOW_MS
from tests.contract.test_execution_async import handed_in, later, wait_node
from tests.contract.test_execution_ends import BAD
from tests.contract.test_execution_replies import scripted
from tests.contract.test_pricing import PER_TOKEN

Json = dict[str, Any]
PATH = "/v1/tasks"


def ended(caller: Caller, published: Json) -> Json:
    """Return a task once it has ended."""
    caller.finished(f"/v1/workflows/{published['workflowId']}")
    return answer(caller.http.get(f"{PATH}/{published['taskId']}"))


def publish(caller: Caller, description: str, **more: Any) -> Json:
    """Publish a task."""
    return answer(caller.http.post(f"{PATH}/publish", json={"description": description, **more}))


def test_a_task_names_its_capability_and_completes(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(price_cents=50)
    made = publish(payer, f"[{agent.capability}] Sum this up", budget=2)
    assert (made["status"], made["capabilityId"]) == ("pending", agent.capability)
    task = ended(payer, made)
    assert (task["status"], task["agentDid"]) == ("completed", agent.did)
    assert task["result"]["inputs"] == {"description": "Sum this up"}
    assert (task["error"], task["spentCredits"]) == (None, 0.5)
    assert payer.balance()["balance"] == 99.5


def test_a_task_without_a_name_goes_to_the_capability_that_its_words_fit(
    payer: Caller, make_agent: MakeAgent
) -> None:
    word = unique("zx")
    make_agent(capability=f"cap.other.{unique('q')}.v1")
    agent = make_agent(capability=f"cap.text.{word}.v1")
    made = publish(payer, f"please do some {word} for me")
    assert made["capabilityId"] == agent.capability
    assert ended(payer, made)["result"]["inputs"]["description"].startswith("please")
    nothing = payer.http.post(f"{PATH}/publish", json={"description": unique("qqq")})
    refusal(nothing, 422, "NO_CAPABILITY_MATCH")


def test_a_failed_task_says_why_and_a_cancelled_one_is_cancelled(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(scripted(BAD))
    task = ended(payer, publish(payer, f"[{agent.capability}] x"))
    assert (task["status"], task["result"]) == ("failed", None)
    assert task["error"]["code"] == "AGENT_ERROR"
    held = make_agent(is_held=True)
    made = publish(payer, f"[{held.capability}] x")
    held.stub.wait_dispatched()
    answer(payer.cancel(f"/v1/workflows/{made['workflowId']}"))
    assert ended(payer, made)["status"] == "cancelled"


def test_any_workflow_is_read_as_its_task(payer: Caller, make_agent: MakeAgent) -> None:
    record = payer.run(chain_of(make_agent().capability, "abc"))
    task = answer(payer.http.get(f"{PATH}/{record['taskId']}"))
    assert (task["workflowId"], task["status"]) == (record["id"], "completed")
    assert task["result"] == {"c": record["nodes"]["c"]["result"]}


@pytest.mark.parametrize("changes", [{"description": ""}, {"description": 5}, {"budget": -1}])
def test_a_bad_task_is_400(payer: Caller, changes: Json) -> None:
    body = {"description": "[cap.x.v1] x", **changes}
    refusal(payer.http.post(f"{PATH}/publish", json=body), 400, "INVALID_REQUEST")


def test_settle_after_success_tells_what_was_paid_and_pays_nothing(
    payer: Caller, make_agent: MakeAgent
) -> None:
    """How the agent of an accepted task is paid by it is in `test_field_forms.py`."""
    agent = make_agent(price_cents=50, is_held=True)
    made = publish(payer, f"[{agent.capability}] x", budget=2)
    path = f"{PATH}/{made['taskId']}/settle"
    agent.stub.wait_dispatched()
    refusal(payer.http.post(path), 409, "CONFLICT")
    agent.stub.gate.set()
    ended(payer, made)
    before = payer.balance()
    more = {"payouts": [{"agentDid": agent.did, "amount": 2}]}
    refused = refusal(payer.http.post(path, json=more), 409, "CONFLICT")
    assert f"{agent.did} was paid 0.5 credits" in refused["detail"]
    settled = answer(
        payer.http.post(path, json={"payouts": [{"agentDid": agent.did, "amount": 0.2}]})
    )
    assert settled["paid"] == [{"agentDid": agent.did, "amount": 0.5}]
    assert (settled["settledCredits"], settled["returnedCredits"]) == (0.5, 1.5)
    refusal(payer.http.post(path), 409, "ALREADY_SETTLED")
    assert payer.balance() == before
    cancelled = publish(payer, f"[{make_agent(is_held=True).capability}] x")
    answer(payer.cancel(f"/v1/workflows/{cancelled['workflowId']}"))
    ended(payer, cancelled)
    refusal(payer.http.post(f"{PATH}/{cancelled['taskId']}/settle"), 409, "CONFLICT")


@pytest.mark.parametrize("named", [[3], ["0.5", 2.5], [5]])
def test_an_agent_without_a_price_is_paid_what_the_payer_names(
    payer: Caller, admin: Caller, make_agent: MakeAgent, named: list[Any]
) -> None:
    agent = make_agent(later, price={})
    made = publish(payer, f"[{agent.capability}] x", budget=5)
    path = f"{PATH}/{made['taskId']}/settle"
    total = sum(float(one) for one in named)
    # At once: the settlement waits for the agent to accept the task.
    over = {"payouts": [{"agentDid": agent.did, "amount": 5.000001}]}
    refusal(payer.http.post(path, json=over), 400, "INVALID_REQUEST")
    body = {"payouts": [{"agentDid": agent.did, "amount": one} for one in named]}
    settled = answer(payer.http.post(path, json=body))
    assert settled["paid"] == [{"agentDid": agent.did, "amount": total}]
    assert (settled["settledCredits"], settled["returnedCredits"]) == (total, 5 - total)
    earned = answer(admin.http.get(f"/v1/balances/{agent.did}"))["balance"]
    assert earned == pytest.approx(0.95 * total)
    assert payer.balance() == {**payer.balance(), "balance": 100 - total, "pending": 0}
    refusal(payer.http.post(path, json=body), 409, "ALREADY_SETTLED")


def test_a_settlement_before_any_agent_has_accepted_is_409(
    payer: Caller, make_agent: MakeAgent
) -> None:
    """It changes nothing, and the same key settles later."""
    agent = make_agent(lambda _: (202, {"ok": True}), is_held=True, price={})
    made = publish(payer, f"[{agent.capability}] x", budget=5)
    path, headers = f"{PATH}/{made['taskId']}/settle", {"Idempotency-Key": unique("k")}
    body = {"payouts": [{"agentDid": agent.did, "amount": 3}]}
    refusal(payer.http.post(path, json=body, headers=headers), 409, "CONFLICT")
    agent.stub.gate.set()
    wait_node(payer, f"/v1/workflows/{made['workflowId']}", "running", "task")
    settled = answer(payer.http.post(path, json=body, headers=headers))
    assert settled["paid"] == [{"agentDid": agent.did, "amount": 3}]
    again = payer.http.post(path, json=body, headers=headers)
    assert (answer(again), again.headers["idempotency-replayed"]) == (settled, "true")


def test_more_than_was_paid_is_not_settled_for_a_task_that_has_succeeded(
    payer: Caller, make_agent: MakeAgent
) -> None:
    """It was ok, and paid 0: the escrow is released, what its agent was paid before is all."""
    agent = make_agent(price={})
    made = publish(payer, f"[{agent.capability}] x", budget=5)
    ended(payer, made)
    path = f"{PATH}/{made['taskId']}/settle"
    body = {"payouts": [{"agentDid": agent.did, "amount": 3}]}
    refused = refusal(payer.http.post(path, json=body), 409, "CONFLICT")
    assert f"{agent.did} was paid 0 credits" in refused["detail"]
    assert answer(payer.http.post(path))["paid"] == []


@pytest.mark.parametrize(
    ("price", "task", "paid"),
    [
        ({"price_cents": 10}, {}, 0.1),
        ({"price_cents": 20, "standingBid": {"bidAmount": 0.1}}, {"selection": "auction"}, 0.1),
        ({}, {}, 0.000001),
        ({"pricing": PER_TOKEN}, {}, 0.000001),
    ],
    ids=["price", "bid", "free", "tokens"],
)
def test_row_10_a_settlement_pays_what_was_promised_and_later_results_are_409(
    payer: Caller,
    admin: Caller,
    make_agent: MakeAgent,
    make_caller: MakeCaller,
    price: Json,
    task: Json,
    paid: float,
) -> None:
    owner = make_caller(10)
    agent = make_agent(later, price=price, owner=owner, stake=5)
    made = publish(payer, f"[{agent.capability}] x", budget=5, **task)
    wait_node(payer, f"/v1/workflows/{made['workflowId']}", "running", "task")
    body = {"payouts": [{"agentDid": agent.did, "amount": 0.000001}]}
    settled = answer(payer.http.post(f"{PATH}/{made['taskId']}/settle", json=body))
    assert settled["paid"] == [{"agentDid": agent.did, "amount": paid}]
    assert settled["settledCredits"] == paid
    for handed in (handed_in(agent.stub.dispatches[0]),) * 2:
        late = payer.http.post("/v1/workflows/nodeResult", json=handed)
        refusal(late, 409, "ALREADY_SETTLED")
    assert answer(payer.http.get(f"{PATH}/{made['taskId']}"))["result"] == {}
    earned = answer(admin.http.get(f"/v1/balances/{agent.did}"))["balance"]
    assert earned == pytest.approx(0.95 * paid, abs=0.000001)


def test_a_result_that_was_taken_before_its_task_was_settled_is_a_repeat(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(later)
    made = publish(payer, f"[{agent.capability}] x")
    agent.stub.wait_dispatched()
    handed = handed_in(agent.stub.dispatches[0])
    answer(payer.http.post("/v1/workflows/nodeResult", json=handed))
    answer(payer.http.post(f"{PATH}/{made['taskId']}/settle"))
    again = payer.http.post("/v1/workflows/nodeResult", json=handed)
    assert (answer(again)["status"], again.headers["idempotency-replayed"]) == ("success", "true")


def test_an_agent_by_tokens_that_has_named_none_is_paid_what_its_payer_says(
    payer: Caller, make_agent: MakeAgent
) -> None:
    """Without an amount it was paid all that was reserved for it, which is the whole budget."""
    agent = make_agent(later, price={"pricing": PER_TOKEN})
    made = publish(payer, f"[{agent.capability}] x", budget=2)
    wait_node(payer, f"/v1/workflows/{made['workflowId']}", "running", "task")
    path = f"{PATH}/{made['taskId']}/settle"
    before = payer.balance()
    for body in ({}, {"payouts": None}, {"payouts": [{"agentDid": agent.did, "amount": 2.1}]}):
        problem = refusal(payer.http.post(path, json=body), 400, "INVALID_REQUEST")
        assert [item["path"] for item in problem["errors"]] == ["payouts"]
    refusal(payer.http.post(path), 400, "INVALID_REQUEST")
    assert payer.balance() == before
    assert answer(payer.http.get(f"{PATH}/{made['taskId']}"))["status"] == "running"
    body = {"payouts": [{"agentDid": agent.did, "amount": 0.3}]}
    settled = answer(payer.http.post(path, json=body))
    assert settled["paid"] == [{"agentDid": agent.did, "amount": 0.3}]
    assert (settled["settledCredits"], settled["returnedCredits"]) == (0.3, 1.7)
    refusal(payer.http.post(path), 409, "ALREADY_SETTLED")


def test_an_agent_by_tokens_that_has_named_them_needs_no_amount(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(later, price={"pricing": PER_TOKEN})
    made = publish(payer, f"[{agent.capability}] x", budget=2)
    agent.stub.wait_dispatched()
    handed = handed_in(agent.stub.dispatches[0], metrics={"output_tokens": 10})
    answer(payer.http.post("/v1/workflows/nodeResult", json=handed))
    settled = answer(payer.http.post(f"{PATH}/{made['taskId']}/settle", json={}))
    assert settled["paid"] == [{"agentDid": agent.did, "amount": 0.005}]


def test_tasks_belong_to_their_payers_and_agents(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent = make_agent()
    made = publish(payer, f"[{agent.capability}] x")
    ended(payer, made)
    path = f"{PATH}/{made['taskId']}"
    worker, stranger = make_caller(ownerDid=agent.did), make_caller()
    assert answer(worker.http.get(path))["status"] == "completed"
    refusal(worker.http.post(f"{path}/settle"), 403, "FORBIDDEN")
    refusal(worker.http.post(f"{path}/feedback", json={"rating": 1}), 404, "NOT_FOUND")
    for refused in (stranger.http.get(path), stranger.http.post(f"{path}/settle")):
        refusal(refused, 404, "NOT_FOUND")
    refusal(payer.http.get(f"{PATH}/x"), 404, "NOT_FOUND")
    given = answer(payer.http.post(f"{path}/feedback", json={"rating": 0.7}))
    assert (given["agentDid"], given["rating"]) == (agent.did, 0.7)
    with client(str(payer.http.base_url)) as nobody:
        refusal(nobody.get(path), 401, "UNAUTHORIZED")


# -- bidding for a task ----------------------------------------------------------------------------


def bid(caller: Caller, task_id: str, agent: RegisteredAgent, amount: object, **body: Any) -> Any:
    """Bid for a task in an agent's name."""
    return caller.http.post(
        f"{PATH}/{task_id}/bid", json={"bidAmount": amount, "agentDid": agent.did, **body}
    )


def bidder(
    make_agent: MakeAgent, make_caller: MakeCaller, capability: str
) -> tuple[Caller, RegisteredAgent]:
    """Return an agent that has staked enough, and its owner."""
    owner = make_caller(10)
    return owner, make_agent(capability=capability, owner=owner, stake=1)


def test_a_task_that_is_auctioned_takes_bids_and_pays_the_second_lowest(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Its budget is the reserve."""
    capability = unique("cap.test.") + ".v1"
    one, cheap = bidder(make_agent, make_caller, capability)
    two, dear = bidder(make_agent, make_caller, capability)
    more = {"selection": "auction", "auctionWindowMs": WINDOW_MS, "budget": 1}
    made = publish(payer, f"[{capability}] do it", **more)
    placed = answer(bid(one, made["taskId"], cheap, 0.2, etaMs=5))
    assert (placed["ok"], placed["counted"], placed["round"]) == (True, True, 1)
    assert (placed["workflowId"], placed["nodeId"]) == (made["workflowId"], "task")
    assert (placed["taskId"], placed["bidAmount"], placed["etaMs"]) == (made["taskId"], 0.2, 5)
    refusal(bid(one, made["taskId"], cheap, 0.1), 409, "CONFLICT")
    refusal(bid(two, made["taskId"], dear, 1.1), 400, "INVALID_REQUEST")
    answer(bid(two, made["taskId"], dear, 0.5))
    task = ended(payer, made)
    assert (task["status"], task["agentDid"]) == ("completed", cheap.did)
    assert task["spentCredits"] == 0.5
    late = answer(bid(two, made["taskId"], dear, 0.4))
    assert (late["ok"], late["counted"], late["closesAt"]) == (True, False, None)
    audit = f"/v1/audit?eventType=bid.placed&targetId={made['workflowId']}"
    assert len(answer(payer.http.get(audit))["entries"]) == 2, "of an ended task none is kept"


def test_how_much_is_bid_before_the_auction_opens_is_not_told(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """The payer would read what the agent is about to bid in the sealed round."""
    capability = unique("cap.test.") + ".v1"
    owner, agent = bidder(make_agent, make_caller, capability)
    auction = {"capabilityId": capability, "selection": "auction", "auctionWindowMs": 60_000}
    nodes = {
        "first": {"capabilityId": make_agent(later).capability},
        "sealed": {**auction, "maxCostCredits": 1, "dependsOn": ["first"]},
        "priced": {"capabilityId": capability, "dependsOn": ["first"]},
    }
    made = answer(payer.publish({"nodes": nodes}))
    amounts = {"sealed": 0.123457, "priced": 0.2}
    for name, amount in amounts.items():
        placed = answer(bid(owner, made["taskId"], agent, amount, nodeId=name))
        assert (placed["counted"], placed["bidAmount"]) == (False, amount)
    audit = f"/v1/audit?eventType=bid.placed&targetId={made['workflowId']}"
    reply = payer.http.get(audit)
    kept = [entry["payload"]["events"][0]["payload"] for entry in answer(reply)["entries"]]
    assert {one["nodeId"]: one.get("bidCredits") for one in kept} == {
        "sealed": None,
        "priced": "0.2",
    }
    assert "0.123457" not in reply.text


def test_who_may_not_see_a_tasks_auction_cannot_bid_and_learns_nothing(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    capability = unique("cap.test.") + ".v1"
    owner, agent = bidder(make_agent, make_caller, capability)
    more = {"selection": "auction", "auctionWindowMs": 60_000, "budget": 1}
    made = publish(payer, f"[{capability}] do it", **more)
    stranger = make_caller(1)
    hidden = refusal(bid(stranger, made["taskId"], agent, 0.1), 404, "NOT_FOUND")
    absent = refusal(bid(stranger, made["workflowId"], agent, 0.1), 404, "NOT_FOUND")
    assert hidden["detail"].replace(made["taskId"], made["workflowId"]) == absent["detail"]
    refusal(bid(payer, made["taskId"], agent, 0.1), 403, "FORBIDDEN")
    refusal(bid(owner, "no-uuid", agent, 0.1), 404, "NOT_FOUND")
    fixed = publish(payer, f"[{capability}] at a fixed price")
    refusal(bid(stranger, fixed["taskId"], agent, 0.1), 404, "NOT_FOUND")
    refusal(bid(payer, fixed["taskId"], agent, 0.1), 403, "FORBIDDEN")


def test_a_bid_for_a_task_of_several_nodes_names_one(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    capability = unique("cap.test.") + ".v1"
    owner, agent = bidder(make_agent, make_caller, capability)
    node = {"capabilityId": capability, "selection": "auction", "maxCostCredits": 1}
    manifest = {"nodes": {name: {**node, "auctionWindowMs": 60_000} for name in ("a", "b/c")}}
    task_id = answer(payer.publish(manifest))["taskId"]
    refusal(bid(owner, task_id, agent, 0.1), 404, "NOT_FOUND")
    refusal(bid(owner, task_id, agent, 0.1, nodeId=["a"]), 400, "INVALID_REQUEST")
    assert answer(bid(owner, task_id, agent, 0.1, nodeId="b/c"))["nodeId"] == "b/c"


def test_a_task_to_be_auctioned_needs_a_budget(payer: Caller) -> None:
    body = {"description": "[cap.test.x.v1] do it", "selection": "auction"}
    refusal(payer.http.post(f"{PATH}/publish", json=body), 400, "BUDGET_REQUIRED")
    body = {"description": "[cap.test.x.v1] do it", "selection": "lottery", "budget": 1}
    refusal(payer.http.post(f"{PATH}/publish", json=body), 400, "INVALID_MANIFEST")
