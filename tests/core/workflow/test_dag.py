"""Compiling: order, defaults, and every structural defect at once. Reference: features.md
(Nodes)."""

from __future__ import annotations

import graphlib
import itertools
import pickle
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from core.errors import ErrorCode, Problem, ServiceError
from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledWorkflow, WorkflowLimits, compile_workflow

NAMES = [f"n{index}" for index in range(12)]


def compiled(nodes: dict[str, Any], **manifest: Any) -> CompiledWorkflow:
    whole = {name: {"capabilityId": "cap.x", **node} for name, node in nodes.items()}
    return compile_workflow(parse_manifest({"nodes": whole, **manifest}))


def problems(nodes: dict[str, Any]) -> list[Problem]:
    with pytest.raises(ServiceError) as refused:
        compiled(nodes)
    assert refused.value.code is ErrorCode.INVALID_MANIFEST
    return list(refused.value.problems)


def test_defaults() -> None:
    workflow = compiled({"a": {}})
    assert (workflow.intent, workflow.max_runtime_ms, workflow.budget_micro) == ("", 300_000, None)
    assert workflow.allow_fallback_agents
    node = workflow.nodes["a"]
    assert (node.timeout_ms, node.max_retries, node.requires_verification) == (60_000, 3, False)
    assert (node.target_agent_id, node.allow_broadcast_fallback) == (None, False)
    assert node.verifier_capability_id == "cap.verify.generic.v1"


def test_zero_retries_are_not_the_default() -> None:
    assert compiled({"a": {"maxRetries": 0}}).nodes["a"].max_retries == 0


def test_order_is_topological_and_keeps_the_manifests_order_among_equals() -> None:
    workflow = compiled({"z": {"dependsOn": ["b"]}, "c": {}, "b": {}, "a": {"dependsOn": ["c"]}})
    assert list(workflow.nodes) == ["c", "b", "a", "z"]
    assert workflow.roots == ("c", "b")
    assert workflow.nodes["b"].children == ("z",)


def test_parent_named_twice_counts_once() -> None:
    workflow = compiled({"a": {}, "b": {"dependsOn": ["a", "a"]}})
    assert workflow.nodes["b"].depends_on == ("a",)
    assert workflow.nodes["a"].children == ("b",)


def test_compiled_workflow_survives_pickling() -> None:
    workflow = compiled(
        {"a": {}, "b": {"dependsOn": ["a"], "inputMappings": {"x": "$.a.result.y[0]"}}}
    )
    assert pickle.loads(pickle.dumps(workflow)) == workflow


def test_templates_are_noticed_at_any_depth() -> None:
    workflow = compiled(
        {"a": {"payload": {"x": [{"y": "{{z}}"}]}}, "b": {"payload": {"x": ["{z}"]}}}
    )
    assert workflow.nodes["a"].has_templates
    assert not workflow.nodes["b"].has_templates


def test_cycle_is_shown_once_from_its_first_node() -> None:
    found = problems(
        {
            "root": {},
            "c": {"dependsOn": ["b"]},
            "a": {"dependsOn": ["root", "c"]},
            "b": {"dependsOn": ["a"]},
            "after": {"dependsOn": ["b"]},
        }
    )
    assert [(problem.path, problem.got) for problem in found] == [
        ("nodes.c.dependsOn[0]", "a cycle: c → b → a → c")
    ]


def test_mapping_may_name_any_ancestor() -> None:
    workflow = compiled(
        {
            "a": {},
            "b": {"dependsOn": ["a"]},
            "c": {"dependsOn": ["b"], "inputMappings": {"x": "$.a.result.v"}},
        }
    )
    assert workflow.nodes["c"].mappings[0].source == "a"


def test_limits_of_the_deployment() -> None:
    manifest = parse_manifest(
        {
            "nodes": {
                "a": {"capabilityId": "cap.x", "timeoutMs": 101},
                "b": {"capabilityId": "cap.x"},
            },
            "settings": {"maxRuntimeMs": 101},
        }
    )
    with pytest.raises(ServiceError) as refused:
        compile_workflow(manifest, WorkflowLimits(nodes_max=1, max_runtime_ms_max=100))
    assert [problem.path for problem in refused.value.problems] == [
        "nodes",
        "settings.maxRuntimeMs",
        "nodes.a.timeoutMs",
    ]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    return {
        name: draw(st.lists(st.sampled_from([*names, "nobody"]), unique=True, max_size=3))
        for name in names
    }


def defect(graph: dict[str, list[str]]) -> str | None:
    for name, parents in graph.items():
        if "nobody" in parents or name in parents:
            return "a wrong name"
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError:
        return "a cycle"
    return None


@given(graphs())
def test_graph_is_ordered_exactly_when_it_has_no_defect(graph: dict[str, list[str]]) -> None:
    nodes = {name: {"dependsOn": parents} for name, parents in graph.items()}
    if defect(graph) is not None:
        found = problems(nodes)
        if defect(graph) == "a cycle":
            for problem in found:
                walk = problem.got.removeprefix("a cycle: ").split(" → ")
                steps = [(c, p) for c, p in itertools.pairwise(walk) if "…" not in (c, p)]
                assert all(parent in graph[child] for child, parent in steps)
                assert walk[0] == walk[-1]
        return
    seen: set[str] = set()
    for name, node in compiled(nodes).nodes.items():
        assert set(node.depends_on) == set(graph[name]) <= seen
        seen.add(name)
    assert seen == set(graph)
