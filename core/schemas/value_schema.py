"""Compiled JSON Schemas: they validate values in bounded time and without the network.

References stay inside the schema. Patterns run in linear time (Rust's `regex` engine, without
look-around and back-references). `format` is not checked. Drafts 4 to 2020-12 are supported; a
schema without `$schema` has draft 2020-12.
Reference: features.md (Schemas). Decision versions-and-schemas.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, Final

from jsonschema_rs import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    RegexOptions,
    ValidationError,
    Validator,
)

from core.json_bounds import DEPTH_MAX, is_deeper_than
from core.json_text import read_json
from core.message import Message
from core.schemas.schema_cost import COST_MAX, SchemaDefect, patterns_of, schema_cost
from core.wording import quoted, value_text

# Per unit of `cost * bytes`, a validation takes at most 20 ns. Finding the place of an error takes
# 130 ns per unit, so its limit is lower (`TOLD_UNITS_MAX`).
TOLD_UNITS_MAX: Final = 8_000_000
JUDGED_UNITS_MAX: Final = 64_000_000
PATTERNS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 300
# The expectation of each keyword, as text with a place for the keyword's value.
_EXPECTED: Final = {
    "const": "{}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} members",
    "maxProperties": "at most {} members",
    "pattern": "text that matches the schema's pattern",
    "anyOf": "a value that one of the schema's anyOf allows",
    "oneOf": "a value that exactly one of the schema's oneOf allows",
    "uniqueItems": "items that differ",
    "not": "a value that the schema's not does not match",
    "falseSchema": "nothing",
}
_TYPES: Final = {
    "array": "an array",
    "boolean": "a boolean",
    "integer": "an integer",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_EXPECTED_VALUES_MAX: Final = 5
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
# Sizes of compiled patterns in bytes, each with its cost per byte of text in units of
# `schema_cost`.
_PATTERN_SIZES: Final = ((1 << 10, 4), (1 << 12, 32), (1 << 15, 256), (1 << 17, 1_024))
# The draft of schemas without `$schema`.
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS: Final[dict[str, type[Validator]]] = {
    "http://json-schema.org/draft-04/schema": Draft4Validator,
    "http://json-schema.org/draft-06/schema": Draft6Validator,
    "http://json-schema.org/draft-07/schema": Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": Draft201909Validator,
    DIALECT: Draft202012Validator,
}
# The memory of a compiled schema without its patterns, bytes per byte of its text.
_HELD_PER_BYTE: Final = 20


class Breach(Message, frozen=True):
    """A place where a value does not match a schema.

    `path`: a path such as `$.items[0].name`. `problem`: what was found and what was expected.
    """

    path: str
    problem: str


class ValueSchema:
    """A compiled schema.

    Args:
        schema: the registered schema.

    Raises:
        SchemaDefect: the schema is not valid, or is refused (too deep, too costly, or with
            unsupported patterns).
    """

    def __init__(self, schema: Any) -> None:
        if is_deeper_than(schema, DEPTH_MAX):
            raise SchemaDefect("$", "a deeper schema", f"at most {DEPTH_MAX} levels")
        draft = _draft_of(schema)
        patterns = _pattern_costs(schema)
        self.cost = schema_cost(schema, {text: cost for text, (_, cost) in patterns.items()})
        limit = max((size for size, _ in patterns.values()), default=_PATTERN_SIZES[0][0])
        try:
            self._validator = draft(
                schema,
                pattern_options=RegexOptions(size_limit=limit, dfa_size_limit=limit),
                validate_formats=False,
                offline=True,
            )
        except ValidationError as error:
            path = _path_text(error.instance_path)
            raise SchemaDefect(path, _shown(error.message), "a valid JSON Schema") from None
        except ValueError as error:
            raise SchemaDefect("$", _shown(str(error)), "a valid JSON Schema") from None
        self.held_bytes = sum(size for size, _ in patterns.values())

    def find_breach(self, value: Any, size_bytes: int) -> Breach | None:
        """Return a place where a value does not match the schema, None if the value is valid.

        A value that would take too long to validate is not valid. The author of the value knows the
        schema, and can send a smaller value.

        Args:
            value: a JSON value with at most `DEPTH_MAX` levels.
            size_bytes: the size of the value's text in bytes, or an upper bound of this size.
        """
        units = self.cost * size_bytes
        if units > JUDGED_UNITS_MAX:
            return Breach("$", f"{size_bytes} bytes are too many to validate by this schema")
        if self._validator.is_valid(value):
            return None
        if units > TOLD_UNITS_MAX:
            return Breach("$", "the value breaks the schema (it is too large to report the place)")
        try:
            self._validator.validate(value)
        except ValidationError as error:
            return _breach(error)
        raise AssertionError("a value is invalid and has no error")


class CompiledSchemas:
    """A cache of compiled schemas, by the hash of their text; the least recently used are dropped.

    Args:
        bytes_max: the memory of all cached schemas together, by estimate, bytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # A refused schema is cached as None.
        self._kept: OrderedDict[str, tuple[ValueSchema | None, int]] = OrderedDict()
        self._bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def get(self, name: str) -> ValueSchema | None:
        """Return a cached schema by its hash; None if the schema was refused."""
        self._kept.move_to_end(name)
        return self._kept[name][0]

    def add(self, name: str, text: bytes, compiled: ValueSchema | None) -> None:
        """Add a schema to the cache.

        Args:
            name: the hash of the text.
            text: the text of the schema.
            compiled: the compiled schema; None if it was refused.
        """
        if name in self._kept:
            return
        held = len(text) * _HELD_PER_BYTE + (0 if compiled is None else compiled.held_bytes)
        self._kept[name] = (compiled, held)
        self._bytes += held
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= dropped


