"""Parsing manifests: each defect by name, all at once, and never another error.

Reference: features.md (Workflows, Nodes).
"""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from core.errors import ErrorCode, Problem, ServiceError
from core.records.manifest import WorkflowManifest, parse_list_form, parse_manifest
from core.workflow.dag import compile_workflow

NODE: dict[str, Any] = {"capabilityId": "cap.x.v1"}


def problems(raw: object) -> list[Problem]:
    with pytest.raises(ServiceError) as refused:
        parse_manifest(raw)
    assert refused.value.code is ErrorCode.INVALID_MANIFEST
    return list(refused.value.problems)


def with_node(**members: Any) -> dict[str, Any]:
    return {"nodes": {"a": {**NODE, **members}}}


def with_settings(**members: Any) -> dict[str, Any]:
    return {"nodes": {"a": NODE}, "settings": members}


def test_whole_manifest_as_the_specification_shows_it() -> None:
    raw = {
        "intent": "Report on an article",
        "nodes": {
            "fetch": {"capabilityId": "cap.web.fetch.v1", "payload": {"url": "https://x.org"}},
            "report": {
                "capabilityId": "cap.doc.report.v1",
                "dependsOn": ["fetch"],
                "inputMappings": {"text": "$.fetch.result.body"},
                "requiresVerification": True,
                "timeoutMs": 30000,
                "maxRetries": 2,
                "targetAgentId": "did:x:y",
                "allowBroadcastFallback": True,
            },
        },
        "trigger": {"type": "manual", "config": {"note": 1}},
        "settings": {"maxRuntimeMs": 60000, "allowFallbackAgents": False, "maxBudgetCredits": 2.5},
    }
    before = copy.deepcopy(raw)
    manifest = parse_manifest(raw)
    assert raw == before
    report = manifest.nodes["report"]
    assert (report.timeout_ms, report.max_retries, report.target_agent_id) == (30_000, 2, "did:x:y")
    assert manifest.budget_micro == 2_500_000
    assert parse_manifest(manifest.to_json()) == manifest


def test_node_extensions() -> None:
    manifest = parse_manifest(
        with_node(verifierCapabilityId="cap.judge", selection="best", maxCostCredits="0.000001")
    )
    node = manifest.nodes["a"]
    assert (node.verifier_capability_id, node.selection, node.max_cost_micro) == (
        "cap.judge",
        "best",
        1,
    )
    assert parse_manifest(manifest.to_json()) == manifest


def test_null_is_absent() -> None:
    manifest = parse_manifest(
        {
            "intent": None,
            "nodes": {"a": {**NODE, "dependsOn": None, "payload": None, "timeoutMs": None}},
            "settings": {"maxBudgetCredits": None},
            "trigger": None,
        }
    )
    assert manifest == parse_manifest({"nodes": {"a": NODE}})


@pytest.mark.parametrize(
    ("given_credits", "micro"),
    [(0, 0), (1, 10**6), (0.1, 100_000), ("0.1", 100_000), (1e-06, 1), (2.5, 2_500_000)],
)
def test_budget_without_float_error(given_credits: Any, micro: int) -> None:
    assert parse_manifest(with_settings(maxBudgetCredits=given_credits)).budget_micro == micro


def test_budget_and_cents_that_agree() -> None:
    raw = {**with_settings(maxBudgetCredits="0.05"), "maxCents": 5}
    assert parse_manifest(raw).budget_micro == 50_000


