"""Bad input: refused with its path, every problem at once, nothing stored and nothing held.

Spec: Workflow manifest; money.md (Units).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Caller, MakeCaller, answer, refusal

Json = dict[str, Any]


def nodes(**more: Json) -> Json:
    return {"nodes": {"a": {"capabilityId": "cap.a.v1"}, **more}}


def node(**members: object) -> Json:
    return {"nodes": {"a": {"capabilityId": "cap.a.v1", **members}}}


def settings(**members: object) -> Json:
    return {**nodes(), "settings": members}


def child(**members: object) -> Json:
    return nodes(b={"capabilityId": "cap.b.v1", **members})


# Of each kind one: tests/core/records/test_manifest.py has the others.
CASES: dict[str, tuple[Json, set[str]]] = {
    "unknown parent": (node(dependsOn=["ghost"]), {"nodes.a.dependsOn[0]"}),
    "empty nodes": ({"nodes": {}}, {"nodes"}),
    "mapping to a non-ancestor": (
        child(inputMappings={"x": "$.a.result.y"}),
        {"nodes.b.inputMappings.x"},
    ),
    "mapping with a wildcard": (
        child(dependsOn=["a"], inputMappings={"x": "$.a.result[*]"}),
        {"nodes.b.inputMappings.x"},
    ),
    "unknown member of the manifest": ({**nodes(), "priority": 1}, {"priority"}),
    "unknown member of a node": (node(cpu=1), {"nodes.a.cpu"}),
    "settings.timeout": (settings(timeout=1), {"settings.timeout"}),
    "capabilityId missing": ({"nodes": {"a": {}}}, {"nodes.a.capabilityId"}),
    "timeoutMs as text": (node(timeoutMs="3"), {"nodes.a.timeoutMs"}),
    "alias and canonical differ": (node(timeoutMs=1_000, timeout=2_000), {"nodes.a.timeout"}),
    "budget with 7 decimals": (
        settings(maxBudgetCredits=0.0000001),
        {"settings.maxBudgetCredits"},
    ),
    "schedule without a time": (
        {**nodes(), "trigger": {"type": "scheduled"}},
        {"trigger.config.cronExpression"},
    ),
}


@pytest.fixture(scope="module")
def strict_payer(make_caller: MakeCaller) -> Caller:
    """A payer whose books must be untouched by everything in this file."""
    return make_caller(10)


def assert_untouched(payer: Caller) -> None:
    assert answer(payer.http.get("/v1/workflows"))["workflows"] == []
    assert payer.balance()["balance"] == 10
    assert payer.balance()["pending"] == 0


@pytest.mark.parametrize(("manifest", "paths"), CASES.values(), ids=CASES)
def test_bad_manifest_names_the_path(strict_payer: Caller, manifest: Json, paths: set[str]) -> None:
    body = refusal(strict_payer.publish(manifest), 400, "INVALID_MANIFEST")
    assert {problem["path"] for problem in body["errors"]} == paths, body["errors"]
    for problem in body["errors"]:
        assert problem["got"]
        assert problem["expected"]
    assert_untouched(strict_payer)


def test_cycle_is_refused(strict_payer: Caller) -> None:
    manifest = {
        "nodes": {
            "a": {"capabilityId": "cap.a.v1", "dependsOn": ["c"]},
            "b": {"capabilityId": "cap.a.v1", "dependsOn": ["a"]},
            "c": {"capabilityId": "cap.a.v1", "dependsOn": ["b"]},
        }
    }
    body = refusal(strict_payer.publish(manifest), 400, "INVALID_MANIFEST")
    assert all(problem["path"].startswith("nodes.") for problem in body["errors"])
    assert_untouched(strict_payer)


def test_1001_nodes_are_refused_and_1000_are_not(strict_payer: Caller) -> None:
    many = {f"n{number}": {"capabilityId": "cap.a.v1"} for number in range(1_001)}
    body = refusal(strict_payer.publish({"nodes": many}), 400, "INVALID_MANIFEST")
    assert {problem["path"] for problem in body["errors"]} == {"nodes"}
    del many["n0"]
    reply = answer(strict_payer.publish({"nodes": many, "dryRun": True}))
    assert len(reply["order"]) == 1_000
    assert_untouched(strict_payer)


def test_all_problems_of_a_manifest_are_told_at_once(strict_payer: Caller) -> None:
    manifest = {
        "nodes": {
            "a": {"capabilityId": "cap.a.v1", "dependsOn": ["ghost"], "cpu": 1},
            "b": {"capabilityId": "bad id", "timeoutMs": "3"},
        },
        "settings": {"budget": 1},
    }
    body = refusal(strict_payer.publish(manifest), 400, "INVALID_MANIFEST")
    assert {problem["path"] for problem in body["errors"]} >= {
        "nodes.a.dependsOn[0]",
        "nodes.a.cpu",
        "nodes.b.capabilityId",
        "nodes.b.timeoutMs",
        "settings.budget",
    }


def test_settings_timeout_and_budget_name_the_right_field(strict_payer: Caller) -> None:
    body = refusal(strict_payer.publish(settings(timeout=1, budget=2)), 400, "INVALID_MANIFEST")
    expected = {problem["path"]: problem["expected"] for problem in body["errors"]}
    assert "maxRuntimeMs" in expected["settings.timeout"]
    assert "maxBudgetCredits" in expected["settings.budget"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"nodes": [{"id": "a", "capability": "cap.a.v1"}] * 2}, "nodes[1].id"),
        (
            {"nodes": [{"id": "a", "capability": "cap.a.v1"}], "edges": [{"from": "a", "to": "z"}]},
            "edges[0].to",
        ),
        ({"nodes": {}}, "nodes"),
        ({"nodes": [{"id": "a", "capability": "bad id"}]}, "nodes[0].capability"),
    ],
)
def test_bad_list_form_names_the_path(strict_payer: Caller, body: Json, path: str) -> None:
    problems = refusal(strict_payer.http.post("/v1/workflows", json=body), 400, "INVALID_MANIFEST")
    assert path in {problem["path"] for problem in problems["errors"]}, problems["errors"]
    assert_untouched(strict_payer)
