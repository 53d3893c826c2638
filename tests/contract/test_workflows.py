"""Workflow records, lists and cancellation, row by row.

Spec: Workflow record, Workflow statuses, Execution order.
"""

from __future__ import annotations

import re
import uuid

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

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_record_has_id_status_intent_nodes_createdAt_completedAt(
    payer: Caller, make_agent: MakeAgent
) -> None:
    record = payer.run(chain_of(make_agent().capability))
    assert uuid.UUID(record["id"])
    assert record["status"] == "success"
    assert record["intent"] == "a chain"
    assert list(record["nodes"]) == ["a", "b", "c"]
    for name in ("createdAt", "startedAt", "completedAt"):
        assert TIME.fullmatch(record[name]), record[name]
    assert record["createdAt"] <= record["startedAt"] <= record["completedAt"]


def test_nodes_carry_status_result_and_metrics_latency_ms(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=25)
    node = payer.run(chain_of(agent.capability, "a"))["nodes"]["a"]
    assert node["status"] == "success"
    assert node["result"]["inputs"] == {"own": "a"}
    assert isinstance(node["metrics"]["latency_ms"], int)
    assert node["agentDid"] == agent.did
    assert node["attempts"] == 1
    assert node["costCredits"] == 0.25
    assert TIME.fullmatch(node["startedAt"])
    assert TIME.fullmatch(node["completedAt"])


def test_record_carries_traceId_and_spentCredits(payer: Caller, make_agent: MakeAgent) -> None:
    record = payer.run(chain_of(make_agent(price_cents=33).capability))
    assert re.fullmatch(r"[0-9a-f]{32}", record["traceId"])
    assert record["spentCredits"] == 0.99
    assert record["error"] is None


