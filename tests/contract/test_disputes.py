"""Disputes and feedback through the API.

Spec: Dispute, Settlement rules 10; money.md (Disputes and refunds).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.audit_events import events_of
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    chain_of,
    refusal,
)

Json = dict[str, Any]
PATH = "/v1/disputes"


def complaint(workflow_id: str | None, **changes: Any) -> Json:
    """Return the body of a dispute."""
    body: Json = {"disputeType": "quality", "description": "It is not what was asked for."}
    if workflow_id is not None:
        body["workflowId"] = workflow_id
    return {**body, **changes}


def acting_as(agent: RegisteredAgent, make_caller: MakeCaller) -> Caller:
    """Return a caller with the agent's own DID."""
    return make_caller(ownerDid=agent.did)


def test_payer_disputes_a_node_and_an_administrator_has_it_refunded(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=200)
    record = payer.run(chain_of(agent.capability, "ab"))
    before = payer.balance()["balance"]
    body = complaint(record["id"], nodeId="a", evidence={"wanted": ["x", 1.5]})
    dispute = answer(payer.http.post(PATH, json=body))
    assert (dispute["status"], dispute["complainantDid"]) == ("open", payer.did)
    assert (dispute["respondentDid"], dispute["nodeId"]) == (agent.did, "a")
    assert dispute["evidence"] == {"wanted": ["x", 1.5]}
    assert payer.balance()["balance"] == before, "a dispute alone moves nothing"
    path = f"{PATH}/{dispute['id']}"
    decision = {"status": "resolved_split", "resolution": "half of it", "creditsRefunded": 1}
    refusal(payer.http.post(f"{path}/resolve", json=decision), 403, "INSUFFICIENT_SCOPE")
    above = {**decision, "creditsRefunded": 2.000001}
    refusal(admin.http.post(f"{path}/resolve", json=above), 400, "INVALID_REQUEST")
    resolved = answer(admin.http.post(f"{path}/resolve", json=decision))
    assert resolved["status"] == "resolved_split"
    assert (resolved["creditsRefunded"], resolved["creditsShort"]) == (1, 0)
    assert payer.balance()["balance"] == before + 1
    earned = answer(admin.http.get(f"/v1/ledger/balance?ownerDid={agent.did}"))
    assert earned["balance"] == pytest.approx(0.95 * 4 - 0.95)
    refusal(admin.http.post(f"{path}/resolve", json=decision), 409, "CONFLICT")
    shown = answer(payer.http.get(path))
    assert (shown["resolvedBy"], shown["resolution"]) == (admin.did, "half of it")
    audited = answer(admin.http.get(f"/v1/audit?targetId={dispute['id']}"))["entries"]
    assert [entry["eventType"] for entry in audited] == ["dispute.resolved", "dispute.opened"]