# One case per defect: the manifest and the path that must be named.
DEFECTS: dict[str, tuple[Any, str]] = {
    "not an object": ([], ""),
    "nothing": (None, ""),
    "nodes null": ({"nodes": None}, "nodes"),
    "nodes missing": ({"intent": "nothing"}, "nodes"),
    "nodes a list": ({"nodes": []}, "nodes"),
    "node no object": ({"nodes": {"a": 1}}, "nodes.a"),
    "capability null": ({"nodes": {"a": {"capabilityId": None}}}, "nodes.a.capabilityId"),
    "capability empty": (with_node(capabilityId=""), "nodes.a.capabilityId"),
    "capability with newline": (with_node(capabilityId="cap\n"), "nodes.a.capabilityId"),
    "capability too long": (with_node(capabilityId="c" * 129), "nodes.a.capabilityId"),
    "alias with bad value": ({"nodes": {"a": {"capability": "!"}}}, "nodes.a.capability"),
    "capability twice": (with_node(capability="cap.other"), "nodes.a.capability"),
    "mapping twice": (
        {
            "nodes": {
                "a": NODE,
                "b": {
                    **NODE,
                    "dependsOn": ["a"],
                    "inputMapping": {},
                    "inputMappings": {"x": "$.a.result"},
                },
            }
        },
        "nodes.b.inputMapping",
    ),
    "input instead of payload": (with_node(input={}), "nodes.a.input"),
    "dependsOn of numbers": (with_node(dependsOn=[1]), "nodes.a.dependsOn[0]"),
    "mappings a list": (with_node(inputMappings=[]), "nodes.a.inputMappings"),
    "mapping a number": (with_node(inputMappings={"x": 1}), "nodes.a.inputMappings.x"),
    "timeout a boolean": (with_node(timeoutMs=True), "nodes.a.timeoutMs"),
    "timeout zero": (with_node(timeoutMs=0), "nodes.a.timeoutMs"),
    "retries negative": (with_node(maxRetries=-1), "nodes.a.maxRetries"),
    "payload a list": (with_node(payload=[]), "nodes.a.payload"),
    "verification a text": (with_node(requiresVerification="yes"), "nodes.a.requiresVerification"),
    "dependsOn a text": (with_node(dependsOn="a"), "nodes.a.dependsOn"),
    "timeout a fraction": (with_node(timeoutMs=1.5), "nodes.a.timeoutMs"),
    "timeout above 30 days": (with_node(timeoutMs=30 * 86_400_000 + 1), "nodes.a.timeoutMs"),
    "retries a boolean": (with_node(maxRetries=True), "nodes.a.maxRetries"),
    "retries too many": (with_node(maxRetries=101), "nodes.a.maxRetries"),
    "wait negative": (with_node(waitForAgentMs=-1), "nodes.a.waitForAgentMs"),
    "wait beyond 2^53": (with_node(waitForAgentMs=2**53), "nodes.a.waitForAgentMs"),
    "target empty": (with_node(targetAgentId=""), "nodes.a.targetAgentId"),
    "target with NUL": (with_node(targetAgentId="a\x00"), "nodes.a.targetAgentId"),
    "fallback a number": (with_node(allowBroadcastFallback=1), "nodes.a.allowBroadcastFallback"),
    "selection unknown": (with_node(selection="worst"), "nodes.a.selection"),
    "window without auction": (with_node(auctionWindowMs=5), "nodes.a.auctionWindowMs"),
    "window negative": (
        with_node(selection="auction", auctionWindowMs=-1),
        "nodes.a.auctionWindowMs",
    ),
    "target of an auction": (
        with_node(selection="auction", targetAgentId="did:x:a"),
        "nodes.a.targetAgentId",
    ),
    "cost negative": (with_node(maxCostCredits=-1), "nodes.a.maxCostCredits"),
    "cost too fine": (with_node(maxCostCredits="0.0000001"), "nodes.a.maxCostCredits"),
    "node name empty": ({"nodes": {"": NODE}}, "nodes['']"),
    "node name too long": ({"nodes": {"n" * 129: NODE}}, f"nodes['{'n' * 127}…']"),
    "node name with quote": ({"nodes": {"it's": NODE}}, "nodes['it's']"),
    "node name with newline": ({"nodes": {"a\n": NODE}}, "nodes['a\n']"),
    "node name with outer space": ({"nodes": {" a": NODE}}, "nodes[' a']"),
    "node name of a payment line": ({"nodes": {"a#verify": NODE}}, "nodes['a#verify']"),
    "settings a list": ({**with_node(), "settings": []}, "settings"),
    "settings member": (with_settings(retries=1), "settings.retries"),
    "runtime beyond 30 days": (with_settings(maxRuntimeMs=2_592_000_001), "settings.maxRuntimeMs"),
    "budget negative": (with_settings(maxBudgetCredits=-1), "settings.maxBudgetCredits"),
    "budget beyond the bound": (with_settings(maxBudgetCredits=1e16), "settings.maxBudgetCredits"),
    "budget a word": (with_settings(maxBudgetCredits="much"), "settings.maxBudgetCredits"),
    "runtime zero": (with_settings(maxRuntimeMs=0), "settings.maxRuntimeMs"),
    "fallback agents a string": (
        with_settings(allowFallbackAgents="no"),
        "settings.allowFallbackAgents",
    ),
    "budget a boolean": (with_settings(maxBudgetCredits=True), "settings.maxBudgetCredits"),
    "budget NaN text": (with_settings(maxBudgetCredits="NaN"), "settings.maxBudgetCredits"),
    "budget NaN": (with_settings(maxBudgetCredits=float("nan")), "settings.maxBudgetCredits"),
    "cents a fraction": ({**with_node(), "maxCents": 0.5}, "maxCents"),
    "cents negative": ({**with_node(), "maxCents": -1}, "maxCents"),
    "cents beside another budget": (
        {**with_settings(maxBudgetCredits=1), "maxCents": 99},
        "maxCents",
    ),
    "budget at the top": ({**with_node(), "budget": 5}, "budget"),
    "intent with NUL": ({**with_node(), "intent": "a\x00b"}, "intent"),
    "intent without UTF-8": ({**with_node(), "intent": "\ud800"}, "intent"),
    "trigger without type": ({**with_node(), "trigger": {}}, "trigger.type"),
    "trigger config no object": (
        {**with_node(), "trigger": {"type": "webhook", "config": 1}},
        "trigger.config",
    ),
    "trigger without config": (
        {**with_node(), "trigger": {"type": "event"}},
        "trigger.config.eventType",
    ),
    "node with the trigger's name": (
        {"nodes": {"trigger": NODE}, "trigger": {"type": "webhook"}},
        "nodes.trigger",
    ),
    "trigger unknown": ({**with_node(), "trigger": {"type": "moon"}}, "trigger.type"),
    "trigger member": ({**with_node(), "trigger": {"type": "manual", "x": 1}}, "trigger.x"),
    "payer no DID": ({**with_node(), "payerDid": "me"}, "payerDid"),
    "dryRun a string": ({**with_node(), "dryRun": "yes"}, "dryRun"),
    "webhook no URL": ({**with_node(), "webhookUrl": "ftp://x"}, "webhookUrl"),
}


