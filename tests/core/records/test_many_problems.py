"""Inputs with many defects: a reply names a bounded number, and no part of one is repeated.

How the work grows with their size is counted by test_hostile_manifests.py. What is C's own, such as
copying a text, is measured here: the same work with a short and with a long part, far apart where
the long one is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core.errors import PROBLEMS_MAX, ErrorCode, ServiceError
from core.json_bounds import json_problem
from core.records.graph import plan_graph
from core.records.manifest import parse_list_form, parse_manifest
from tests.costs import cpu_s

NODE: dict[str, Any] = {"capabilityId": "cap.x.v1"}
# Text of which a body has room for one.
LONG = "x" * 300_000


def refusal(parse: Callable[[Any], object], raw: object) -> ServiceError:
    """Return the refusal of an input."""
    with pytest.raises(ServiceError) as refused:
        parse(raw)
    return refused.value


def list_of_unknown_members(count: int) -> object:
    """Return nodes that each have a member of no node."""
    return {"nodes": [{"id": f"n{index}", **NODE, "x": 1} for index in range(count)]}


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
