"""What one version's schemas break of another's: which member, whom, and never less than that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from core.capabilities.schema_breaks import BREAKS_MAX, Affected, Break, find_breaks

TEXT = {"type": "string"}


def closed(required: tuple[str, ...] = (), **members: Any) -> dict[str, Any]:
    """Return the schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": members,
        "required": list(required),
        "additionalProperties": False,
    }


def of_inputs(old: Any, new: Any) -> list[tuple[str, str, str]]:
    return [(one.path, one.was, one.now) for one in find_breaks(old, None, new, None)]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (closed(a=TEXT), closed(a=TEXT, b=TEXT), []),
        (closed(("a",), a=TEXT), closed(a=TEXT), []),
        (closed(a=TEXT), closed(("a",), a=TEXT), [("inputSchema.a", "optional", "required")]),
        (closed(a=TEXT), closed(("b",), a=TEXT, b=TEXT),
         [("inputSchema.b", "absent", "required")]),
        (closed(a=TEXT, b=TEXT), closed(a=TEXT), [("inputSchema.b", "allowed", "not allowed")]),
        (closed(a=TEXT), closed(a={"type": ["string", "null"]}), []),
        (closed(a=TEXT), closed(a={"type": "integer"}), [("inputSchema.a", "string", "integer")]),
        (closed(a={"type": "integer"}), closed(a={"type": "number"}), []),
        (closed(a={"type": "number"}), closed(a={"type": "integer"}),
         [("inputSchema.a", "number", "integer")]),
        (closed(a={"enum": ["x"]}), closed(a={"enum": ["x", "y"]}), []),
        (closed(a={"enum": ["x", "y"]}), closed(a={"enum": ["x"]}),
         [("inputSchema.a", "also y", "one of x")]),
        (closed(a={"type": "integer"}), closed(a={"type": "integer", "minimum": 1}),
         [("inputSchema.a", "no minimum", "minimum 1")]),
        (closed(a={"type": "integer", "exclusiveMinimum": 1}),
         closed(a={"type": "integer", "minimum": 1}), []),
        (closed(a={"type": "array", "items": TEXT}),
         closed(a={"type": "array", "items": {"type": "string", "maxLength": 9}}),
         [("inputSchema.a[]", "no maxLength", "maxLength 9")]),
        ({"properties": {"a": TEXT}}, closed(a=TEXT),
         [("inputSchema", "any further members", "no further members")]),
        (closed(a=TEXT), closed(a={"anyOf": [TEXT, {"type": "null"}]}), []),
        (closed(a={"anyOf": [TEXT, {"type": "null"}]}), closed(a=TEXT),
         [("inputSchema.a", "null", "string")]),
        (closed(a={"$ref": "#/$defs/t"}) | {"$defs": {"t": TEXT}}, closed(a=TEXT), []),
        (None, None, []),
        (None, {"properties": {"a": TEXT}}, []),
        (None, {"required": ["a"]}, [("inputSchema.a", "absent", "required")]),
    ],
)  # fmt: skip
def test_a_newer_version_takes_what_the_older_took(old: Any, new: Any, found: Any) -> None:
    assert of_inputs(old, new) == found


def test_a_newer_version_gives_what_the_older_gave() -> None:
    old, new = closed(("a", "b"), a=TEXT, b=TEXT), closed(("a",), a=TEXT, c=TEXT)
    assert find_breaks(None, old, None, new) == [
        Break("outputSchema.b", Affected.READERS, "required", "absent"),
        Break("outputSchema.c", Affected.READERS, "not allowed", "allowed"),
    ]
    assert find_breaks(None, old, None, closed(("a", "b"), a={"const": "x"}, b=TEXT)) == []


