"""Schemas are compiled once and judged in bounded time, whatever their authors wrote."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from core.schemas.schema_cost import COST_MAX, SchemaDefect
from core.schemas.value_schema import (
    JUDGED_UNITS_MAX,
    PATTERNS_MAX,
    TEXT_CHARS_MAX,
    TOLD_UNITS_MAX,
    Breach,
    CompiledSchemas,
    ValueSchema,
    compile_text,
    schema_defect,
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5, "pattern": "^[a-z]+$"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name"],
}


def breach(schema: Any, value: Any) -> Breach | None:
    """Return where a value breaks a schema."""
    return ValueSchema(schema).find_breach(value, len(orjson.dumps(value)))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"name": "ann"}, None),
        ({"name": "ann", "tags": ["a", "b"], "next": {"name": "bob", "next": None}}, None),
        ({}, "$.name"),
        ([], "$"),
        ({"name": "ann", "tags": ["a", "c"]}, "$.tags[1]"),
        ({"name": "Ann"}, "$.name"),
        ({"name": "ann", "next": {"name": 1}}, "$.next"),
    ],
)
def test_breach_names_the_path(value: Any, path: str | None) -> None:
    found = breach(PERSON, value)
    assert (found and found.path) == path, found


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        (
            {"properties": {"a": {"type": "integer"}}},
            {"a": "4711"},
            "got '4711', expected an integer",
        ),
        ({"type": ["object", "null"]}, 7, "got 7, expected null or an object"),
        ({"type": "string"}, [1, 2], "got an array with 2 members, expected a string"),
        ({"type": "boolean"}, None, "got null, expected a boolean"),
        ({"type": "integer"}, "x" * 99, f"got '{'x' * 39}…', expected an integer"),
        ({"type": "integer"}, "a\0\nb", "got 'a b', expected an integer"),
        ({"required": ["a"]}, {"b": 1}, "the required member 'a' is missing"),
        ({"minLength": 5}, "4711", "got '4711', expected at least 5 characters"),
        ({"maximum": 5}, 6.5, "got 6.5, expected at most 5"),
        ({"enum": ["a", 1]}, "4711", "got '4711', expected one of 'a', 1"),
        ({"const": {"a": 1}}, 1, "got 1, expected an object with 1 member"),
        ({"pattern": "^a[0-9]+$"}, "b", "got 'b', expected text that matches the schema's pattern"),
        ({"not": {}}, "4711", "got '4711', expected a value that the schema's not does not match"),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1},
            "got the member 'b', expected only members that the schema names",
        ),
        (
            {"anyOf": [{"type": "null"}, {"type": "integer"}]},
            {},
            "got an object with 0 members, expected a value that one of the schema's anyOf allows",
        ),
    ],
)
def test_breach_tells_what_was_got_and_expected(schema: Any, value: Any, problem: str) -> None:
    found = breach(schema, value)
    assert found is not None
    assert found.problem == problem


def test_path_is_one_line_that_can_be_stored() -> None:
    found = breach({"additionalProperties": {"type": "string"}}, {"a\0b\n" + "c" * 999: 1})
    assert found is not None
    assert found.path.startswith("$.a b ccc") and len(found.path) == TEXT_CHARS_MAX


@pytest.mark.parametrize("schema", [True, {}, {"type": ["string", "null"]}])
def test_loose_schemas_take_null(schema: Any) -> None:
    assert breach(schema, None) is None


@pytest.mark.parametrize("draft", ["04", "06", "07"])
def test_earlier_drafts_are_judged_as_they_were(draft: str) -> None:
    name = f"http://json-schema.org/draft-{draft}/schema#"
    schema = {"$schema": name, "items": [{"type": "string"}], "additionalItems": False}
    assert breach(schema, ["a"]) is None
    assert breach(schema, ["a", 1]) is not None


def definitions(count: int, link: Any) -> dict[str, Any]:
    """Return a schema of definitions, each of which links to the next."""
    links = {f"a{n}": link({"$ref": f"#/$defs/a{n + 1}"}) for n in range(count)}
    return {"$defs": {**links, f"a{count}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def nested(levels: int) -> dict[str, Any]:
    """Return a schema of so many levels of items."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def doubling(root: str) -> dict[str, Any]:
    """Return definitions that look at one place more often than can be waited for."""
    links = {f"a{n}": {"allOf": [{"$ref": f"{root}/a{n + 1}"}] * 2} for n in range(60)}
    return {**links, "a60": {}}


