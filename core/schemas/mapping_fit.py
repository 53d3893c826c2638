"""Compares schemas: can the result of a node fill an input of another node (a mapping)?

A mapping is refused only if no value can fit: the two schemas have no common JSON type, the result
never has the mapped path, or the inputs never have the name. A keyword of a schema that this
module does not evaluate counts as allowing every type.
Reference: features.md (Inputs). Decision versions-and-schemas.
"""

from __future__ import annotations

from typing import Any, Final

from core.schemas.schema_cost import resolve_reference

# A look is one visit of a schema object. One call of `at` takes at most this many looks, because a
# schema may refer to itself. After that, every type counts as possible.
LOOKS_MAX: Final = 200
# The number of values of an `enum` that count as one look.
_VALUES_PER_LOOK: Final = 32
_ALL: Final = frozenset(("null", "boolean", "number", "string", "array", "object"))
_NONE: Final[frozenset[str]] = frozenset()


class Looks:
    """The number of looks that are left for all calls together; a look takes about 1 us."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


def find_misfit(
    output: SchemaTypes, steps: tuple[str | int, ...], expected: SchemaTypes, input_name: str
) -> tuple[str, str] | None:
    """Return why a mapping cannot fit, None if it may fit.

    Args:
        output: the types of the result's schema.
        steps: the path inside the result: names of members, and indexes of items.
        expected: the types of the inputs' schema.
        input_name: the name of the input.

    Returns:
        Two texts: what the result has at the path, and what the input expects.
    """
    taken = expected.at((input_name,))
    if not taken:
        return "an input that is never taken", "an input of the capability's inputSchema"
    got = output.at(steps)
    if not got:
        return "a path that the result never has", "a path of its outputSchema"
    return None if got & taken else (_text(got), _text(taken))


class SchemaTypes:
    """The JSON types that a schema allows at a path; integers count as numbers.

    Args:
        root: the schema.
        looks: the looks that are left. Without any, every type counts as possible.
    """

    def __init__(self, root: Any, looks: Looks) -> None:
        self._root = root
        self._looks = looks
        self._until = 0

    def at(self, steps: tuple[str | int, ...]) -> frozenset[str]:
        """Return the types of the values at a path; empty if no value has the path."""
        self._until = max(0, self._looks.left - LOOKS_MAX)
        return self._of(self._root, steps)

    def _of(self, schema: Any, steps: tuple[str | int, ...]) -> frozenset[str]:
        if self._looks.left <= self._until:
            return _ALL
        self._looks.left -= 1
        if not isinstance(schema, dict):
            return _NONE if schema is False else _ALL
        if "$ref" in schema:
            # Members beside a reference are ignored. Up to draft 7 they have no effect; in later
            # drafts they can only allow fewer types.
            try:
                return self._of(resolve_reference(self._root, schema["$ref"]), steps)
            except LookupError:
                return _ALL
        types = self._below(schema, steps) if steps else self._own_types(schema)
        for one in _items(schema, "allOf"):
            types &= self._of(one, steps)
        for name in ("anyOf", "oneOf"):
            if alternatives := _items(schema, name):
                types &= _NONE.union(*(self._of(one, steps) for one in alternatives))
        return types

    def _below(self, schema: dict[str, Any], steps: tuple[str | int, ...]) -> frozenset[str]:
        step, rest = steps[0], steps[1:]
        holder = "object" if isinstance(step, str) else "array"
        if holder not in self._own_types(schema):
            return _NONE
        if isinstance(step, str):
            members = schema.get("properties")
            if isinstance(members, dict) and step in members:
                return self._of(members[step], rest)
            if schema.get("patternProperties"):
                return _ALL
            return self._of(schema.get("additionalProperties", True), rest)
        most = schema.get("maxItems")
        if isinstance(most, int | float) and step >= most:
            return _NONE
        items = schema.get("items", True)
        prefix, others = schema.get("prefixItems"), items
        if isinstance(items, list):  # the form of the drafts up to 2019-09
            prefix, others = items, schema.get("additionalItems", True)
        if isinstance(prefix, list) and step < len(prefix):
            return self._of(prefix[step], rest)
        return self._of(others, rest)

    def _own_types(self, schema: dict[str, Any]) -> frozenset[str]:
        types = _ALL
        named = schema.get("type")
        if isinstance(named, str):
            named = [named]
        if isinstance(named, list):
            types &= {
                "number" if one == "integer" else one for one in named if isinstance(one, str)
            }
        if "const" in schema:
            types &= {json_type(schema["const"])}
        if isinstance(schema.get("enum"), list):
            self._looks.left -= len(schema["enum"]) // _VALUES_PER_LOOK
            types &= {json_type(one) for one in schema["enum"]}
        return types


def _items(schema: dict[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def json_type(value: Any) -> str:
    """Return the JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _text(types: frozenset[str]) -> str:
    return " or ".join(sorted(types))