@pytest.mark.parametrize(
    "rules",
    [
        {"pattern": "^a"},
        {"oneOf": [TEXT, {"type": "string", "maxLength": 3}]},
        {"not": {"const": "a"}},
        {"$ref": "https://example.org/t"},
        {"$ref": "#/$defs/none"},
    ],
)
def test_what_cannot_be_decided_is_said_to_be_so(rules: Any) -> None:
    (found,) = find_breaks(closed(a=TEXT), None, closed(a={"type": "string", **rules}), None)
    assert (found.path, found.is_decided) == ("inputSchema.a", False)


def test_schemas_that_lead_back_to_themselves_end() -> None:
    tree = closed(a={"$ref": "#"}, b={"type": "array", "items": {"$ref": "#"}})
    assert of_inputs(tree, tree) == []
    assert of_inputs(tree, closed(a={"$ref": "#"}, b={"type": "array", "items": False})) == [
        ("inputSchema.b[]", "allowed", "not allowed")
    ]
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert [one.is_decided for one in find_breaks(loop, None, closed(), None)] == [False]


def test_a_hostile_schema_costs_a_bounded_number_of_steps() -> None:
    """Each level asks for all below it twice: 2^60 comparisons without the bound."""
    definitions: dict[str, Any] = {"d0": TEXT}
    for level in range(1, 60):
        twice = [{"$ref": f"#/$defs/d{level - 1}"}] * 2
        definitions[f"d{level}"] = {"properties": {"a": twice[0], "b": twice[1]}, "anyOf": twice}
    hostile = {"$ref": "#/$defs/d59", "$defs": definitions}
    other = {
        "$ref": "#/$defs/d59",
        "$defs": {**definitions, "d0": {"type": "string", "minLength": 1}},
    }
    found = find_breaks(hostile, None, other, None)
    assert 0 < len(found) <= BREAKS_MAX


NAMES = ("a", "b")
SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 1},
        {"type": "integer", "minimum": 0},
        {"type": "number", "exclusiveMaximum": 1},
        {"type": ["integer", "null"]},
        {"enum": ["x", 1, None]},
        {"const": 1.0},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "string", "pattern": "^x"},
        {"not": {"type": "null"}},
        True,
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    required = st.lists(st.sampled_from(NAMES), unique=True, max_size=2)

    def made(properties: Any, required: Any, beyond: Any) -> Any:
        # A member that is neither named nor refused counts as absent: here each is named.
        named = {**dict.fromkeys(NAMES, True), **properties} if beyond is not False else properties
        return {"type": "object", "properties": named, "required": required,
                "additionalProperties": beyond}  # fmt: skip

    return st.builds(made, members, required, st.sampled_from([True, False]))


LISTS = st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, SCALARS)
SCHEMAS = objects(st.one_of(SCALARS, LISTS, objects(SCALARS)))
LEAVES = st.sampled_from(["", "x", "xy", 0, 1, -1, 0.5, 1.0, None, True])
VALUES = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(
        LEAVES,
        st.lists(LEAVES, max_size=3),
        st.dictionaries(st.sampled_from(NAMES), LEAVES, max_size=2),
    ),
    max_size=2,
)


@given(SCHEMAS, SCHEMAS, st.lists(VALUES, min_size=8, max_size=8))
def test_without_a_break_what_the_older_took_the_newer_takes(
    old: Any, new: Any, values: list[Any]
) -> None:
    if find_breaks(old, None, new, None):
        return
    older, newer = Draft202012Validator(old), Draft202012Validator(new)
    for value in values:
        assert not older.is_valid(value) or newer.is_valid(value), (old, new, value)


@given(SCHEMAS)
def test_a_schema_breaks_nothing_of_itself(schema: Any) -> None:
    assert find_breaks(schema, schema, schema, schema) == []


def test_references_are_followed_to_a_bounded_depth() -> None:
    def chain(kind: str) -> dict[str, Any]:
        links = {f"{n}": {"properties": {"a": {"$ref": f"#/$defs/{n + 1}"}}} for n in range(500)}
        return {"$defs": {**links, "500": {"type": kind}}, "properties": {"a": links["0"]}}

    (found,) = find_breaks(chain("string"), {}, chain("number"), {})
    assert not found.is_decided
