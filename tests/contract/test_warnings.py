"""Nothing is accepted and ignored in silence: `warnings` of publish, dry run, bulk and tasks.

contract.md section 2 (Strictness); decision 0306.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Caller, Json, MakeAgent, RegisteredAgent, answer, unique

TAKES_TEXT: Json = {
    "price_cents": 1,
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}


@pytest.fixture
def shouter(make_agent: MakeAgent) -> RegisteredAgent:
    return make_agent(price=TAKES_TEXT)


def manifest(capability: str, *, beside: Json | None = None, **node: Any) -> Json:
    return {"nodes": {"a": {"capabilityId": capability, **node}}, **(beside or {})}


def warned(payer: Caller, body: Json) -> list[str]:
    """Return the warnings, which a publish, a dry run, the bulk and the waited reply all give."""
    stored = answer(payer.publish(body)).get("warnings", [])
    dry = answer(payer.publish({**body, "dryRun": True}))["warnings"]
    bulk = answer(payer.http.post("/v1/workflows/publish/bulk", json={"workflows": [body]}))
    listed = {**body, "nodes": [{"id": name, **one} for name, one in body["nodes"].items()]}
    as_lists = answer(payer.http.post("/v1/workflows", json=listed)).get("warnings", [])
    waited = payer.http.post(
        "/v1/workflows/publish", json=body, headers={"Prefer": "wait=30"}
    ).json()
    every = (dry, bulk["results"][0].get("warnings", []), as_lists, waited.get("warnings", []))
    assert all(one == stored for one in every), (stored, *every)
    return list(stored)


def test_what_has_an_effect_is_no_warning(payer: Caller, shouter: RegisteredAgent) -> None:
    body = manifest(
        shouter.capability,
        payload={"text": "say {{what}} {{ text }}", "what": "it"},
        timeoutMs=5_000,
        targetAgentId=shouter.did,
        allowBroadcastFallback=True,
        beside={"intent": "x", "settings": {"maxRuntimeMs": 60_000}, "trigger": {"type": "manual"}},
    )
    assert warned(payer, body) == []


@pytest.mark.parametrize(
    ("change", "path", "said"),
    [
        ({"beside": {"webhookUrl": "http://127.0.0.1:9/x"}}, "webhookUrl", "not supported yet"),
        ({"payload": {"txt": "x"}}, "nodes.a.payload.txt", "'text'"),
        ({"payload": {"text": "{{nam}}"}}, "nodes.a.payload", "{{nam}}"),
        ({"payload": {"text": {"deep": ["{{ nam }}"]}}}, "nodes.a.payload", "{{nam}}"),
        ({"allowBroadcastFallback": True}, "nodes.a.allowBroadcastFallback", "targetAgentId"),
        ({"verifierCapabilityId": "cap.v"}, "nodes.a.verifierCapabilityId", "requiresVerification"),
        ({"timeoutMs": 400_000}, "nodes.a.timeoutMs", "maxRuntimeMs"),
        (
            {"beside": {"trigger": {"type": "manual", "config": {"a": 1}}}},
            "trigger.config",
            "manual",
        ),
    ],
)
def test_what_has_no_effect_is_a_warning(
    payer: Caller, shouter: RegisteredAgent, change: Json, path: str, said: str
) -> None:
    (warning,) = warned(payer, manifest(shouter.capability, **change))
    assert warning.startswith(f"{path}: ") and said in warning


def test_a_mapping_that_nobody_takes_or_that_replaces_the_payload_is_a_warning(
    payer: Caller, shouter: RegisteredAgent
) -> None:
    body = manifest(shouter.capability, payload={"text": "x"})
    body["nodes"]["b"] = {
        "capabilityId": shouter.capability,
        "dependsOn": ["a"],
        "payload": {"text": "y"},
        "inputMappings": {"text": "$.a.result.inputs.text", "note": "$.a.result.inputs"},
    }
    found = warned(payer, body)
    assert [one.partition(": ")[0] for one in found] == [
        "nodes.b.payload.text",
        "nodes.b.inputMappings.note",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"t": {}}, "additionalProperties": True},
        {"properties": {"t": {}}, "additionalProperties": {"type": "string"}},
        {"properties": {"t": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"t": {}}, "anyOf": [{"properties": {"x": {}}}]},
        {"type": "object"},
        {},
    ],
)
def test_what_a_schema_leaves_open_is_no_warning(
    payer: Caller, make_agent: MakeAgent, schema: Json
) -> None:
    agent = make_agent(price={"price_cents": 1, "inputSchema": schema})
    dry = {**manifest(agent.capability, payload={"x": "1"}), "dryRun": True}
    assert answer(payer.publish(dry))["warnings"] == []


def test_one_agent_that_takes_it_is_enough(
    payer: Caller, make_agent: MakeAgent, shouter: RegisteredAgent
) -> None:
    body = {**manifest(shouter.capability, payload={"note": "x"}), "dryRun": True}
    assert len(answer(payer.publish(body))["warnings"]) == 1
    noted = {"properties": {"note": {}}}
    other = make_agent(
        price={"price_cents": 1, "inputSchema": noted}, capability=shouter.capability
    )
    assert answer(payer.publish(body))["warnings"] == []
    body["nodes"]["a"]["targetAgentId"] = shouter.did
    assert len(answer(payer.publish(body))["warnings"]) == 1
    body["nodes"]["a"]["targetAgentId"] = other.did
    assert answer(payer.publish(body))["warnings"] == []


def test_a_repeat_of_the_request_has_the_same_warnings(
    payer: Caller, shouter: RegisteredAgent
) -> None:
    body = manifest(shouter.capability, payload={"no": 1}, beside={"webhookUrl": "http://x.org"})
    headers = {"Idempotency-Key": unique("k-")}
    first, again = (
        answer(payer.http.post("/v1/workflows/publish", json=body, headers=headers))
        for _ in range(2)
    )
    assert len(first["warnings"]) == 2 and again == first


def test_a_task_warns_of_its_webhook_and_of_words_that_nobody_takes(
    payer: Caller, shouter: RegisteredAgent
) -> None:
    task = {"description": f"[{shouter.capability}] go", "webhookUrl": "http://127.0.0.1:9/x"}
    hook, words = answer(payer.http.post("/v1/tasks/publish", json=task))["warnings"]
    assert hook.startswith("webhookUrl: ") and words.startswith("nodes.task.payload.description: ")


def test_many_warnings_are_counted(payer: Caller, shouter: RegisteredAgent) -> None:
    body = manifest(shouter.capability, payload={f"m{n}": n for n in range(1_000)})
    found = answer(payer.publish({**body, "dryRun": True}))["warnings"]
    assert len(found) == 21 and found[-1] == "and 980 more warnings"
