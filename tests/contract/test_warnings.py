"""Nothing is accepted and ignored in silence: `warnings` of publish, dry run, bulk and tasks.

Decision requests-json-and-client.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Caller, Json, MakeAgent, RegisteredAgent, answer

TAKES_TEXT: Json = {
    "price_cents": 1,
    "inputSchema": {"type": "object", "properties": {"text": {"type": ["string", "object"]}}},
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
        beside={
            "intent": "x",
            "settings": {"maxRuntimeMs": 60_000},
            "trigger": {"type": "manual"},
            "webhookUrl": "http://127.0.0.1:9/x",
        },
    )
    assert warned(payer, body) == []


@pytest.mark.parametrize(
    ("change", "path", "said"),
    [
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


def dry(payer: Caller, body: Json) -> list[str]:
    return list(answer(payer.publish({**body, "dryRun": True}))["warnings"])


def test_an_input_that_every_agent_requires_and_nothing_gives_is_a_warning(
    payer: Caller, make_agent: MakeAgent
) -> None:
    schema = {"required": ["text", "mark"], "properties": {"text": {}, "mark": {}}}
    agent = make_agent(price={"price_cents": 1, "inputSchema": schema})
    mapped = {"text": "$.a.result.inputs.text"}
    body = manifest(agent.capability)
    body["nodes"]["b"] = {**body["nodes"]["a"], "dependsOn": ["a"], "inputMappings": mapped}
    found = [one.partition(f"'{agent.capability}' ") for one in warned(payer, body)]
    assert [f"{path}{said.partition(',')[0]}" for path, _, said in found] == [
        f"nodes.{node}.payload: every agent for requires the input '{name}'"
        for node, name in (("a", "mark"), ("a", "text"), ("b", "mark"))
    ]


@pytest.mark.parametrize(
    ("expected", "value", "said"),
    [
        ({"type": "string"}, 5, "is a number, every agent"),
        ({"type": ["integer", "null"]}, "5", "expects: null, number"),
        ({"enum": ["a", "b"]}, {}, "expects: string"),
        ({"type": "string"}, "{{n}}", None),
        ({"type": "integer"}, 1.5, None),
        ({"anyOf": [{"type": "string"}, {}]}, 5, None),
        ({"$ref": "#/$defs/none"}, 5, None),
    ],
)
def test_a_payload_of_a_type_that_every_agent_refuses_is_a_warning(
    payer: Caller, make_agent: MakeAgent, expected: Json, value: Any, said: str | None
) -> None:
    schema = {"properties": {"x": expected, "n": {}}, "$defs": {"none": {}}}
    agent = make_agent(price={"price_cents": 1, "inputSchema": schema})
    found = dry(payer, manifest(agent.capability, payload={"x": value, "n": "1"}))
    assert len(found) == (said is not None)
    if said is not None:
        assert found[0].startswith("nodes.a.payload.x: ") and said in found[0]


@pytest.mark.parametrize(("more", "warnings"), [({}, 1), ({"additionalProperties": True}, 0)])
def test_a_mapping_from_a_member_that_no_agent_declares_is_a_warning(
    payer: Caller, make_agent: MakeAgent, more: Json, warnings: int
) -> None:
    output = {"type": "object", "properties": {"words": {"type": "integer"}}, **more}
    agent = make_agent(price={"price_cents": 1, "outputSchema": output})
    body = manifest(agent.capability)
    mapped = {"n": "$.a.result.wrods", "m": "$.a.result.words", "all": "$.a.result"}
    body["nodes"]["b"] = {**body["nodes"]["a"], "dependsOn": ["a"], "inputMappings": mapped}
    found = dry(payer, body)
    assert len(found) == warnings
    if warnings:
        assert found[0].startswith("nodes.b.inputMappings.n: ") and "'wrods'" in found[0]
        assert found[0].endswith("outputSchema: 'words'")


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


def test_a_task_warns_of_words_that_nobody_takes(payer: Caller, shouter: RegisteredAgent) -> None:
    task = {"description": f"[{shouter.capability}] go", "webhookUrl": "http://127.0.0.1:9/x"}
    (words,) = answer(payer.http.post("/v1/tasks/publish", json=task))["warnings"]
    assert words.startswith("nodes.task.payload.description: ")


def test_many_warnings_are_counted(payer: Caller, shouter: RegisteredAgent) -> None:
    body = manifest(shouter.capability, payload={f"m{n}": n for n in range(1_000)})
    found = answer(payer.publish({**body, "dryRun": True}))["warnings"]
    assert len(found) == 21 and found[-1] == "and 980 more warnings"
