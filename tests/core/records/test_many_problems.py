"""Inputs with many defects: the work grows with their size, and a reply names a bounded number.

The work is counted in the interpreter's instructions. What is C's own, such as copying a text, is
measured: the same work with a short and with a long part, far apart where the long one is repeated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import orjson
import pytest

from core.errors import PROBLEMS_MAX, ErrorCode, ServiceError
from core.json_bounds import json_problem
from core.records.graph import plan_graph
from core.records.manifest import parse_list_form, parse_manifest
from serve_app.http.bodies import parse_json

NODE: dict[str, Any] = {"capabilityId": "cap.x.v1"}
# Text of which a body has room for one.
LONG = "x" * 300_000


def refusal(parse: Callable[[Any], object], raw: object) -> ServiceError:
    """Return the refusal of an input."""
    with pytest.raises(ServiceError) as refused:
        parse(raw)
    return refused.value


def instructions(work: Callable[[], object]) -> int:
    """Return how many instructions of the interpreter a work takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def cpu_s(work: Callable[[], object]) -> float:
    """Return the least CPU time of three runs."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)


def list_of_unknown_members(count: int) -> object:
    """Return nodes that each have a member of no node."""
    return {"nodes": [{"id": f"n{index}", **NODE, "x": 1} for index in range(count)]}


def list_with_two_inputs(count: int) -> object:
    """Return nodes that each have another payload than input."""
    two = {"input": {"x": 1}, "payload": {}}
    return {"nodes": [{"id": f"n{index}", **NODE, **two} for index in range(count)]}


def manifest_of_unknown_parents(count: int) -> object:
    """Return nodes that each depend on none that is there."""
    return {"nodes": {f"n{index}": {**NODE, "dependsOn": ["z"]} for index in range(count)}, "x": 1}


def manifest_of_cycles(count: int) -> object:
    """Return pairs of nodes that wait for each other."""
    nodes = {}
    for index in range(count // 2):
        nodes[f"a{index}"] = {**NODE, "dependsOn": [f"b{index}"]}
        nodes[f"b{index}"] = {**NODE, "dependsOn": [f"a{index}"]}
    return {"nodes": nodes, "x": 1}


@pytest.mark.parametrize(
    ("parse", "make"),
    [
        (parse_list_form, list_of_unknown_members),
        (parse_list_form, list_with_two_inputs),
        (parse_manifest, manifest_of_unknown_parents),
        (parse_manifest, manifest_of_cycles),
    ],
)
def test_four_times_the_defects_take_four_times_the_work(
    parse: Callable[[Any], object], make: Callable[[int], object]
) -> None:
    """790 bad nodes in the list form took 331 ms of the event loop, and 4,000 took 40 s."""
    few, many = make(150), make(600)
    grown = instructions(lambda: refusal(parse, many)) / instructions(lambda: refusal(parse, few))
    assert grown < 6


def test_a_reply_names_the_first_problems_and_counts_the_others() -> None:
    raw = list_of_unknown_members(250)
    assert isinstance(raw, dict)
    raw["edges"] = [1, 2]
    found = refusal(parse_list_form, raw)
    assert found.code is ErrorCode.INVALID_MANIFEST
    counted = f"the manifest has 252 problems, the first {PROBLEMS_MAX} are shown"
    assert found.detail == f"{counted}: {found.problems[0].sentence}"
    paths = [problem.path for problem in found.problems]
    assert paths == ["edges[0]", "edges[1]", *(f"nodes[{n}].x" for n in range(PROBLEMS_MAX - 2))]


def test_cycles_are_looked_for_a_bounded_number_of_times() -> None:
    plan = plan_graph({"a": ["b"], "b": ["a"], **{f"c{n}": [f"c{n ^ 1}"] for n in range(100)}}, {})
    assert 1 < len(plan.problems) < 20


@pytest.mark.parametrize(
    "members",
    [
        {f"m{number}": 1 for number in range(2_000)},
        {**NODE, "dependsOn": [str(number) for number in range(2_000)]},
        {**NODE, "inputMappings": {str(number): "$.a.result" for number in range(2_000)}},
    ],
    ids=["unknown members", "unknown parents", "unknown sources"],
)
def test_long_name_of_a_node_is_not_repeated_for_each_of_its_problems(
    members: dict[str, Any],
) -> None:
    """Each problem's path held the name: 60,000 of them, from one body, had 15 GB."""
    found = refusal(parse_manifest, {"nodes": {LONG: members}})
    assert sum(len(problem.path) for problem in found.problems) < 2 * len(LONG)


def test_walking_a_value_takes_no_longer_below_a_long_key() -> None:
    values = list(range(10_000))
    short, long = {"x": {"y": values}}, {"x": {LONG: values}}
    assert cpu_s(lambda: json_problem(long)) < 8 * cpu_s(lambda: json_problem(short))


def test_looking_for_a_nul_takes_no_longer_below_a_long_key() -> None:
    """The path of each value was kept: 60,000 of them, from one body, had 15 GB."""

    def body(key: str) -> bytes:
        # An item that is waiting to be looked at is kept; the last one is looked at first.
        return orjson.dumps({"x": "\0", "y": {key: list(range(2_000))}})

    def parsed(text: Any) -> object:
        return parse_json(text, depth_max=64)

    short, long = body("k"), body(LONG)
    assert cpu_s(lambda: refusal(parsed, long)) < 20 * cpu_s(lambda: refusal(parsed, short))


def test_edges_to_one_node_are_added_in_one_pass() -> None:
    """Each edge copied the node's list of parents."""

    def listed(count: int) -> object:
        nodes = [{"id": f"n{index}", **NODE} for index in range(9)]
        edges = [{"from": f"n{index % 8}", "to": "n8"} for index in range(count)]
        return {"nodes": nodes, "edges": edges}

    few, many = listed(2_000), listed(64_000)
    grown = cpu_s(lambda: parse_list_form(many)) / cpu_s(lambda: parse_list_form(few))
    assert grown < 100


def test_sources_are_looked_up_among_parents_in_one_step() -> None:
    """Each mapping of a node walked all of its parents."""

    def graph(count: int) -> tuple[dict[str, list[str]], dict[str, dict[str, str]]]:
        names = [f"n{index}" for index in range(count)]
        mappings = {name: f"$.{name}.result" for name in names}
        return {**{name: [] for name in names}, "z": names}, {"z": mappings}

    few, many = graph(250), graph(8_000)
    grown = cpu_s(lambda: plan_graph(*many)) / cpu_s(lambda: plan_graph(*few))
    assert grown < 100