def test_an_operator_with_the_single_right_decides_between_others(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    """Only a party with the right could: everybody else was told that there is no such dispute."""
    record = payer.run(chain_of(make_agent().capability, "a"))
    dispute = answer(payer.http.post(PATH, json=complaint(record["id"])))
    operator = make_caller(scopes=["disputes:resolve"])
    decision = {"status": "dismissed", "resolution": "It is what was asked for."}
    resolved = answer(operator.http.post(f"{PATH}/{dispute['id']}/resolve", json=decision))
    assert (resolved["status"], resolved["resolvedBy"]) == ("dismissed", operator.did)
    refusal(operator.http.get(f"{PATH}/{dispute['id']}"), 403, "INSUFFICIENT_SCOPE")


def test_an_agent_disputes_with_the_payer_and_only_parties_see_it(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent, admin: Caller
) -> None:
    agent = make_agent(price_cents=100)
    record = payer.run(chain_of(agent.capability, "a"))
    worker = acting_as(agent, make_caller)
    body = complaint(record["id"], disputeType="other")
    dispute = answer(worker.http.post(PATH, json=body))
    assert (dispute["complainantDid"], dispute["respondentDid"]) == (agent.did, payer.did)
    for caller, is_shown in ((payer, True), (worker, True), (admin, True), (make_caller(), False)):
        listed = answer(caller.http.get(f"{PATH}?workflowId={record['id']}"))["disputes"]
        assert [row["id"] for row in listed] == ([dispute["id"]] if is_shown else [])
        assert caller.http.get(f"{PATH}/{dispute['id']}").status_code == (200 if is_shown else 404)


def test_a_stranger_cannot_dispute_a_workflow(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent, admin: Caller
) -> None:
    record = payer.run(chain_of(make_agent().capability, "a"))
    body = complaint(record["id"])
    refusal(make_caller().http.post(PATH, json=body), 404, "NOT_FOUND")
    refusal(admin.http.post(PATH, json=body), 403, "FORBIDDEN")


def test_fraud_needs_no_workflow_and_quality_does(payer: Caller, make_agent: MakeAgent) -> None:
    refusal(payer.http.post(PATH, json=complaint(None)), 400, "INVALID_REQUEST")
    body = complaint(None, disputeType="fraud", respondentDid=make_agent().did)
    dispute = answer(payer.http.post(PATH, json=body))
    assert (dispute["workflowId"], dispute["disputeType"]) == (None, "fraud")


@pytest.mark.parametrize(
    "changes",
    [
        {"disputeType": "boredom"},
        {"description": "too short"},
        {"description": "x" * 10_001},
        {"description": None},
        {"evidence": []},
        {"evidence": {"n": 10**128}},
        {"workflowId": "x"},
        {"nodeId": "nowhere"},
        {"respondentDid": "did:net:not-an-agent-of-it"},
        {"respondentDid": 5},
    ],
)
def test_a_bad_dispute_is_400(payer: Caller, make_agent: MakeAgent, changes: Json) -> None:
    record = payer.run(chain_of(make_agent().capability, "a"))
    body = complaint(record["id"], **changes)
    refusal(payer.http.post(PATH, json=body), 400, "INVALID_REQUEST")


def test_a_bad_decision_is_400_and_an_unknown_dispute_404(
    payer: Caller, make_agent: MakeAgent, admin: Caller
) -> None:
    record = payer.run(chain_of(make_agent().capability, "a"))
    path = f"{PATH}/{answer(payer.http.post(PATH, json=complaint(record['id'])))['id']}/resolve"
    good = {"status": "resolved_complainant", "resolution": "yes"}
    for changes in (
        {"status": "open"},
        {"resolution": ""},
        {"creditsRefunded": -1},
        {"creditsRefunded": "much"},
        {"status": "dismissed", "creditsRefunded": 0.01},
    ):
        refusal(admin.http.post(path, json={**good, **changes}), 400, "INVALID_REQUEST")
    unknown = f"{PATH}/0199c0de-0000-7000-8000-000000000001/resolve"
    refusal(admin.http.post(unknown, json=good), 404, "NOT_FOUND")


def test_case_27_upheld_fraud_costs_what_is_locked_for_the_node_while_it_runs(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    """A tenth of the bid is locked by the auction's terms; the rest of the stake stays."""
    owner = make_caller(10)
    standing = {"price_cents": 5, "standingBid": {"bidAmount": 0.1}}
    agent = make_agent(owner=owner, is_held=True, price=standing, stake=1)
    node = {"capabilityId": agent.capability, "selection": "auction", "maxCostCredits": 1}
    workflow_id = answer(payer.publish({"nodes": {"a": node}}))["workflowId"]
    agent.stub.wait_dispatched()
    before = payer.balance()["balance"]

    def uphold() -> Json:
        body = complaint(workflow_id, disputeType="fraud", nodeId="a", respondentDid=agent.did)
        path = f"{PATH}/{answer(payer.http.post(PATH, json=body))['id']}/resolve"
        decision = {"status": "resolved_complainant", "resolution": "it was"}
        return answer(admin.http.post(path, json=decision))

    assert uphold()["creditsSlashed"] == 0.01
    assert payer.balance()["balance"] == pytest.approx(before + 0.01)
    stake = answer(owner.http.get(f"/v1/stakes/{agent.did}"))
    assert (stake["stakedAmount"], stake["lockedAmount"]) == (0.99, 0)
    agent.stub.gate.set()
    record = payer.finished(f"/v1/workflows/{workflow_id}")
    assert record["status"] == "success", record
    assert uphold()["creditsSlashed"] == 0
    assert answer(owner.http.get(f"/v1/stakes/{agent.did}"))["stakedAmount"] == 0.99
    found = answer(admin.http.get(f"/v1/audit?targetId={agent.did}&targetType=stake"))["entries"]
    events = [event for entry in found for event in events_of(entry)]
    slashed = [one["payload"] for one in events if one["type"] == "stake.slashed"]
    assert [one["amountCredits"] for one in slashed] == ["0", "0.01"]


# -- feedback --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"rating": 0.9}, 0.9),
        ({"rating": 0}, 0),
        ({"rating": 5}, 1),
        ({"rating": 4}, 0.75),
        ({"rating": 1}, 1),
        ({"rating": 1, "scale": 5}, 0),
        ({"rating": 1, "scale": 1}, 1),
    ],
)
def test_rating_is_a_share_or_stars(
    payer: Caller, make_agent: MakeAgent, given: Json, stored: float
) -> None:
    agent = make_agent()
    record = payer.run(chain_of(agent.capability, "a"))
    path = f"/v1/workflows/{record['id']}/feedback"
    reply = answer(payer.http.post(path, json={"agentDid": agent.did, "comment": "ok", **given}))
    assert (reply["rating"], reply["comment"], reply["agentDid"]) == (stored, "ok", agent.did)
    refusal(payer.http.post(path, json={"agentDid": agent.did, **given}), 409, "CONFLICT")


def test_feedback_is_repeated_under_its_key_and_given_by_the_payer_alone(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    agent = make_agent()
    path = f"/v1/workflows/{payer.run(chain_of(agent.capability, 'a'))['id']}/feedback"
    body = {"agentDid": agent.did, "rating": 0.5}
    for stranger in (make_caller(), acting_as(agent, make_caller), admin):
        refusal(stranger.http.post(path, json=body), 404, "NOT_FOUND")
    for changes in ({"rating": 6}, {"rating": -1}, {"rating": "5"}, {"agentDid": "did:net:x"}):
        refusal(payer.http.post(path, json={**body, **changes}), 400, "INVALID_REQUEST")
    headers = {"Idempotency-Key": "feedback-1"}
    first = answer(payer.http.post(path, json=body, headers=headers))
    assert answer(payer.http.post(path, json=body, headers=headers)) == first
    other = {"Idempotency-Key": "feedback-2"}
    refusal(payer.http.post(path, json=body, headers=other), 409, "CONFLICT")


def test_feedback_waits_until_the_agents_node_has_ended(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    workflow_id = answer(payer.publish(chain_of(agent.capability, "a")))["workflowId"]
    agent.stub.wait_dispatched()
    path = f"/v1/workflows/{workflow_id}/feedback"
    body = {"agentDid": agent.did, "rating": 0.5}
    refusal(payer.http.post(path, json=body), 409, "CONFLICT")
