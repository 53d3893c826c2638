"""A mapping is refused only when no value could ever fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.schemas.mapping_fit import Looks, SchemaTypes, find_misfit
from core.schemas.value_schema import ValueSchema

Json = dict[str, Any]


def fits(output: Any, steps: tuple[str | int, ...], expected: Any, name: str = "x") -> bool:
    """Say whether a mapping may fit."""
    looks = Looks(1_000)
    types = SchemaTypes(output, looks), SchemaTypes(expected, looks)
    return find_misfit(types[0], steps, types[1], name) is None


def has(**properties: Any) -> Json:
    """Return a schema of an object with these members."""
    return {"type": "object", "properties": properties}


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
CLOSED = {**has(x=STRING), "additionalProperties": False}
TREE = has(left={"$ref": "#"}, name=STRING)


@pytest.mark.parametrize(
    ("output", "steps", "expected", "is_fit"),
    [
        (has(a=STRING), ("a",), has(x=STRING), True),
        (has(a=STRING), ("a",), has(x=NUMBER), False),
        (has(a=NUMBER), ("a",), has(x=INTEGER), True),
        (has(a=INTEGER), ("a",), has(x=NUMBER), True),
        (has(a={"type": ["string", "null"]}), ("a",), has(x=NUMBER), False),
        (has(a={"type": ["string", "null"]}), ("a",), has(x=STRING), True),
        (has(), ("a",), has(x=STRING), True),
        ({"type": "string"}, ("a",), has(x=STRING), False),
        (CLOSED, ("y",), has(x=STRING), False),
        ({**CLOSED, "patternProperties": {"^y": STRING}}, ("y",), has(x=STRING), True),
        (has(a=STRING), ("a", "b"), has(x=STRING), False),
        (has(a=STRING), ("a", 0), has(x=STRING), False),
        ({"items": NUMBER}, (3,), has(x=STRING), False),
        ({"items": [STRING, NUMBER]}, (1,), has(x=STRING), False),
        ({"prefixItems": [STRING], "items": NUMBER}, (0,), has(x=STRING), True),
        ({"prefixItems": [STRING], "items": NUMBER}, (1,), has(x=STRING), False),
        ({"maxItems": 2}, (2,), has(x=STRING), False),
        (TREE, ("left", "left", "name"), has(x=NUMBER), False),
        ({"allOf": [{}, has(a=STRING)]}, ("a",), has(x=NUMBER), False),
        ({"anyOf": [has(a=STRING), has(a=NUMBER)]}, ("a",), has(x=NUMBER), True),
        ({"oneOf": [has(a=STRING), has(a={"const": 1})]}, ("a",), has(x={"type": "array"}), False),
        (has(a={"enum": [1, "b"]}), ("a",), has(x={"type": "boolean"}), False),
        (has(a={"$ref": "#/$defs/none"}), ("a",), has(x=NUMBER), True),
        (has(a=STRING), (), has(x={"type": "object"}), True),
        (has(a=STRING), ("a",), {**has(y=STRING), "additionalProperties": False}, False),
        (has(a=STRING), ("a",), True, True),
        (False, ("a",), has(x=STRING), False),
    ],
)
def test_fit(output: Any, steps: tuple[str | int, ...], expected: Any, is_fit: bool) -> None:
    assert fits(output, steps, expected) is is_fit


def test_endless_schema_is_let_through() -> None:
    """References in a circle, and alternatives without end, end with the looks."""
    circle = {"$ref": "#"}
    wide = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}
    looks = Looks(1_000)
    for schema in (circle, wide):
        assert (
            find_misfit(SchemaTypes(schema, looks), ("a",), SchemaTypes(schema, looks), "x") is None
        )
    assert looks.left >= 0


def test_values_of_a_list_are_looks_too() -> None:
    """Or a publish of a thousand mappings would hold its owner's loop for seconds."""
    looks = Looks(1_000)
    schema = SchemaTypes({"additionalProperties": {"enum": [0] * 3_900}}, looks)
    for _ in range(10):
        find_misfit(schema, ("a",), schema, "x")
    assert looks.left <= 0


KINDS = st.sampled_from(
    [STRING, NUMBER, INTEGER, {"type": "null"}, {"type": "boolean"}, {"enum": [1, "a"]}, {}, True]
)
MEMBERS = st.recursive(
    KINDS,
    lambda inner: st.one_of(
        st.builds(lambda one: has(a=one), inner),
        st.builds(lambda one: {"type": "array", "items": one}, inner),
        st.builds(lambda *ones: {"anyOf": list(ones)}, inner, inner),
        st.builds(lambda *ones: {"allOf": list(ones)}, inner, inner),
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.sampled_from([None, True, 1, 2.5, "a"]),
    lambda inner: st.one_of(
        st.builds(lambda one: {"a": one}, inner), st.builds(lambda one: [one], inner)
    ),
    max_leaves=3,
)


@given(MEMBERS, MEMBERS, VALUES)
def test_value_that_meets_both_schemas_fits(output: Any, expected: Any, value: Any) -> None:
    """Whatever is refused, no value was possible."""
    produced, taken = has(r=output), has(x=expected)
    is_produced = ValueSchema(produced).find_breach({"r": value}, 10) is None
    is_taken = ValueSchema(taken).find_breach({"x": value}, 10) is None
    if is_produced and is_taken:
        assert fits(produced, ("r",), taken)