LOOSE: dict[str, Any] = {f"a{n}": {} for n in range(61)}

# To a reader that does not decode, count or resolve as the validator does, each is cheap.
HOSTILE: dict[str, Any] = {
    "percent-encoded reference": {
        "$defs": {**doubling("#/$defs"), "%610": {}},
        "properties": {"a": {"$ref": "#/$defs/%610"}},
    },
    "index with zeros": {
        "$defs": {**doubling("#/$defs"), "list": {"allOf": [{}, {"$ref": "#/$defs/a0"}]}},
        "properties": {"a": {"$ref": "#/$defs/list/allOf/0000000001"}},
    },
    "reference through another base": {
        "$defs": {
            **LOOSE,
            "in": {
                "$id": "http://x.invalid/",
                "$defs": {**doubling("#/$defs"), "b": {"allOf": [{"$ref": "#/$defs/a0"}]}},
            },
        },
        "properties": {"a": {"$ref": "#/$defs/in/$defs/b"}},
    },
    "base of draft 4 in the middle": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "definitions": {
            **LOOSE,
            "in": {
                "id": "http://x.invalid/",
                "definitions": doubling("#/definitions"),
                "allOf": [{"$ref": "#/definitions/a0"}],
            },
        },
        "properties": {"a": {"$ref": "#/definitions/in"}},
    },
    "relative reference": {"$id": "http://127.0.0.1:9/a", "$ref": "b"},
    "reference to nothing": {"$ref": "#/$defs/none"},
    "reference to no schema": {"$ref": "#/type", "type": "string"},
    "dynamic reference": {"$dynamicRef": "#"},
    "reference to itself in allOf": {"allOf": [{"not": {"$ref": "#"}}]},
    "twice itself per level": {"allOf": [{"items": {"$ref": "#"}}, {"contains": {"$ref": "#"}}]},
    "two to the 60th at a place": definitions(60, lambda one: {"allOf": [one, one]}),
    "two to the 60th below": definitions(60, lambda one: {"items": {"anyOf": [one, one]}}),
    "chain of 2,000": definitions(2_000, lambda one: {"allOf": [one]}),
    "dense graph": {
        "$defs": {
            f"a{n}": {
                "properties": {f"p{m}": {"$ref": f"#/$defs/a{n * m % 100}"} for m in range(9)}
            }
            for n in range(100)
        },
        "$ref": "#/$defs/a1",
    },
    "unevaluated in unevaluated": definitions(
        14, lambda one: {"unevaluatedProperties": False, "anyOf": [one, {}]}
    ),
    "65 levels": nested(66),
    "huge enum of objects": {"enum": [{"a": n} for n in range(COST_MAX)]},
    "look-ahead": {"pattern": "^(?=a)"},
    "back-reference": {"pattern": r"^(a)\1$"},
    "pattern that grows": {"pattern": "((a{99}){99}){99}"},
    "too many patterns": {"patternProperties": {f"^{n}": {} for n in range(PATTERNS_MAX + 1)}},
    "members that are no object": {"properties": 5},
    "pattern that is no text": {"pattern": 5},
    "patterns that are no object": {"patternProperties": [{}]},
    "definitions that are no schema": {"$ref": "#/$defs/a", "$defs": {"a": 5}},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_hostile_schema_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaDefect):
        ValueSchema(schema)
    assert compile_text(orjson.dumps(schema)) is None


