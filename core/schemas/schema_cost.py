"""Computes the cost of validating values by a JSON Schema, before the schema is compiled.

Anyone can register a schema, and a process that serves all callers validates values by it. The time
of a validation is at most `cost of the schema x bytes of the value`. The cost is the number of
times that one place of a value is checked, in units of about 20 ns. References can multiply these
checks without a limit: 60 definitions, each of which names the next one twice, make 2^60 checks. So
this module follows the references, and refuses a schema that checks a place too often.

Theory of operation. A *place* is a part of a value, such as the value itself or one of its members.
A schema and the schemas that check the same place (`$ref`, `allOf`, ...) are its *closure*. In a
closure, each schema has a multiplicity. A closure passes each place below to a multiset of schemas.
The cost of a schema is the maximum of the weight of its closure and of the costs of the places
below. The cost of a place below is the sum of the costs of the schemas to which the place is
passed, each multiplied by the schema's multiplicity. The cost has no bound if a schema reaches
itself at the same place, or more than once per level. Decision versions-and-schemas.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from msgspec import Struct

from core.errors import Problem

Schema: TypeAlias = "dict[str, Any] | bool"

COST_MAX: Final = 4_096
# The most steps of this analysis; a step takes about 1 us. A typical schema of 8 KiB needs a tenth.
STEPS_MAX: Final = 20_000
# The longest chain of schemas that check the same place, each named by the one before.
DEPTH_MAX: Final = 128

_LISTS_IN_PLACE: Final = ("allOf", "anyOf", "oneOf")
_ONES_IN_PLACE: Final = ("not", "if", "then", "else")
_DICTS_IN_PLACE: Final = ("dependentSchemas", "dependencies")
_OTHER_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_EACH_ITEM: Final = ("contains", "unevaluatedItems", "additionalItems")
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
# With one of these two keywords, the validator checks the closure again for each alternative.
_UNEVALUATED_FACTOR: Final = 4
# Keywords that change the target of a reference.
_REFUSED: Final = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")
_ENTRIES_PER_UNIT: Final = 4
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_UNITS_PER_ALTERNATIVE: Final = 2
# The cost of `multipleOf` per byte of a number, by its divisor. Numbers are divided exactly, even
# 1e300.
_DIVIDED_BY_INTEGER: Final = 16
_DIVIDED_BY_FRACTION: Final = 160
_DIVIDED_BY_LEAST: Final = 512
_FRACTION_MIN: Final = 1e-30


class SchemaDefect(Exception):
    """A schema is refused.

    `path`: the path inside the schema. `got`, `expected`: what was found and expected there.
    """

    def __init__(self, path: str, got: str, expected: str) -> None:
        super().__init__(path, got, expected)
        self.path = path
        self.got = got
        self.expected = expected

    def as_problem(self, where: str) -> Problem:
        """Return the defect as a problem of a request.

        Args:
            where: the path of the schema in the request.
        """
        return Problem(where + self.path.removeprefix("$"), self.got, self.expected)


class _Place(Struct, eq=False):
    """A schema object, with the results of the analysis for its place.

    `path`: the path of the schema object. `closure`: how often each schema object checks the place,
    by the object's `id()`. `is_open`: the closure is being computed. `below`: for each class of
    places below, how often each schema object checks them. `own_weight`: the weight of this object
    alone; 0: not computed yet. `cost`: the cost found so far.
    """

    schema: dict[str, Any]
    path: str
    closure: Counter[int] | None = None
    is_open: bool = False
    below: list[Counter[int]] | None = None
    own_weight: int = 0
    cost: int = 0


def schema_cost(schema: Schema, pattern_cost: dict[str, int]) -> int:
    """Return the cost of a schema per byte of a value, in units of 20 ns.

    Args:
        schema: a schema with at most `core.json_bounds.DEPTH_MAX` levels.
        pattern_cost: the cost per byte of text of each pattern in `patterns_of(schema)`.

    Raises:
        SchemaDefect: a reference leaves the schema or names nothing, or the cost is unbounded or
            too high.
    """
    if isinstance(schema, bool):
        return 1
    return _Analysis(schema, pattern_cost).cost()


def patterns_of(schema: Any) -> Iterator[str]:
    """Yield the regular expressions that a schema may apply."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            if isinstance(value.get("pattern"), str):
                yield value["pattern"]
            if isinstance(value.get("patternProperties"), dict):
                yield from value["patternProperties"]
            waiting.extend(value.values())


