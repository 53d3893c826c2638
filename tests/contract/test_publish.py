"""POST /v1/workflows/publish and its kin, row by row.

Spec: Workflow manifest, Node definition, Endpoints, Settlement rules 1.
"""

from __future__ import annotations

import time
import uuid

import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    asking,
    chain_of,
    refusal,
    unique,
)


def one_node(capability: str, **node: object) -> dict[str, object]:
    return {"nodes": {"only": {"capabilityId": capability, **node}}}


def test_publish_response_has_workflowId_taskId_status_pending(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    reply = answer(payer.publish(one_node(agent.capability)))
    assert uuid.UUID(reply["workflowId"]).version == 7
    assert uuid.UUID(reply["taskId"]).version == 7
    assert reply["taskId"] != reply["workflowId"]
    assert reply["status"] == "pending"
    agent.stub.gate.set()


def test_alternative_spellings_capability_inputMapping_timeout(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    record = payer.run(
        {
            "nodes": {
                "a": {"capability": agent.capability, "payload": {"own": 1}, "timeout": 9_000},
                "b": {
                    "capability": agent.capability,
                    "dependsOn": ["a"],
                    "inputMapping": {"x": "$.a.result.inputs.own"},
                },
            }
        }
    )
    assert record["status"] == "success"
    assert record["nodes"]["b"]["result"]["inputs"] == {"x": 1}


def test_inputs_are_payload_merged_with_mappings_and_mapped_values_win(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    manifest = {
        "nodes": {
            "a": {"capabilityId": agent.capability, "payload": {"list": [{"x": "deep"}]}},
            "b": {
                "capabilityId": agent.capability,
                "dependsOn": ["a"],
                "payload": {"v": "static", "kept": True, "text": "see {{v}}, {{unknown}}"},
                "inputMappings": {"v": "$.a.result.inputs.list[0].x"},
            },
        }
    }
    record = payer.run(manifest)
    inputs = record["nodes"]["b"]["result"]["inputs"]
    assert inputs == {"v": "deep", "kept": True, "text": "see deep, {{unknown}}"}
    parents = record["nodes"]["b"]["result"]["parents"]
    assert parents["a"]["result"]["inputs"] == {"list": [{"x": "deep"}]}


def test_prefer_wait_answers_with_the_finished_record(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    response = payer.publish(chain_of(agent.capability), Prefer="wait=60")
    record = answer(response)
    assert response.headers["preference-applied"] == "wait=60"
    assert record["status"] == "success"
    assert record["workflowId"] == record["id"]
    assert record["taskId"]


def test_prefer_wait_that_is_too_short_answers_as_publish(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    began = time.monotonic()
    reply = answer(payer.publish(one_node(agent.capability), Prefer="wait=1"))
    assert time.monotonic() - began >= 1
    assert set(reply) == {"id", "workflowId", "taskId", "status"}
    agent.stub.gate.set()


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_an_idempotency_key_has_1_to_255_characters(payer: Caller, key: str) -> None:
    manifest = one_node("cap.any.v1")
    refusal(payer.publish(manifest, **{"Idempotency-Key": key}), 400, "INVALID_REQUEST")


def test_case_04_insufficient_credits_is_401_and_stores_nothing(
    make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=100)
    poor = make_caller(2)
    response = poor.publish(chain_of(agent.capability))
    refusal(response, 401, "INSUFFICIENT_CREDITS")
    assert response.headers["www-authenticate"]
    assert answer(poor.http.get("/v1/workflows"))["workflows"] == []
    assert poor.balance()["balance"] == 2


def test_case_39_an_estimate_above_what_accounts_hold_is_400(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=10**11)
    refusal(payer.publish(chain_of(agent.capability, "ab")), 400, "INVALID_MANIFEST")
    refusal(payer.publish(chain_of(agent.capability, "a")), 401, "INSUFFICIENT_CREDITS")
    assert payer.balance()["balance"] == 100


def test_dry_run_estimates_and_stores_nothing(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(price_cents=25)
    reply = answer(payer.publish({**chain_of(agent.capability), "dryRun": True}))
    assert reply["dryRun"] is True
    assert reply["estimatedCredits"] == 0.75
    assert reply["order"] == ["a", "b", "c"]
    assert reply["candidates"] == {name: [agent.did] for name in "abc"}
    assert answer(payer.http.get("/v1/workflows"))["workflows"] == []
    assert payer.balance()["pending"] == 0
    assert not agent.stub.dispatches


def test_list_form_publishes_nodes_and_edges(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    body = {
        "nodes": [
            {"id": "one", "capability": agent.capability, "input": {"own": 1}},
            {"id": "two", "capability": agent.capability, "targetAgentId": agent.did},
        ],
        "edges": [{"from": "one", "to": "two"}],
        "maxCents": 100,
    }
    record = answer(payer.http.post("/v1/workflows", json=body, headers={"Prefer": "wait=60"}))
    assert record["status"] == "success"
    assert record["nodes"]["two"]["result"]["parents"]["one"]["result"]["inputs"] == {"own": 1}
    assert record["id"] == record["workflowId"]


def test_no_candidate_fails_the_node_skips_the_rest_and_returns_the_money(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    manifest = chain_of(agent.capability, maxBudgetCredits=50)
    manifest["nodes"]["b"]["capabilityId"] = unique("cap.nobody.")
    record = payer.run(manifest)
    assert record["status"] == "failed"
    assert record["nodes"]["a"]["status"] == "success"
    assert record["nodes"]["b"]["status"] == "failed"
    assert record["nodes"]["b"]["error"]["code"] == "NO_CANDIDATE"
    assert record["nodes"]["c"]["status"] == "skipped"
    assert payer.balance()["pending"] == 0
    assert payer.balance()["balance"] == pytest.approx(99.9, abs=1e-9)


def test_payerDid_of_another_is_forbidden(payer: Caller, make_agent: MakeAgent) -> None:
    manifest = {**chain_of(make_agent().capability), "payerDid": unique("did:net:other-")}
    refusal(payer.publish(manifest), 403, "FORBIDDEN")


def test_payerDid_is_honoured_for_an_administrator(
    admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    record = admin.run({**chain_of(make_agent().capability), "payerDid": payer.did})
    assert record["payerDid"] == payer.did
    assert payer.balance()["balance"] == 99.7


def test_bulk_publish_answers_in_order_with_ids_or_problems(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    workflows = [chain_of(agent.capability, "ab"), {"nodes": {}}, chain_of(agent.capability, "a")]
    response = payer.http.post("/v1/workflows/publish/bulk", json={"workflows": workflows})
    first, second, third = answer(response)["results"]
    assert first["status"] == third["status"] == "pending"
    assert second["code"] == "INVALID_MANIFEST"
    assert second["status"] == 400
    for reply, nodes in ((first, {"a", "b"}), (third, {"a"})):
        path = f"/v1/workflows/{reply['workflowId']}"
        record = payer.finished(path)
        assert record["status"] == "success"
        assert set(record["nodes"]) == nodes


@pytest.mark.parametrize("body", [{}, {"workflows": {}}, {"workflows": []}, []])
def test_bulk_publish_needs_one_to_1000_workflows(payer: Caller, body: object) -> None:
    response = payer.http.post("/v1/workflows/publish/bulk", json=body)
    refusal(response, 400, "INVALID_REQUEST")


def test_bulk_publish_refuses_1001_workflows(payer: Caller) -> None:
    body = {"workflows": [one_node("cap.any.v1")] * 1_001}
    response = payer.http.post("/v1/workflows/publish/bulk", json=body)
    refusal(response, 400, "INVALID_REQUEST")
    assert answer(payer.http.get("/v1/workflows"))["workflows"] == []


def test_each_manifest_of_a_bulk_is_held_to_the_limit_of_one(payer: Caller) -> None:
    big = one_node("cap.any.v1", payload={"text": "x" * 600_000})
    response = payer.http.post("/v1/workflows/publish/bulk", json={"workflows": [big]})
    assert answer(response)["results"][0]["code"] == "PAYLOAD_TOO_LARGE"


def test_a_publish_goes_on_after_its_client_has_left(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    with asking(payer, "/v1/workflows/publish", one_node(agent.capability), prefer="wait=30"):
        agent.stub.wait_dispatched()
    agent.stub.gate.set()
    (row,) = answer(payer.http.get("/v1/workflows"))["workflows"]
    path = f"/v1/workflows/{row['id']}"
    assert payer.finished(path)["status"] == "success"
