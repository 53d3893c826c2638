"""What a capability's schemas of one version break of another's: which member, and whom.

A caller sends inputs and reads outputs. So a newer version may take more inputs than the older and
give fewer outputs, and breaks a caller where it does not: the older input schema must be within the
newer one, the newer output schema within the older one.

Theory of operation: `_Comparison._within` walks two schemas side by side and reports each rule of
the wider one that the narrower one does not hold to. What it cannot decide (`oneOf`, `not`, another
`pattern`) it reports as undecided, never as harmless. A member that a schema neither names nor
refuses counts as absent: an input that the older version ignored may get a meaning. `$ref` leads
within its own schema; schemas that lead back to themselves are taken to hold, which is right for
the values that end. Bounded by `STEPS_MAX` and `LEVELS_MAX`. Pure. Reference: features.md
(Capability versions), http.md (Versions). Decision versions-and-schemas.
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

# Steps of one comparison, a hundredth of a millisecond each; what is beyond is undecided.
STEPS_MAX: Final = 2_000
BREAKS_MAX: Final = 20
# Of lists and objects, which take a step's time.
ITEMS_OF_A_STEP: Final = 32
_SHOWN_CHARS_MAX: Final = 80
_REF_HOPS_MAX: Final = 16
# Of schemas, one within the other, `$ref` followed; each is several calls deep.
LEVELS_MAX: Final = 64

_TYPES: Final = ("null", "boolean", "object", "array", "number", "string")
# They say nothing about which values are valid.
_NOTES: Final = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "$comment", "$schema", "$id", "$defs", "definitions", "$anchor")
)  # fmt: skip
_FLOORS: Final = ("minLength", "minItems", "minProperties")
_CEILINGS: Final = ("maxLength", "maxItems", "maxProperties")
# Allows every value.
_ANY: Final[dict[str, Any]] = {}
_MEMBERS: Final = ("properties", "patternProperties", "additionalProperties")
# Rules that are made of others.
_COMPOSED: Final = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentRequired",
     "dependentSchemas", "dependencies", "propertyNames", "contains", "prefixItems", "multipleOf",
     "pattern", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef")
)  # fmt: skip
# Rules that have an order are compared; all others must be the same.
_COMPARED: Final = frozenset(
    ("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf",
     "$ref", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", *_FLOORS, *_CEILINGS)
)  # fmt: skip


class Affected(StrEnum):
    """Whom a break concerns."""

    SENDERS = "callers that send inputs as before"
    READERS = "callers that read outputs as before"


@dataclass(frozen=True, slots=True)
class Break:
    """One rule that does not hold. `path`: of the member, `inputSchema.text`; `was`, `now`: what
    the older and the newer version say of it. `is_decided`: False where nothing could be shown."""

    path: str
    affected: Affected
    was: str
    now: str
    is_decided: bool = True


def find_breaks(
    old_input: Schema, old_output: Schema, new_input: Schema, new_output: Schema
) -> list[Break]:
    """Return what a newer version breaks of an older one, the inputs first; at most `BREAKS_MAX`.

    Args:
        old_input: schemas, here and below, that `ValueSchema` takes; None: any object.
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
    """A rule of the wider schema that the narrower one does not hold to."""

    path: str
    narrow: str
    wide: str
    is_decided: bool = True


