"""Inputs of a dispatch. Spec: Input mapping expressions; contract.md section 5."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledNode, compile_workflow
from core.workflow.events import Failure
from core.workflow.inputs import build_inputs

RESULTS: dict[str, Any] = {
    "a": {"text": "hello", "n": None, "list": [{"x": 1}, [2, 3]], "tricky": "{{lang}}"},
    "b": "a plain text",
}


def node(payload: dict[str, Any], mappings: dict[str, str]) -> CompiledNode:
    nodes: dict[str, Any] = {
        "a": {"capabilityId": "cap.x"},
        "b": {"capabilityId": "cap.x", "dependsOn": ["a"]},
        "c": {
            "capabilityId": "cap.x",
            "dependsOn": ["b"],
            "payload": payload,
            "inputMappings": mappings,
        },
    }
    return compile_workflow(parse_manifest({"nodes": nodes})).nodes["c"]


def inputs(payload: dict[str, Any], mappings: dict[str, str] | None = None) -> Any:
    built = build_inputs(node(payload, mappings or {}), RESULTS)
    assert not isinstance(built, Failure), built
    return built[0]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("$.a.result.text", "hello"),
        ("$.a.result.n", None),
        ("$.a.result.list[0].x", 1),
        ("$.a.result.list[1][1]", 3),
        ("$.a.result['list'][0]['x']", 1),
        ("$.a.result", RESULTS["a"]),
        ("$.b.result", "a plain text"),
    ],
)
def test_mapped_value(expression: str, wanted: Any) -> None:
    assert inputs({}, {"v": expression}) == {"v": wanted}


@pytest.mark.parametrize(
    "path", ["absent", "text.x", "list.x", "list[2]", "list[0].x.y", "n.x", "list[1]['0']"]
)
def test_absent_path_fails_for_good_and_names_itself(path: str) -> None:
    expression = f"$.a.result.{path}"
    failure = build_inputs(node({}, {"v": expression}), RESULTS)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == ("INPUT_MAPPING_FAILED", "final")
    assert expression in failure.message


def test_index_is_no_key_and_key_is_no_index() -> None:
    results = {"a": {"0": 1}, "b": {}}
    assert isinstance(build_inputs(node({}, {"v": "$.a.result[0]"}), results), Failure)


def test_mapped_values_override_the_payload() -> None:
    assert inputs({"v": 1, "w": 2}, {"v": "$.a.result.text"}) == {"v": "hello", "w": 2}


def test_parents_are_the_direct_ones_only() -> None:
    built = build_inputs(node({}, {"v": "$.a.result.text"}), RESULTS)
    assert not isinstance(built, Failure)
    assert built[1] == {"b": {"result": "a plain text"}}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("Say {{v}} in {{lang}}", "Say hello in en"),
        ("{{ v }}", "hello"),
        ("{{list}}", '[{"x":1},[2,3]]'),
        ("{{nothing}}", "null"),
        ("{{count}} {{yes}} {{text}}", '3 true "é"'.replace('"', "")),
        ("{{object}}", '{"ü":1}'),
        ("{{unknown}} stays", "{{unknown}} stays"),
        ("{v} {{{v}}}", "{v} {hello}"),
        ("{{tricky}}", "{{lang}}"),
        ("{{self}}", "{{v}}"),
    ],
)
def test_template(template: str, wanted: str) -> None:
    payload = {
        "prompt": template,
        "lang": "en",
        "count": 3,
        "yes": True,
        "text": "é",
        "object": {"ü": 1},
        "self": "{{v}}",
    }
    mappings = {
        "v": "$.a.result.text",
        "list": "$.a.result.list",
        "nothing": "$.a.result.n",
        "tricky": "$.a.result.tricky",
    }
    assert inputs(payload, mappings)["prompt"] == wanted


def test_mapped_value_goes_before_a_payload_key_of_the_same_name() -> None:
    assert inputs({"p": "{{v}}", "v": "old"}, {"v": "$.a.result.text"})["p"] == "hello"


def test_templates_are_filled_in_nested_strings_and_keys_are_left() -> None:
    payload = {"x": {"{{v}}": ["{{v}}", {"y": "{{v}}!"}, 1]}}
    assert inputs(payload, {"v": "$.a.result.text"})["x"] == {
        "{{v}}": ["hello", {"y": "hello!"}, 1]
    }


def test_results_are_never_searched_for_templates() -> None:
    assert inputs({"lang": "en", "p": "{{lang}}"}, {"v": "$.a.result.tricky"})["v"] == "{{lang}}"


def test_payload_is_not_changed() -> None:
    payload = {"x": {"y": "{{v}}"}}
    before = copy.deepcopy(payload)
    compiled = node(payload, {"v": "$.a.result.text"})
    build_inputs(compiled, RESULTS)
    assert compiled.payload == before
