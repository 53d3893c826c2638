"""Bodies that change money, rights or times name every member: a misspelt one is refused.

Ignored, a misspelt member would leave a default in force.
"""

from __future__ import annotations

import pytest

from tests.contract.conftest import Caller, Json, answer, refusal, unique

DID = "did:net:somebody"
ID = "0198c0de-0000-7000-8000-000000000001"
DISPUTE = {"disputeType": "fraud", "description": "They are different people."}
DECISION = {"status": "resolved_complainant", "resolution": "refund it"}
BID = {"bidAmount": 1, "agentDid": DID}


@pytest.mark.parametrize(
    ("path", "body", "misspelt"),
    [
        ("/v1/ledger/deposit", {"amount": 7}, "ownerDID"),
        ("/v1/trust/revoke", {"did": DID, "reason": "r", "evidence": {}}, "expiresAT"),
        ("/v1/disputes", DISPUTE, "respondent"),
        (f"/v1/disputes/{ID}/resolve", DECISION, "creditsRefund"),
        ("/v1/invoices", {"workflowId": ID}, "payerDID"),
        ("/v1/tasks/publish", {"description": "do it"}, "maxBudget"),
        (f"/v1/tasks/{ID}/bid", BID, "stake"),
        (f"/v1/auctions/{ID}/a/bids", BID, "stake"),
        ("/v1/stakes", {"amount": 1}, "agentDID"),
        ("/v1/stakes/unstake", {"amount": 1}, "agentDID"),
        ("/v1/keys", {"scopes": ["agents:read"]}, "expiresAT"),
        (f"/v1/quotas/{DID}", {"maxWorkflowsPerDay": 1}, "maxWorkflows"),
        (f"/v1/quotas/{DID}/check", {}, "estimatedSpend"),
        ("/v1/stakes/slash", {"nodeId": "a"}, "node"),
    ],
)
def test_a_misspelt_member_is_refused_by_name(
    admin: Caller, path: str, body: Json, misspelt: str
) -> None:
    problem = refusal(admin.http.post(path, json={**body, misspelt: "x"}), 400, "INVALID_REQUEST")
    (item,) = [one for one in problem["errors"] if one["got"] == "an unknown member"]
    assert item["path"] == misspelt and "one of" in item["expected"]


def test_two_names_of_one_member_may_only_say_the_same(payer: Caller) -> None:
    one, other = "did:net:one", "did:net:two"
    body = {**DISPUTE, "respondentDid": one, "agentDid": other}
    problem = refusal(payer.http.post("/v1/disputes", json=body), 400, "INVALID_REQUEST")
    assert [item["path"] for item in problem["errors"]] == ["agentDid"]
    same = answer(payer.http.post("/v1/disputes", json={**body, "agentDid": one}))
    assert same["respondentDid"] == one


def test_two_names_of_a_heartbeats_member_may_only_say_the_same(payer: Caller) -> None:
    card = {"did": unique("did:net:two-"), "endpoint": "http://127.0.0.1:9", "version": 1}
    card["capabilities"] = [{"id": unique("cap.two.")}]
    answer(payer.http.post("/v1/agents/register", json={"acard": card}))
    body = {"did": card["did"], "queueDepth": 1, "queue_depth": 2}
    refusal(payer.http.post("/v1/heartbeat", json=body), 400, "INVALID_REQUEST")
    answer(payer.http.post("/v1/heartbeat", json={**body, "queue_depth": 1}))


def test_a_task_may_be_sent_as_clients_in_the_field_send_it(payer: Caller) -> None:
    """The HTTP reference: `webhookUrl` is no misspelt member."""
    task = {"description": "[cap.nowhere] do it", "budget": 1, "webhookUrl": "http://127.0.0.1:9"}
    answer(payer.http.post("/v1/tasks/publish", json=task))