@pytest.mark.parametrize(("raw", "path"), DEFECTS.values(), ids=DEFECTS)
def test_defect(raw: Any, path: str) -> None:
    found = problems(raw)
    assert [problem.path for problem in found] == [path]
    assert found[0].got
    assert found[0].expected


def test_all_problems_come_at_once_those_of_the_graph_included() -> None:
    raw = {
        "intent": 1,
        "nodes": {
            "a": {**NODE, "dependsOn": ["b"], "maxRetries": "x"},
            "b": {**NODE, "dependsOn": ["a", "nobody"], "inputMappings": {"y": "$..z"}},
            "c": {**NODE, "auctionWindowMs": 5},
        },
        "trigger": {"type": "event"},
    }
    assert {problem.path for problem in problems(raw)} == {
        "intent",
        "nodes.a.maxRetries",
        "nodes.a.dependsOn[0]",
        "nodes.b.dependsOn[1]",
        "nodes.b.inputMappings.y",
        "nodes.c.auctionWindowMs",
        "trigger.config.eventType",
    }


def test_problems_show_long_values_cut() -> None:
    found = problems(with_node(capabilityId="!" * 10_000))
    assert len(found[0].got) < 100


# -- anything at all ------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["a", "b", "cap.x", "$.a.result.x", "did:x:y", "manual"])
)
KEYS = st.text(max_size=3) | st.sampled_from(
    [
        "nodes",
        "settings",
        "trigger",
        "intent",
        "maxCents",
        "a",
        "b",
        "id",
        "edges",
        "capability",
        "capabilityId",
        "dependsOn",
        "payload",
        "inputMappings",
        "inputMapping",
        "timeout",
        "timeoutMs",
        "maxCostCredits",
        "maxBudgetCredits",
        "type",
        "selection",
        "from",
        "to",
    ]
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
NEARLY = st.fixed_dictionaries(
    {"nodes": st.dictionaries(KEYS, st.dictionaries(KEYS, ANYTHING, max_size=4), max_size=3)},
    optional={"settings": ANYTHING, "trigger": ANYTHING, "maxCents": ANYTHING, "edges": ANYTHING},
)


@given(ANYTHING | NEARLY)
def test_parsing_raises_nothing_but_service_errors(raw: object) -> None:
    for parse in (parse_manifest, parse_list_form):
        try:
            manifest = parse(raw)
        except ServiceError as refused:
            assert refused.problems  # noqa: PT017
            continue
        assert isinstance(manifest, WorkflowManifest)
        try:
            compile_workflow(manifest)
        except ServiceError as refused:
            assert refused.problems  # noqa: PT017


def test_whole_doubles_are_whole_numbers_of_a_node() -> None:
    whole = {"timeoutMs": 5000.0, "maxRetries": 2.0, "waitForAgentMs": 5000.0}
    node = parse_manifest(with_node(**whole)).nodes["a"]
    assert (node.timeout_ms, node.max_retries, node.wait_for_agent_ms) == (5000, 2, 5000)