def resolve_reference(root: Any, reference: Any) -> Any:
    """Return the part of a schema that a reference names.

    Raises:
        LookupError: the reference leaves the schema, or names nothing.
    """
    if reference == "#":
        return root
    # The validator would decode percent-encoded text, and find another member than this function.
    if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference:
        raise LookupError(reference)
    value, base = root, _base_keyword(root)
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            if _INDEX.fullmatch(name) is None or int(name) >= len(value):
                raise LookupError(reference)
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            # A schema with its own identifier is the root for references to its parts.
            if value is not root and isinstance(value.get(base), str):
                raise LookupError(reference)
            value = value[name]
        else:
            raise LookupError(reference)
    return value


def _base_keyword(root: Any) -> str:
    """Return the keyword that gives a schema its identifier in the draft of the root."""
    named = root.get("$schema") if isinstance(root, dict) else None
    return "id" if isinstance(named, str) and "draft-04" in named else "$id"


class _Analysis:
    def __init__(self, root: dict[str, Any], pattern_cost: dict[str, int]) -> None:
        self._root = root
        self._pattern_cost = pattern_cost
        self._places: dict[int, _Place] = {}  # by `id()`; `root` keeps the objects alive
        self._steps = 0
        self._depth = 0

    def cost(self) -> int:
        """Return the cost of the root.

        1. Find every schema to which a place is passed.
        2. Raise the costs until none grows. The cost of a schema that a place reaches more than
           once per level would grow without end, and is refused.
        """
        reached = [self._place(self._root, "$")]
        found = {id(self._root)}
        for place in reached:  # 1; the list grows during the loop
            below = self._below(place)
            place.cost = self._weight(self._closure(place))
            for targets in below:
                for target in targets:
                    if target not in found:
                        found.add(target)
                        reached.append(self._places[target])
        is_growing = True
        while is_growing:  # 2
            is_growing = False
            for place in reversed(reached):
                for targets in self._below(place):
                    cost = 0
                    for target, times in targets.items():
                        self._step(place)
                        cost += times * self._places[target].cost
                    if cost > place.cost:
                        place.cost, is_growing = cost, True
                if place.cost > COST_MAX:
                    raise _too_costly(place.path)
        return reached[0].cost

    def _place(self, schema: dict[str, Any], path: str) -> _Place:
        place = self._places.get(id(schema))
        if place is None:
            place = self._places[id(schema)] = _Place(schema, path)
            for name in _REFUSED:
                if name in schema:
                    raise SchemaDefect(f"{path}.{name}", name, "$ref to a place in this schema")
            for name in ("$id", _base_keyword(self._root)):
                if isinstance(schema.get(name), str) and schema is not self._root:
                    raise SchemaDefect(f"{path}.{name}", name, "only at the root")
        self._step(place)
        return place

    def _step(self, place: _Place) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _too_costly(place.path)

    def _closure(self, place: _Place) -> Counter[int]:
        """Return how often each schema object checks a schema's place, by the objects' `id()`."""
        if place.closure is not None:
            return place.closure
        if place.is_open:
            raise SchemaDefect(place.path, "a cyclic reference", "one without a cycle")
        place.is_open = True
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SchemaDefect(place.path, "a longer chain of references", f"{DEPTH_MAX} at most")
        closure = Counter({id(place.schema): 1})
        for joined in self._joined(place):
            for target, times in self._closure(joined).items():
                self._step(place)
                closure[target] += times
        if any(name in place.schema for name in _UNEVALUATED):
            for target in closure:
                closure[target] *= _UNEVALUATED_FACTOR
        self._depth -= 1
        place.closure, place.is_open = closure, False
        return closure

    def _referenced(self, place: _Place) -> _Place | None:
        if "$ref" not in place.schema:
            return None
        path = f"{place.path}.$ref"
        try:
            target = resolve_reference(self._root, place.schema["$ref"])
        except LookupError:
            got = str(place.schema["$ref"])[:200]
            raise SchemaDefect(path, got, "# or #/ and a path in this schema") from None
        if isinstance(target, dict):
            return self._place(target, str(place.schema["$ref"]))
        if isinstance(target, bool):
            return None
        raise SchemaDefect(path, str(place.schema["$ref"])[:200], "the path of a schema")

    def _joined(self, place: _Place) -> Iterator[_Place]:
        """Yield the schemas that check the same place because this schema names them."""
        schema = place.schema
        referenced = self._referenced(place)
        if referenced is not None:
            yield referenced
        for name in _LISTS_IN_PLACE:
            yield from self._of_list(place, name)
        for name in _ONES_IN_PLACE:
            if isinstance(schema.get(name), dict):
                yield self._place(schema[name], f"{place.path}.{name}")
        for name in _DICTS_IN_PLACE:
            yield from (one for _, one in self._of_dict(place, name))

    def _of_list(self, place: _Place, name: str) -> Iterator[_Place]:
        items = place.schema.get(name)
        for position, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                yield self._place(item, f"{place.path}.{name}[{position}]")

    def _of_dict(self, place: _Place, name: str) -> Iterator[tuple[str, _Place]]:
        members = place.schema.get(name)
        for key, member in (members if isinstance(members, dict) else {}).items():
            if isinstance(member, dict):
                yield key, self._place(member, f"{place.path}.{name}.{key[:80]}")

    def _of_names(self, place: _Place, names: Iterable[str]) -> Iterator[_Place]:
        for name in names:
            if isinstance(place.schema.get(name), dict):
                yield self._place(place.schema[name], f"{place.path}.{name}")

    def _below(self, place: _Place) -> list[Counter[int]]:
        """Return, for each class of places below, how often each schema object checks such a place.

        The classes are: each named member, other members, names of members, each item of a prefix,
        and other items. A pattern of `patternProperties` counts as matching every member.
        """
        if place.below is not None:
            return place.below
        members: dict[str, Counter[int]] = {}
        others: Counter[int] = Counter()
        exempt: dict[str, Counter[int]] = {}
        names: Counter[int] = Counter()
        prefix: dict[int, Counter[int]] = {}
        items: Counter[int] = Counter()
        for joined_id, times in self._closure(place).items():
            joined = self._places[joined_id]
            named = joined.schema.get("properties")
            other = [id(one.schema) for one in self._of_names(joined, _OTHER_MEMBERS)]
            for key, one in self._of_dict(joined, "properties"):
                members.setdefault(key, Counter())[id(one.schema)] += times
            for target in other:
                others[target] += times
                for key in named if isinstance(named, dict) else ():
                    self._step(joined)
                    exempt.setdefault(key, Counter())[target] += times
            for _, one in self._of_dict(joined, "patternProperties"):
                others[id(one.schema)] += times
            for one in self._of_names(joined, ("propertyNames",)):
                names[id(one.schema)] += times
            for one in self._of_names(joined, ("items", *_EACH_ITEM)):
                items[id(one.schema)] += times
            for keyword in ("prefixItems", "items"):
                for position, one in enumerate(self._of_list(joined, keyword)):
                    prefix.setdefault(position, Counter())[id(one.schema)] += times
        place.below = [others, names, items]
        for key, targets in members.items():
            place.below.append(targets + others - exempt.get(key, Counter()))
        place.below += [targets + items for targets in prefix.values()]
        self._steps += len(place.below) * (1 + len(others) + len(items))
        self._step(place)
        return place.below

    def _weight(self, closure: Counter[int]) -> int:
        return sum(
            times * self._own_weight(self._places[target]) for target, times in closure.items()
        )

    def _own_weight(self, place: _Place) -> int:
        """Return the weight of a schema object alone: entries, alternatives, patterns, divisor.

        The result is cached, because thousands of places may refer to one long list.
        """
        if place.own_weight:
            return place.own_weight
        schema, weight = place.schema, 1
        for name, value in schema.items():
            if name == "enum" and isinstance(value, list):
                # Scalars are found by hash. Lists and objects are compared one by one.
                objects = sum(isinstance(one, dict | list) for one in value)
                weight += _UNITS_PER_ALTERNATIVE * objects
            elif name == "pattern" and isinstance(value, str):
                weight += self._pattern_cost.get(value, COST_MAX)
            elif name == "multipleOf" and isinstance(value, int | float):
                weight += _division_cost(value)
            elif isinstance(value, dict | list):
                weight += len(value) // _ENTRIES_PER_UNIT
                if name == "patternProperties" and isinstance(value, dict):
                    weight += sum(self._pattern_cost.get(one, COST_MAX) for one in value)
        place.own_weight = weight
        return weight


def _division_cost(divisor: float) -> int:
    if divisor == divisor // 1:
        return _DIVIDED_BY_INTEGER
    return _DIVIDED_BY_FRACTION if divisor >= _FRACTION_MIN else _DIVIDED_BY_LEAST


def _too_costly(path: str) -> SchemaDefect:
    expected = (
        f"a schema that checks each part of a value at most {COST_MAX} times, references included"
    )
    return SchemaDefect(path, "a schema that takes too long to validate with", expected)
