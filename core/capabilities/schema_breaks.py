"""Finds breaking changes between the schemas of two versions of a capability.

A caller sends inputs and reads outputs. A newer version breaks no caller if it accepts every input
that the older version accepts, and returns only outputs that the older version may return. Schema A
is within schema B if B allows every value that A allows. So the older input schema must be within
the newer one, and the newer output schema within the older one.

Theory of operation. `_Comparison._within` walks two schemas in parallel: the narrow schema should
be within the wide one. A rule of the wide schema that the narrow schema does not imply is a *gap*.
If the walk cannot decide (`oneOf`, `not`, a different `pattern`), it reports an undecided gap. If
the newer input schema names a property that the older one neither names nor forbids, this is no
break, although callers may already send such a property: the older version ignored it. References
(`$ref`) stay within their own schema. If the walk returns to two schemas that it is already
comparing, it assumes that there is no gap; this is correct, because JSON values are finite. The
work is bounded by `STEPS_MAX` and `LEVELS_MAX`. No I/O. Reference: features.md (Capability
versions), http.md (Versions). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from core.canonical import canonical
from core.json_text import write_sorted_json
from core.schemas.schema_cost import resolve_reference

Schema = Any

# The most steps of one comparison; a step takes about 10 us. Schemas beyond it are reported as
# undecided.
STEPS_MAX: Final = 2_000
BREAKS_MAX: Final = 20
# This many list items or object members of a schema cost one more step.
ITEMS_OF_A_STEP: Final = 32
_SHOWN_CHARS_MAX: Final = 80
_REF_HOPS_MAX: Final = 16
# The deepest nesting of schemas, with `$ref` followed. Each level needs several
# frames of Python's stack.
LEVELS_MAX: Final = 64

_TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
# Keywords that do not restrict the values.
_ANNOTATIONS: Final = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "$comment", "$schema", "$id", "$defs", "definitions", "$anchor")
)  # fmt: skip
_FLOORS: Final = ("minLength", "minItems", "minProperties")
_CEILINGS: Final = ("maxLength", "maxItems", "maxProperties")
# Allows every value.
_ANY: Final[dict[str, Any]] = {}
_MEMBERS: Final = ("properties", "patternProperties", "additionalProperties")
# If the narrow schema has one of these rules, its gaps are undecided: the rule may imply the rule
# that seems to be missing.
_OPAQUE: Final = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentRequired",
     "dependentSchemas", "dependencies", "propertyNames", "contains", "prefixItems", "multipleOf",
     "pattern", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef")
)  # fmt: skip
# Rules that are compared by their meaning. Any other rule of the wide schema must be equal in the
# narrow schema.
_COMPARED: Final = frozenset(
    ("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf",
     "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", *_FLOORS, *_CEILINGS)
)  # fmt: skip


class Affected(StrEnum):
    """The callers that a break affects."""

    SENDERS = "callers that send inputs as before"
    READERS = "callers that read outputs as before"


@dataclass(frozen=True, slots=True)
class Break:
    """One breaking change.

    `path`: the path of the member, such as `inputSchema.text`. `was`, `now`: the rule in the older
    and in the newer version. `is_decided`: False if the change may be harmless, but the comparison
    could not decide.
    """

    path: str
    affected: Affected
    was: str
    now: str
    is_decided: bool = True


def find_breaks(
    old_input: Schema, old_output: Schema, new_input: Schema, new_output: Schema
) -> list[Break]:
    """Return the breaking changes of a newer version, at most `BREAKS_MAX`; inputs come first.

    All arguments are schemas that `ValueSchema` accepts; None allows any object.

    Args:
        old_input, old_output: the schemas of the older version.
        new_input, new_output: the schemas of the newer version.
    """
    sent = _Comparison(old_input, new_input)
    found = [
        Break(f"inputSchema{one.path}", Affected.SENDERS, one.narrow, one.wide, one.is_decided)
        for one in sent.run()
    ]
    read = _Comparison(new_output, old_output)
    found += [
        Break(f"outputSchema{one.path}", Affected.READERS, one.wide, one.narrow, one.is_decided)
        for one in read.run()
    ]
    return found[:BREAKS_MAX]


@dataclass(frozen=True, slots=True)
class _Gap:
    """A rule of the wide schema that the narrow schema does not imply.

    `path`: the path within the compared schemas. `narrow`, `wide`: the rule in each schema.
    `is_decided`: False if the comparison could not decide.
    """

    path: str
    narrow: str
    wide: str
    is_decided: bool = True


class _Comparison:
    """Checks whether every value of one schema is also a value of another schema.

    Args:
        narrow_root: the schema of the existing values.
        wide_root: the schema that must allow these values.
    """

    def __init__(self, narrow_root: Schema, wide_root: Schema) -> None:
        self._narrow_root, self._wide_root = _of_objects(narrow_root), _of_objects(wide_root)
        self._steps = 0
        self._open: set[tuple[int, int]] = set()

    def run(self) -> list[_Gap]:
        """Return the first `BREAKS_MAX` gaps."""
        if write_sorted_json(self._narrow_root) == write_sorted_json(self._wide_root):
            return []
        return self._within(self._narrow_root, self._wide_root)

    def _within(self, narrow: Schema, wide: Schema, path: str = "") -> list[_Gap]:
        try:
            narrow, wide = _resolved(narrow, self._narrow_root), _resolved(wide, self._wide_root)
        except LookupError:
            return [_Gap(path, "a $ref", "a $ref", False)]
        if narrow is False or wide is True or wide == {}:
            return []
        if wide is False:
            return [_Gap(path, "allowed", "not allowed")]
        narrow = _ANY if narrow is True else narrow
        pair = (id(narrow), id(wide))
        if pair in self._open:
            return []
        self._steps += 1 + (_listed_in(narrow) + _listed_in(wide)) // ITEMS_OF_A_STEP
        # The number of open pairs is the current depth.
        if self._steps > STEPS_MAX or len(self._open) >= LEVELS_MAX:
            return [_Gap(path, "more than is compared", "more than is compared", False)]
        self._open.add(pair)
        is_decidable = not narrow.keys() & _OPAQUE
        found = [
            replace(gap, path=path + gap.path, is_decided=gap.is_decided and is_decidable)
            for gap in islice(self._rules(narrow, wide), BREAKS_MAX)
        ]
        self._open.discard(pair)
        return found

    def _rules(self, narrow: Schema, wide: Schema) -> Iterator[_Gap]:
        """Yield the gaps between two schema objects, rule by rule."""
        if "anyOf" in narrow and len(narrow.keys() - _ANNOTATIONS) == 1:
            for branch in narrow["anyOf"]:
                yield from self._within(branch, wide)
            return
        if "anyOf" in wide and not _is_same("anyOf", narrow, wide):
            yield from self._any_of(narrow, wide)
        gap = _type_gap(narrow, wide)
        if gap is not None:
            yield gap
            return
        yield from _value_gaps(narrow, wide)
        if _values_of(narrow) is not None:
            # The listed values are not checked against the other rules.
            if wide.keys() - _ANNOTATIONS - {"type", "enum", "const"}:
                yield _Gap("", "some values", "other rules", False)
            return
        yield from _bound_gaps(narrow, wide)
        yield from self._members(narrow, wide)
        if "items" in wide and _allows_type(narrow, "array"):
            yield from self._within(narrow.get("items", True), wide["items"], "[]")
        for name in sorted(wide.keys() - _COMPARED - _ANNOTATIONS):
            if not _is_same(name, narrow, wide):
                yield _Gap("", _rule(name, narrow), _rule(name, wide), False)
        if "prefixItems" in narrow.keys() - wide.keys():
            yield _Gap("", "prefixItems", "no prefixItems", False)

    def _any_of(self, narrow: Schema, wide: Schema) -> Iterator[_Gap]:
        """Yield an undecided gap, unless one of the wide alternatives has no gap."""
        # `_within` returns the gaps of an alternative; an alternative without gaps is enough.
        if all(self._within(narrow, branch) for branch in wide["anyOf"]):
            kinds = " or ".join(sorted(_types_of(narrow)))
            yield _Gap("", kinds, "one of several forms", False)

    def _members(self, narrow: Schema, wide: Schema) -> Iterator[_Gap]:
        if not _allows_type(narrow, "object"):
            return
        have, want = narrow.get("properties", {}), wide.get("properties", {})
        required = set(narrow.get("required", ()))
        for name in wide.get("required", ()):
            if name not in required:
                known = "optional" if name in have else "absent"
                yield _Gap(f".{_shown(name)}", known, "required")
        other_have = narrow.get("additionalProperties", True)
        other_want = wide.get("additionalProperties", True)
        if "patternProperties" in narrow or "patternProperties" in wide:
            if not all(_is_same(name, narrow, wide) for name in _MEMBERS):
                yield _Gap("", "patternProperties", "patternProperties", False)
            return
        for name, schema in want.items():
            if name in have:
                yield from self._within(have[name], schema, f".{_shown(name)}")
            elif other_have not in (True, False):
                yield from self._within(other_have, schema, f".{_shown(name)}")
        for name in sorted(have.keys() - want.keys()):
            yield from self._within(have[name], other_want, f".{_shown(name)}")
        if other_want is False and other_have is not False:
            yield _Gap("", "any further members", "no further members")
        elif other_want not in (True, False) and other_have is not False:
            yield from self._within(other_have, other_want, ".*")


def _listed_in(schema: Schema) -> int:
    """Return the number of items in all lists and objects of a schema."""
    return sum(len(value) for value in schema.values() if isinstance(value, list | dict))


def _of_objects(schema: Schema) -> Schema:
    """Return a root schema, with the type `object` if it has none: all values are objects."""
    if schema is None or schema is True:
        return {"type": "object"}
    if isinstance(schema, dict) and "$ref" not in schema:
        return {"type": "object", **schema}
    return schema


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Return the schema to which a `$ref` leads, or the schema itself without a `$ref`.

    Raises:
        LookupError: the reference leaves the root, names nothing, or has other rules beside it.
            Also for too many references in a row.
    """
    for _ in range(_REF_HOPS_MAX):
        if isinstance(schema, bool) or "$ref" not in schema:
            return schema
        if schema.keys() - _ANNOTATIONS != {"$ref"}:
            break
        schema = resolve_reference(root, schema["$ref"])
    raise LookupError