def compile_text(text: bytes) -> ValueSchema | None:
    """Compile the schema in a text; return None if it is refused."""
    try:
        return ValueSchema(read_json(text))
    except (SchemaDefect, ValueError):
        return None


def schema_defect(text: bytes) -> SchemaDefect | None:
    """Return why the schema in a text is refused, None if it is accepted."""
    try:
        ValueSchema(read_json(text))
    except SchemaDefect as defect:
        return defect.with_traceback(None)
    return None


def _draft_of(schema: Any) -> type[Validator]:
    if not isinstance(schema, dict):
        return Draft202012Validator
    named = schema.get("$schema", DIALECT)
    draft = _DRAFTS.get(named.rstrip("#")) if isinstance(named, str) else None
    if draft is None:
        raise SchemaDefect("$.$schema", _shown(str(named)), "a draft from 4 to 2020-12")
    return draft


def _pattern_costs(schema: Any) -> dict[str, tuple[int, int]]:
    """Return the compiled size of each pattern, and its cost per byte of text.

    The engine does not report sizes. It only refuses a pattern that exceeds a limit, so increasing
    limits are tried.
    """
    costs: dict[str, tuple[int, int]] = {}
    for text in patterns_of(schema):
        if text not in costs:
            costs[text] = _pattern_cost(text)
        if len(costs) > PATTERNS_MAX:
            raise SchemaDefect("$", "more patterns", f"at most {PATTERNS_MAX} patterns")
    return costs


def _pattern_cost(text: str) -> tuple[int, int]:
    for size, cost in _PATTERN_SIZES:
        options = RegexOptions(size_limit=size, dfa_size_limit=size)
        try:
            Draft202012Validator({"pattern": text}, pattern_options=options, offline=True)
        except ValueError:
            continue
        return size, cost
    expected = "a pattern without look-around and back-references, at most 128 KiB compiled"
    raise SchemaDefect("$", f"the pattern {_shown(text)}", expected)


def _path_text(steps: list[Any]) -> str:
    """Return a path as text such as `$.field[0]`, with bounded length."""
    return _shown("$" + "".join(f"[{step}]" if type(step) is int else f".{step}" for step in steps))


def _breach(error: ValidationError) -> Breach:
    """Return the place of an error, the value there (long text is cut), and the expectation."""
    kind, path = error.kind, _path_text(error.instance_path)
    keyword, value = kind.name, kind.value
    got = value_text(error.instance)
    if keyword == "type":
        expected = " or ".join(_TYPES.get(one, one) for one in value)
    elif keyword == "required":
        return Breach(
            _path_text([*error.instance_path, value]),
            f"the required member {quoted(value)} is missing",
        )
    elif keyword in ("additionalProperties", "unevaluatedProperties"):
        got, expected = f"the member {quoted(value[0])}", "only members that the schema names"
    elif keyword == "enum":
        expected = "one of " + ", ".join(map(value_text, value[:_EXPECTED_VALUES_MAX]))
        expected += " …" if len(value) > _EXPECTED_VALUES_MAX else ""
    else:
        known = _EXPECTED.get(keyword, f"what the schema's {keyword} allows")
        expected = known.format(value_text(value))
    return Breach(path, _shown(f"got {got}, expected {expected}"))


def _shown(text: str) -> str:
    """Return text of another party as one bounded line without control characters."""
    line = " ".join(_CONTROL.sub(" ", text[: 4 * TEXT_CHARS_MAX]).split())
    return line if len(line) <= TEXT_CHARS_MAX else line[: TEXT_CHARS_MAX - 1] + "…"


assert _PATTERN_SIZES[-1][1] <= COST_MAX