SLOW_ELSEWHERE: dict[str, tuple[Any, Any]] = {
    "(a+)+$": ({"pattern": "(a+)+$"}, "a" * 50_000 + "b"),
    "^(a|a)*$": ({"pattern": "^(a|a)*$"}, "a" * 50_000 + "b"),
    "pattern of names": ({"patternProperties": {"^(x+x+)+y": False}}, {"x" * 5_000: 1}),
    "huge enum of texts": ({"enum": [f"t{n}" for n in range(4_000)]}, "none"),
    "unique items": ({"uniqueItems": True}, [{"a": n} for n in range(5_000)]),
    "recursion": ({"items": {"$ref": "#"}}, [[[[]]]]),
    "one long list in many places": (
        {
            "$defs": {"a": {"enum": [0] * 14_000}},
            "properties": {f"{n}": {"$ref": "#/$defs/a"} for n in range(1_000)},
        },
        {},
    ),
}


@pytest.mark.parametrize(("schema", "value"), SLOW_ELSEWHERE.values(), ids=SLOW_ELSEWHERE)
def test_patterns_and_enumerations_are_judged_at_once(schema: Any, value: Any) -> None:
    """Each takes milliseconds, the last a tenth of a second; a backtracking engine would not end
    with the first two."""
    breach(schema, value)


@pytest.mark.parametrize("divisor", [3, 0.01, 1e-18, 1e-100, 1e-300, 5e-324])
def test_divisions_of_huge_numbers_cost_what_they_are_weighed_at(divisor: float) -> None:
    """Four times the 20 ns of a unit are allowed: the machine may be busy."""
    schema = ValueSchema({"items": {"multipleOf": divisor}})
    for value in (1, 1e300, 1e308):
        values = [value] * 200
        began = time.thread_time()
        schema.find_breach(values, 0)
        took_ns = (time.thread_time() - began) * 1e9
        assert took_ns < 80 * schema.cost * len(orjson.dumps(values))


def test_value_too_large_for_a_costly_schema_breaks_it() -> None:
    schema = ValueSchema({"items": {"enum": [{"a": n} for n in range(500)]}})
    assert schema.cost > 500
    found = schema.find_breach([], JUDGED_UNITS_MAX // schema.cost + 1)
    assert found is not None and "too many" in found.problem
    assert schema.find_breach([], JUDGED_UNITS_MAX // schema.cost) is None


def test_where_a_large_value_is_wrong_is_not_looked_for() -> None:
    schema = ValueSchema({"type": "array"})
    found = schema.find_breach({}, TOLD_UNITS_MAX // schema.cost + 1)
    assert found is not None and found.path == "$"


def test_looks_are_counted_by_place() -> None:
    """Members side by side are one look each, alternatives of one member add up."""
    alternatives = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    beside = {"properties": {f"p{n}": alternatives for n in range(3)}}
    assert ValueSchema(beside).cost == ValueSchema(alternatives).cost
    joined = {"allOf": [{"properties": {"p": alternatives}} for _ in range(3)]}
    assert ValueSchema(joined).cost > 2 * ValueSchema(alternatives).cost
    one, wide = {"enum": [{"a": n} for n in range(9)]}, {"type": "string"}
    matched = {"properties": {"p": one}, "patternProperties": {"^p": one}}
    assert ValueSchema(matched).cost > 1.9 * ValueSchema({"properties": {"p": one}}).cost
    others = {"properties": {"p": one}, "additionalProperties": one}
    assert ValueSchema(others).cost == ValueSchema({"properties": {"p": one}}).cost
    assert ValueSchema({"allOf": [others, others]}).cost > ValueSchema(others).cost
    assert ValueSchema({"prefixItems": [wide], "contains": one}).cost > ValueSchema(one).cost


def test_defect_is_found_or_none() -> None:
    defect = schema_defect(b'{"properties": {"a": {"$ref": "#/b"}}}')
    assert defect is not None
    assert (defect.path, defect.got) == ("$.properties.a.$ref", "#/b")
    assert schema_defect(b"{}") is None


def test_compiled_schemas_are_dropped_oldest_first() -> None:
    text = b'{"type": "string"}'
    kept = CompiledSchemas(len(text) * 20 * 2)
    for name in ("a", "b"):
        kept.add(name, text, compile_text(text))
    assert kept.get("a") is not None
    kept.add("c", text, None)
    assert ("a" in kept, "b" in kept, "c" in kept) == (True, False, True)
    assert kept.get("c") is None