def _is_same(name: str, narrow: Schema, wide: Schema) -> bool:
    """Return whether a rule is the same in both schemas.

    A rule with a `$ref` counts as different, because the references may lead to different schemas.
    """
    text = write_sorted_json(wide.get(name))
    return write_sorted_json(narrow.get(name)) == text and b'"$ref"' not in text


def _types_of(schema: Schema) -> set[str]:
    """Return the types that a schema allows; "number" stands for all numbers."""
    given = schema.get("type")
    if given is not None:
        return set(given) if isinstance(given, list) else {given}
    values = _values_of(schema)
    if values is not None:
        return {_type_of(value) for value in values}
    return set(_TYPES)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _allows_type(schema: Schema, kind: str) -> bool:
    kinds = _types_of(schema)
    return kind in kinds or (kind == "number" and "integer" in kinds)


def _type_gap(narrow: Schema, wide: Schema) -> _Gap | None:
    have, want = _types_of(narrow), _types_of(wide)
    allowed = want | {"integer"} if "number" in want else want
    if have <= allowed:
        return None
    return _Gap("", " or ".join(sorted(have)), " or ".join(sorted(want)))


def _values_of(schema: Schema) -> list[Any] | None:
    """Return the values that a schema lists by `const` or `enum`, None without such a list."""
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values