class _Comparison:
    """Whether every value of one schema is a value of another.

    Gaps have paths within the schemas that are compared.

    Args:
        narrow_root: the schema of the values that there are.
        wide_root: the schema that must hold for them.
    """

    def __init__(self, narrow_root: Schema, wide_root: Schema) -> None:
        self._narrow_root, self._wide_root = _of_objects(narrow_root), _of_objects(wide_root)
        self._steps = 0
        self._open: set[tuple[int, int]] = set()

    def run(self) -> list[_Gap]:
        """Return the gaps, the first `BREAKS_MAX`."""
        if write_sorted_json(self._narrow_root) == write_sorted_json(self._wide_root):
            return []
        return self._within(self._narrow_root, self._wide_root)

    def _within(self, narrow: Schema, wide: Schema, path: str = "") -> list[_Gap]:
        try:
            narrow, wide = _meant(narrow, self._narrow_root), _meant(wide, self._wide_root)
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
        # As many are open as this one is deep.
        if self._steps > STEPS_MAX or len(self._open) >= LEVELS_MAX:
            return [_Gap(path, "more than is compared", "more than is compared", False)]
        self._open.add(pair)
        # Rules that are not looked into may make up for those that are missed.
        is_known = not narrow.keys() & _COMPOSED
        found = [
            replace(gap, path=path + gap.path, is_decided=gap.is_decided and is_known)
            for gap in islice(self._rules(narrow, wide), BREAKS_MAX)
        ]
        self._open.discard(pair)
        return found

    def _rules(self, narrow: Schema, wide: Schema) -> Iterator[_Gap]:
        """Compare two objects, rule by rule."""
        if "anyOf" in narrow and len(narrow.keys() - _NOTES) == 1:
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
            # Whether listed values hold to the other rules is not looked at.
            if wide.keys() - _NOTES - {"type", "enum", "const"}:
                yield _Gap("", "some values", "other rules", False)
            return
        yield from _bound_gaps(narrow, wide)
        yield from self._members(narrow, wide)
        if "items" in wide and _may_be(narrow, "array"):
            yield from self._within(narrow.get("items", True), wide["items"], "[]")
        for name in sorted(wide.keys() - _COMPARED - _NOTES):
            if not _is_same(name, narrow, wide):
                yield _Gap("", _rule(name, narrow), _rule(name, wide), False)
        if "prefixItems" in narrow.keys() - wide.keys():
            yield _Gap("", "prefixItems", "no prefixItems", False)

    def _any_of(self, narrow: Schema, wide: Schema) -> Iterator[_Gap]:
        """Report unless one of the wider schema's alternatives holds by itself."""
        if all(self._within(narrow, branch) for branch in wide["anyOf"]):
            kinds = " or ".join(sorted(_types_of(narrow)))
            yield _Gap("", kinds, "one of several forms", False)

    def _members(self, narrow: Schema, wide: Schema) -> Iterator[_Gap]:
        if not _may_be(narrow, "object"):
            return
        have, want = narrow.get("properties", {}), wide.get("properties", {})
        required = set(narrow.get("required", ()))
        for name in wide.get("required", ()):
            if name not in required:
                known = "optional" if name in have else "absent"
                yield _Gap(f".{_shown(name)}", known, "required")
        beyond_have = narrow.get("additionalProperties", True)
        beyond_want = wide.get("additionalProperties", True)
        if "patternProperties" in narrow or "patternProperties" in wide:
            if not all(_is_same(name, narrow, wide) for name in _MEMBERS):
                yield _Gap("", "patternProperties", "patternProperties", False)
            return
        for name, schema in want.items():
            if name in have:
                yield from self._within(have[name], schema, f".{_shown(name)}")
            elif beyond_have not in (True, False):
                yield from self._within(beyond_have, schema, f".{_shown(name)}")
        for name in sorted(have.keys() - want.keys()):
            yield from self._within(have[name], beyond_want, f".{_shown(name)}")
        if beyond_want is False and beyond_have is not False:
            yield _Gap("", "any further members", "no further members")
        elif beyond_want not in (True, False) and beyond_have is not False:
            yield from self._within(beyond_have, beyond_want, ".*")


def _listed_in(schema: Schema) -> int:
    """Return how many items the lists and objects of a schema have."""
    return sum(len(value) for value in schema.values() if isinstance(value, list | dict))


def _of_objects(schema: Schema) -> Schema:
    """Return a root that says what inputs and results are anyway: objects."""
    if schema is None or schema is True:
        return {"type": "object"}
    if isinstance(schema, dict) and "$ref" not in schema:
        return {"type": "object", **schema}
    return schema


def _meant(schema: Schema, root: Schema) -> Schema:
    """Return the schema that a `$ref` leads to, or the schema itself.

    Raises:
        LookupError: it leads out of its root or to nothing, or other rules stand beside it.
    """
    for _ in range(_REF_HOPS_MAX):
        if isinstance(schema, bool) or "$ref" not in schema:
            return schema
        if schema.keys() - _NOTES != {"$ref"}:
            break
        schema = resolve_reference(root, schema["$ref"])
    raise LookupError


def _is_same(name: str, narrow: Schema, wide: Schema) -> bool:
    """Say whether a rule is the same in both, and means the same: `$ref` may lead elsewhere."""
    text = write_sorted_json(wide.get(name))
    return write_sorted_json(narrow.get(name)) == text and b'"$ref"' not in text


def _types_of(schema: Schema) -> set[str]:
    """Return the types that a schema allows; integers are numbers, told apart by "integer"."""
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


def _may_be(schema: Schema, kind: str) -> bool:
    kinds = _types_of(schema)
    return kind in kinds or (kind == "number" and "integer" in kinds)


def _type_gap(narrow: Schema, wide: Schema) -> _Gap | None:
    have, want = _types_of(narrow), _types_of(wide)
    held = want | {"integer"} if "number" in want else want
    if have <= held:
        return None
    return _Gap("", " or ".join(sorted(have)), " or ".join(sorted(want)))


def _values_of(schema: Schema) -> list[Any] | None:
    """Return the values that a schema lists, None when it lists none."""
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
        if rule not in wide or not _may_be(narrow, kinds[rule[3:]]):
            continue
        least = 0 if rule in _FLOORS else None
        have, want = narrow.get(rule, least), wide[rule]
        if have is None or (have < want if rule in _FLOORS else have > want):
            yield _Gap("", _rule(rule, narrow), _rule(rule, wide))
    if _may_be(narrow, "number"):
        yield from _range_gaps(narrow, wide, "minimum", "exclusiveMinimum", 1)
        yield from _range_gaps(narrow, wide, "maximum", "exclusiveMaximum", -1)


def _range_gaps(
    narrow: Schema, wide: Schema, bound: str, exclusive: str, sign: int
) -> Iterator[_Gap]:
    """Report where numbers of the narrower schema lie beyond a bound of the wider one.

    Args:
        sign: 1 of lower bounds, -1 of upper ones.
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
