"""Parsing and compiling take steps in proportion to the text of a manifest, whatever its shape.

Steps are the lines of Python that run: a part that walks all nodes for each node doubles them twice
when the text doubles once. What C repeats for each value, such as copying a list or the text of a
path, is no step: shapes that invite it are measured in CPU time, 16 times the text with a margin of
4. A new shape is one more function here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from core.errors import ServiceError
from core.records.manifest import parse_list_form, parse_manifest
from core.workflow.dag import compile_workflow
from tests.costs import cpu_s, line_steps, peak_bytes

SMALL, LARGE = 8 * 1024, 32 * 1024
Shape = Callable[[int], dict[str, Any]]


def node(**more: Any) -> dict[str, Any]:
    return {"capabilityId": "cap.x", **more}


def many(count: int, make: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    return {"nodes": {f"n{number:05}": make(number) for number in range(count)}}


def wide(size: int) -> dict[str, Any]:
    return many(size // 40, lambda _: node())


def chain(size: int) -> dict[str, Any]:
    return many(size // 60, lambda n: node(dependsOn=[f"n{n - 1:05}"] if n else []))


def reversed_chain(size: int) -> dict[str, Any]:
    last = size // 60 - 1
    return many(last + 1, lambda n: node(dependsOn=[f"n{n + 1:05}"] if n < last else []))


def star(size: int) -> dict[str, Any]:
    count = size // 60
    every = {"hub": node(dependsOn=[f"n{n:05}" for n in range(count)])}
    return {"nodes": {**many(count, lambda _: node())["nodes"], **every}}


def cycles_of_two(size: int) -> dict[str, Any]:
    return many(size // 120 * 2, lambda n: node(dependsOn=[f"n{n ^ 1:05}"]))


def one_cycle(size: int) -> dict[str, Any]:
    count = size // 60
    return many(count, lambda n: node(dependsOn=[f"n{(n + 1) % count:05}"]))


def nodes_that_wait_for_themselves(size: int) -> dict[str, Any]:
    return many(size // 60, lambda n: node(dependsOn=[f"n{n:05}"]))


def unknown_parents(size: int) -> dict[str, Any]:
    return {"nodes": {"a": node(dependsOn=[f"x{n}" for n in range(size // 9)])}}


def parent_named_again(size: int) -> dict[str, Any]:
    return {"nodes": {"a": node(), "b": node(dependsOn=["a"] * (size // 4))}}


def mappings_of_parents(size: int) -> dict[str, Any]:
    count = size // 100
    names = [f"n{n:05}" for n in range(count)]
    asked = {f"i{name}": f"$.{name}.result" for name in names}
    hub = {"hub": node(dependsOn=names, inputMappings=asked)}
    return {"nodes": {**{name: node() for name in names}, **hub}}


def mappings_of_strangers(size: int) -> dict[str, Any]:
    asked = {f"i{n}": f"$.x{n}.result" for n in range(size // 26)}
    return {"nodes": {"a": node(inputMappings=asked)}}


def unusual_expressions(size: int) -> dict[str, Any]:
    asked = {f"i{n}": f"$ .x{n}.result" for n in range(size // 26)}
    return {"nodes": {"a": node(inputMappings=asked)}}


def unknown_members(size: int) -> dict[str, Any]:
    return {"nodes": {"a": node(**{f"x{n}": 0 for n in range(size // 8)})}}


def two_spellings(size: int) -> dict[str, Any]:
    return many(size // 50, lambda _: node(capability="cap.y"))


def nulls(size: int) -> dict[str, Any]:
    return many(size // 60, lambda _: node(dependsOn=None, payload=None))


def auctions_with_targets(size: int) -> dict[str, Any]:
    return many(size // 80, lambda _: node(selection="auction", targetAgentId="did:x:a"))


def deep_payloads(size: int) -> dict[str, Any]:
    payload: Any = {}
    for _ in range(55):
        payload = {"k": payload}
    return many(size // 400, lambda _: node(payload=payload))


def long_key(size: int) -> dict[str, Any]:
    return {"nodes": {"a": node(payload={"k" * (size // 2): [0] * (size // 4)})}}


def long_keys_above_each_other(size: int) -> dict[str, Any]:
    payload: Any = [0] * (size // 4)
    for _ in range(20):
        payload = {"k" * (size // 40): payload}
    return {"nodes": {"a": node(payload=payload)}}


def templates(size: int) -> dict[str, Any]:
    return {"nodes": {"a": node(payload={"t": "{{" + " " * size})}}


def listed(shape: Shape) -> Shape:
    def as_list(size: int) -> dict[str, Any]:
        nodes = shape(size)["nodes"]
        return {"nodes": [{"id": name, **value} for name, value in nodes.items()]}

    return as_list


def unknown_member_of_each_node(size: int) -> dict[str, Any]:
    return many(size // 40, lambda _: node(x=1))


def two_inputs_of_each_node(size: int) -> dict[str, Any]:
    return many(size // 70, lambda _: node(input={"x": 1}, payload={}))


def edges_between_two(size: int) -> dict[str, Any]:
    nodes = [{"id": name, "capability": "c"} for name in "ab"]
    return {"nodes": nodes, "edges": [{"from": "a", "to": "b"}] * (size // 22)}


def edges_to_one(size: int) -> dict[str, Any]:
    count = size // 60
    nodes = [{"id": f"n{n:05}", "capability": "c"} for n in range(count)]
    return {
        "nodes": nodes,
        "edges": [{"from": f"n{n:05}", "to": "n00000"} for n in range(1, count)],
    }


def edges_of_nobody(size: int) -> dict[str, Any]:
    nodes = [{"id": "a", "capability": "c"}]
    return {"nodes": nodes, "edges": [{"from": "x", "to": "y"}] * (size // 22)}


DICTS = [
    wide, chain, reversed_chain, star, cycles_of_two, one_cycle, nodes_that_wait_for_themselves,
    unknown_parents, parent_named_again, mappings_of_parents, mappings_of_strangers,
    unusual_expressions, unknown_members, two_spellings, nulls, auctions_with_targets,
    deep_payloads, long_key, long_keys_above_each_other, templates,
]  # fmt: skip
LISTS = [
    edges_between_two, edges_to_one, edges_of_nobody, listed(wide), listed(chain),
    listed(unknown_member_of_each_node), listed(two_inputs_of_each_node),
]  # fmt: skip
CASES = [(parse_manifest, shape) for shape in DICTS] + [(parse_list_form, shape) for shape in LISTS]


def compiled(parse: Callable[[object], Any], raw: object) -> None:
    with contextlib.suppress(ServiceError):
        compile_workflow(parse(raw))


@pytest.mark.parametrize(("parse", "shape"), CASES, ids=lambda value: value.__name__)
def test_four_times_the_text_take_at_most_six_times_the_steps_and_memory(
    parse: Callable[[object], Any], shape: Shape
) -> None:
    small, large = (orjson.loads(orjson.dumps(shape(size))) for size in (SMALL, LARGE))
    grown = len(orjson.dumps(large)) / len(orjson.dumps(small))
    assert 3 < grown < 5
    for raw in (small, large):
        compiled(parse, raw)  # what is read lazily or once
    steps = line_steps(lambda: compiled(parse, small)) + 500
    assert line_steps(lambda: compiled(parse, large)) < 1.5 * grown * steps
    held = peak_bytes(lambda: compiled(parse, small)) + 20_000
    assert peak_bytes(lambda: compiled(parse, large)) < 1.5 * grown * held


@pytest.mark.parametrize(
    ("parse", "shape"),
    [
        (parse_manifest, long_key),
        (parse_manifest, long_keys_above_each_other),
        (parse_manifest, mappings_of_parents),
        (parse_manifest, templates),
        (parse_list_form, edges_between_two),
    ],
    ids=lambda value: value.__name__,
)
def test_nothing_is_copied_for_each_value(parse: Callable[[object], Any], shape: Shape) -> None:
    small, large = shape(16 * 1024), shape(256 * 1024)
    taken = cpu_s(lambda: compiled(parse, small))
    assert cpu_s(lambda: compiled(parse, large)) < 64 * taken