def _value_gaps(narrow: Schema, wide: Schema) -> Iterator[_Gap]:
    for rule in ("enum", "const"):
        if rule not in wide:
            continue
        want = wide["enum"] if rule == "enum" else [wide["const"]]
        have = _values_of(narrow)
        if have is None:
            yield _Gap("", "any value", f"one of {_shown(want)}")
        else:
            wanted = set(map(canonical, want))
            missing = [value for value in have if canonical(value) not in wanted]
            if missing:
                yield _Gap("", f"also {_shown(missing)}", f"one of {_shown(want)}")


def _bound_gaps(narrow: Schema, wide: Schema) -> Iterator[_Gap]:
    kinds = {"Length": "string", "Items": "array", "Properties": "object"}
    for rule in (*_FLOORS, *_CEILINGS):
        if rule not in wide or not _allows_type(narrow, kinds[rule[3:]]):
            continue
        least = 0 if rule in _FLOORS else None
        have, want = narrow.get(rule, least), wide[rule]
        if have is None or (have < want if rule in _FLOORS else have > want):
            yield _Gap("", _rule(rule, narrow), _rule(rule, wide))
    if _allows_type(narrow, "number"):
        yield from _range_gaps(narrow, wide, "minimum", "exclusiveMinimum", 1)
        yield from _range_gaps(narrow, wide, "maximum", "exclusiveMaximum", -1)


def _range_gaps(
    narrow: Schema, wide: Schema, bound: str, exclusive: str, sign: int
) -> Iterator[_Gap]:
    """Yield a gap if numbers of the narrow schema can be outside a bound of the wide schema.

    Args:
        narrow, wide: the schemas.
        bound, exclusive: the names of the inclusive and of the exclusive bound.
        sign: 1 for lower bounds, -1 for upper bounds.
    """

    def tightest(schema: Schema) -> tuple[float, bool] | None:
        given = [(sign * schema[name], name == exclusive)
                 for name in (bound, exclusive) if name in schema]  # fmt: skip
        return max(given, default=None)

    have, want = tightest(narrow), tightest(wide)
    if want is not None and (have is None or have < want):
        name = exclusive if want[1] else bound
        rule = next((one for one in (exclusive, bound) if one in narrow), name)
        yield _Gap("", _rule(rule, narrow), _rule(name, wide))


def _rule(name: str, schema: Schema) -> str:
    return f"{name} {_shown(schema[name])}" if name in schema else f"no {name}"


def _shown(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if len(text) <= _SHOWN_CHARS_MAX:
        return text
    return f"{text[: _SHOWN_CHARS_MAX - 1]}…"