def test_statuses_pending_running_success_are_seen_in_order(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    workflow_id = answer(payer.publish(chain_of(agent.capability, "ab")))["workflowId"]
    agent.stub.wait_dispatched()
    record = answer(payer.http.get(f"/v1/workflows/{workflow_id}"))
    assert record["status"] == "running"
    assert record["nodes"]["a"]["status"] in ("dispatched", "running")
    assert record["nodes"]["b"] == {"status": "pending", "dependsOn": ["a"]}
    assert record["completedAt"] is None
    agent.stub.gate.set()
    path = f"/v1/workflows/{workflow_id}"
    record = payer.finished(path)
    assert record["status"] == "success"


def test_nodes_without_mutual_dependencies_run_in_parallel(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    manifest = {"nodes": {name: {"capabilityId": agent.capability} for name in "abc"}}
    workflow_id = answer(payer.publish(manifest))["workflowId"]
    for _ in range(3):
        agent.stub.wait_dispatched()
    agent.stub.gate.set()
    path = f"/v1/workflows/{workflow_id}"
    assert payer.finished(path)["status"] == "success"


def test_a_child_is_dispatched_after_all_its_parents(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    manifest = {
        "nodes": {
            "left": {"capabilityId": agent.capability},
            "right": {"capabilityId": agent.capability},
            "join": {"capabilityId": agent.capability, "dependsOn": ["left", "right"]},
        }
    }
    record = payer.run(manifest)
    assert set(record["nodes"]["join"]["result"]["parents"]) == {"left", "right"}
    assert agent.stub.dispatches[-1]["nodeId"] == "join"


@pytest.mark.parametrize("unknown", [str(uuid.UUID(int=4, version=4)), "nonsense", "'; DROP TABLE"])
def test_unknown_workflow_is_404(payer: Caller, unknown: str) -> None:
    refusal(payer.http.get(f"/v1/workflows/{unknown}"), 404, "NOT_FOUND")
    refusal(payer.cancel(f"/v1/workflows/{unknown}"), 404, "NOT_FOUND")


def test_anothers_workflow_is_404_and_not_listed(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent, admin: Caller
) -> None:
    path = f"/v1/workflows/{payer.run(chain_of(make_agent().capability))['id']}"
    other = make_caller()
    refusal(other.http.get(path), 404, "NOT_FOUND")
    refusal(other.cancel(path), 404, "NOT_FOUND")
    assert answer(other.http.get("/v1/workflows"))["workflows"] == []
    assert answer(admin.http.get(path))["payerDid"] == payer.did


def test_an_agent_sees_its_own_nodes_of_a_workflow_only(
    payer: Caller, make_agent: MakeAgent, admin: Caller
) -> None:
    mine, theirs = make_agent(), make_agent()
    manifest = chain_of(mine.capability, "ab")
    manifest["nodes"]["b"]["capabilityId"] = theirs.capability
    workflow_id = payer.run(manifest)["id"]
    key = answer(admin.http.post("/v1/keys", json={"ownerDid": mine.did}))["key"]
    path = f"/v1/workflows/{workflow_id}"
    record = answer(payer.http.get(path, headers={"x-api-key": key}))
    assert set(record["nodes"]) == {"a"}
    money_and_purpose = {"intent", "payerDid", "spentCredits", "error"}
    assert not money_and_purpose & set(record)
    assert "selection" not in record["nodes"]["a"]
    task_path = f"/v1/tasks/{record['taskId']}"
    task = answer(payer.http.get(task_path, headers={"x-api-key": key}))
    assert not {"description", "spentCredits"} & set(task)
    response = payer.cancel(path, **{"x-api-key": key})
    refusal(response, 404, "NOT_FOUND")


def test_list_is_newest_first_with_status_limit_offset_and_cursor(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    ids = [payer.run(chain_of(agent.capability, "a"))["id"] for _ in range(3)]
    failed = answer(payer.publish(chain_of(agent.capability, maxBudgetCredits=0.01)))["workflowId"]
    newest_first = [failed, *reversed(ids)]
    page = answer(payer.http.get("/v1/workflows"))
    assert [row["id"] for row in page["workflows"]] == newest_first
    assert (page["limit"], page["offset"], page["nextCursor"]) == (50, 0, None)
    assert {"status", "intent", "createdAt", "taskId"} <= set(page["workflows"][0])
    page = answer(payer.http.get("/v1/workflows?limit=2"))
    rest = answer(payer.http.get(f"/v1/workflows?limit=2&cursor={page['nextCursor']}"))
    assert [row["id"] for row in page["workflows"] + rest["workflows"]] == newest_first
    assert rest["nextCursor"] is None
    page = answer(payer.http.get("/v1/workflows?limit=2&offset=1"))
    assert [row["id"] for row in page["workflows"]] == newest_first[1:3]
    created = [row["createdAt"] for row in answer(payer.http.get("/v1/workflows"))["workflows"]]
    period = {"startTime": created[2], "endTime": created[0]}
    page = answer(payer.http.get("/v1/workflows", params=period))
    assert [row["id"] for row in page["workflows"]] == newest_first[1:3], "the end is excluded"
    page = answer(payer.http.get("/v1/workflows?status=failed"))
    assert [row["id"] for row in page["workflows"]] == [failed]


def test_the_workflow_of_an_idempotency_key_is_found_by_its_publisher(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    manifest, key = chain_of(make_agent().capability, "a"), unique("a key/")
    ids = [
        answer(payer.publish(manifest, **{"Idempotency-Key": one}))["workflowId"]
        for one in (key, unique("other"))
    ]

    def found(caller: Caller, text: str) -> list[str]:
        query = {"idempotencyKey": text}
        rows = answer(caller.http.get("/v1/workflows", params=query))["workflows"]
        return [row["id"] for row in rows]

    assert found(payer, key) == ids[:1]
    assert found(payer, unique("unused")) == found(make_caller(), key) == []
    refusal(payer.http.get("/v1/workflows?idempotencyKey="), 400, "INVALID_REQUEST")


def test_cancel_answers_with_what_it_did(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    manifest = chain_of(agent.capability, maxBudgetCredits=7)
    workflow_id = answer(payer.publish(manifest))["workflowId"]
    agent.stub.wait_dispatched()
    assert payer.balance()["pending"] == 7
    path = f"/v1/workflows/{workflow_id}"
    body = {"reason": "user_request", "details": "not needed"}
    reply = answer(payer.http.post(f"{path}/cancel", json=body))
    assert reply["success"] is True
    assert (reply["workflowId"], reply["status"]) == (workflow_id, "cancelled")
    assert TIME.fullmatch(reply["cancelledAt"])
    assert reply["cancelledBy"] == payer.did
    assert reply["nodesAffected"] == 3
    assert reply["refundedCredits"] == 7
    record = answer(payer.http.get(path))
    assert record["status"] == "cancelled"
    assert {node["status"] for node in record["nodes"].values()} == {"skipped"}
    assert payer.balance() == {**payer.balance(), "balance": 100, "pending": 0}


def test_cancel_of_a_finished_workflow_is_409(payer: Caller, make_agent: MakeAgent) -> None:
    workflow_id = payer.run(chain_of(make_agent().capability))["id"]
    response = payer.cancel(f"/v1/workflows/{workflow_id}")
    refusal(response, 409, "NOT_CANCELLABLE")


def test_cancel_names_its_reason(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    path = f"/v1/workflows/{answer(payer.publish(chain_of(agent.capability)))['workflowId']}"
    for body in (None, {}, {"reason": None}, {"reason": ""}, {"details": "not needed"}):
        response = payer.http.post(f"{path}/cancel", json=body)
        (problem,) = refusal(response, 400, "INVALID_REQUEST")["errors"]
        assert problem["path"] == "reason" or body is None
    refusal(payer.http.post(f"{path}/cancel"), 400, "INVALID_REQUEST")
    assert answer(payer.http.get(path))["status"] in ("pending", "running")


@pytest.mark.parametrize("body", [{"reason": "boredom"}, {"reason": "error", "details": 3}, []])
def test_a_bad_cancel_is_400(payer: Caller, body: object) -> None:
    response = payer.http.post(f"/v1/workflows/{uuid.uuid4()}/cancel", json=body)
    refusal(response, 400, "INVALID_REQUEST")
