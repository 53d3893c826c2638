"""Inputs of a dispatch. Reference: features.md (Inputs)."""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.canonical import canonical
from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledNode, compile_workflow
from core.workflow.events import Failure
from core.workflow.inputs import sent_bytes
from tests.core.workflow.node_inputs import build_inputs

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


BOUND = 1_000_000


def inputs(payload: dict[str, Any], mappings: dict[str, str] | None = None) -> Any:
    built = build_inputs(node(payload, mappings or {}), RESULTS)
    assert not isinstance(built, Failure), built
    return built


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


LARGE = {"t": "x" * 100_000}


def of_mappings(count: int) -> CompiledNode:
    return node({}, {f"m{number}": "$.a.result" for number in range(count)})


def of_templates(count: int) -> CompiledNode:
    return node({"p": "{{v}}" * count}, {"v": "$.a.result.t"})


def of_encoded_templates(count: int) -> CompiledNode:
    """Templates in many texts, each of which becomes the JSON text of an object."""
    return node({"p": ["{{v}}"] * count}, {"v": "$.a.result"})


def of_templates_without_results(count: int) -> CompiledNode:
    return node({"p": "{{v}}" * count, "v": "x" * 100_000}, {})


@pytest.mark.parametrize(
    "make", [of_mappings, of_templates, of_encoded_templates, of_templates_without_results]
)
def test_building_stops_at_the_largest_dispatch(make: Callable[[int], CompiledNode]) -> None:
    """8 KiB of manifest asked for a dispatch of 801 MB, which was measured when it was complete."""
    results = {"a": LARGE, "b": 0}
    assert not isinstance(build_inputs(make(3), results, BOUND), Failure)
    compiled = make(400)
    tracemalloc.start()
    failure = build_inputs(compiled, results, BOUND)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == ("INPUT_TOO_LARGE", "final")
    assert peak < 3 * BOUND


@given(
    st.lists(
        st.sampled_from([-0.0, 1.0, 1e16, 1.1e20, 1e21, 1e-6, 1e-7, ".0", "e1é"])
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=3)
        | st.integers(-(2**53) + 1, 2**53 - 1),
        max_size=3,
    )
)
def test_no_value_is_measured_larger_than_it_is_sent(value: Any) -> None:
    assert sent_bytes(value) <= len(canonical(value))
    assert sent_bytes({"a": value}) <= len(canonical({"a": value}))


def test_long_name_of_an_input_is_cut_in_the_failure() -> None:
    failure = build_inputs(node({}, {"n" * 100_000: "$.a.result.absent"}), RESULTS)
    assert isinstance(failure, Failure)
    assert len(failure.message) < 500


@pytest.mark.parametrize(
    ("expression", "result", "said"),
    [
        ("$.a.result.bdy", {"body": "secret"}, "no 'bdy' in the result, which has 'body'"),
        ("$.a.result.x.y", {"x": {"z": 1}}, "no 'y' in the result['x'], which has 'z'"),
        ("$.a.result.x", {}, "no 'x' in the result, which has no members"),
        ("$.a.result[3]", [1, 2], "no item 3 in the result, which has 2 items"),
        ("$.a.result.x", "secret", "no 'x' in the result, which is a string"),
        ("$.a.result.x", None, "no 'x' in the result, which is null"),
        ("$.a.result.x", {f"m{n}": n for n in range(99)}, "'m9' and 89 more"),
        ("$.a.result.x", {"m" * 5_000: 1}, "…'"),
    ],
)
def test_a_mapping_that_misses_names_the_members_there_are(
    expression: str, result: Any, said: str
) -> None:
    failure = build_inputs(node({}, {"i": expression}), {"a": result, "b": {}})
    assert isinstance(failure, Failure)
    assert said in failure.message
    assert "secret" not in failure.message and len(failure.message) < 700
