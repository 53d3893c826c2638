"""Schemas are contracts: what breaks one is refused, unpaid, and told by its path, row by row.

Spec: Agent card (inputSchema, outputSchema), Errors.
"""

from __future__ import annotations

from typing import Any

import pytest

from core.workflow.rules.retry import AGENTS_PER_NODE_MAX
from tests.contract.conftest import Caller, MakeAgent, answer, refusal, unique
from tests.contract.test_execution_async import begin, handed_in, later, one_node, wait_node
from tests.contract.test_execution_replies import GOOD, scripted

Json = dict[str, Any]

NUMBER_N: Json = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
TEXT_T: Json = {"type": "object", "properties": {"t": {"type": "string"}}}
BAD = (200, {"status": "success", "result": {"n": "one"}})


def offer(price_cents: int = 20, **schemas: Json) -> Json:
    """Return what an agent's capability has besides its id."""
    return {"price_cents": price_cents, **schemas}


HOSTILE: dict[str, Json] = {
    "http reference": {"$ref": "http://127.0.0.1:9/schema.json"},
    "file reference": {"properties": {"a": {"$ref": "file:///etc/hostname"}}},
    "endless recursion": {"$ref": "#"},
    "doubling recursion": {"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]},
    "look-behind": {"pattern": "(?<=a)b"},
    "no JSON Schema": {"type": "strin"},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_card_with_a_schema_that_cannot_be_used_is_refused(payer: Caller, schema: Json) -> None:
    did = unique("did:net:agent-")
    one = {"id": "cap.test.hostile.v1", "description": "", "outputSchema": schema}
    card = {"did": did, "endpoint": "http://127.0.0.1:9", "version": 1, "capabilities": [one]}
    body = refusal(
        payer.http.post("/v1/agents/register", json={"acard": card}), 400, "INVALID_REQUEST"
    )
    (error,) = body["errors"]
    assert error["path"].startswith("acard.capabilities[0].outputSchema"), error
    refusal(payer.http.get(f"/v1/agents/{did}"), 404, "NOT_FOUND")


def test_inputs_that_break_the_schema_fail_the_node_before_any_dispatch(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price=offer(inputSchema=NUMBER_N))
    record = payer.run(one_node(agent.capability, payload={"n": "one"}))
    node = record["nodes"]["a"]
    assert (record["status"], node["error"]["code"]) == ("failed", "INPUT_SCHEMA"), record
    assert "$.n" in node["error"]["message"]
    assert record["spentCredits"] == 0
    assert agent.stub.dispatches == []
    reputation = answer(payer.http.get(f"/v1/reputation/{agent.did}"))
    assert reputation["failedTasks"] == 0, "the agent did nothing wrong"
    good = payer.run(one_node(agent.capability, payload={"n": 1}))
    assert (good["status"], good["spentCredits"]) == ("success", 0.2)


def test_inputs_that_agents_refuse_go_to_another(payer: Caller, make_agent: MakeAgent) -> None:
    """Also where as many refuse them as may fail a node: a card that refuses all costs nothing."""
    narrow = make_agent(price=offer(1, inputSchema=NUMBER_N))
    for _ in range(AGENTS_PER_NODE_MAX):
        make_agent(capability=narrow.capability, price=offer(1, inputSchema={"not": {}}))
    wide = make_agent(capability=narrow.capability, price=offer(3))
    record = payer.run(one_node(narrow.capability, payload={"n": "one"}, maxRetries=0))
    assert record["nodes"]["a"]["agentDid"] == wide.did, record
    assert (record["status"], narrow.stub.dispatches) == ("success", [])


def test_result_that_breaks_the_schema_fails_its_attempt_and_counts_against_the_agent(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(scripted(BAD), price=offer(outputSchema=NUMBER_N))
    record = payer.run(one_node(agent.capability, maxRetries=0))
    node = record["nodes"]["a"]
    assert (record["status"], node["error"]["code"]) == ("failed", "OUTPUT_SCHEMA"), record
    assert "$.n" in node["error"]["message"]
    assert "$.n: got 'one', expected a number" in node["error"]["message"]
    assert record["spentCredits"] == 0
    reputation = answer(payer.http.get(f"/v1/reputation/{agent.did}"))
    assert (reputation["failedTasks"], reputation["successfulTasks"]) == (1, 0)


def test_result_that_breaks_the_schema_is_tried_again(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(scripted(BAD, GOOD), price=offer(outputSchema=NUMBER_N))
    record = payer.run(one_node(agent.capability))
    assert (record["status"], record["nodes"]["a"]["attempts"]) == ("success", 2)
    assert record["spentCredits"] == 0.2


@pytest.mark.parametrize(
    ("result", "status"),
    [({"n": 1}, "success"), ({"n": "1"}, "failed"), ({"t": "x" * 80_000}, "failed")],
)
def test_result_that_is_handed_in_is_judged_too(
    payer: Caller, make_agent: MakeAgent, result: Json, status: str
) -> None:
    """The last one is stored by its hash and goes by reference."""
    agent = make_agent(later, price=offer(outputSchema=NUMBER_N))
    path = begin(payer, one_node(agent.capability, maxRetries=0))
    wait_node(payer, path, "running")
    (dispatch,) = agent.stub.dispatches
    body = handed_in(dispatch, result=result)
    answer(payer.http.post("/v1/workflows/nodeResult", json=body))
    node = payer.finished(path)["nodes"]["a"]
    assert node["status"] == status
    if status == "failed":
        assert node["error"]["code"] == "OUTPUT_SCHEMA", node


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_mapping_that_cannot_fit_is_refused_at_publish(
    payer: Caller, make_agent: MakeAgent, *, is_dry_run: bool
) -> None:
    source = make_agent(price=offer(outputSchema=TEXT_T))
    target = make_agent(price=offer(inputSchema=NUMBER_N))
    nodes = {
        "a": {"capabilityId": source.capability},
        "b": {
            "capabilityId": target.capability,
            "dependsOn": ["a"],
            "inputMappings": {"n": "$.a.result.t"},
        },
    }
    manifest = {"nodes": nodes, **({"dryRun": True} if is_dry_run else {})}
    body = refusal(payer.publish(manifest), 400, "INVALID_MANIFEST")
    assert body["errors"] == [
        {"path": "nodes.b.inputMappings.n", "got": "$.a.result.t: string", "expected": "number"}
    ]
    loose = make_agent(capability=source.capability)
    nodes["a"]["targetAgentId"] = loose.did
    answer(payer.publish({"nodes": nodes, "dryRun": True}))
