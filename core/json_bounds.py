"""Checks the depth, the integers and the texts of JSON values from outside.

Code after these checks may recurse over a value and encode it without further checks.
RFC 8785 section 3.1 (I-JSON).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from operator import is_
from typing import Any, Final

from core.errors import Problem

DEPTH_MAX = 64
# The escape \u0000. An escaped backslash before "u0000" is not part of such an escape.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
# Readers that use doubles round a larger integer, and RFC 8785 libraries refuse it.
INTEGER_MAX = 2**53 - 1
# The most digits of an integer, and the smallest positive integer with more digits.
INTEGER_DIGITS_MAX: Final = 128
INTEGER_END: Final = 10**INTEGER_DIGITS_MAX


def json_problem(value: object) -> Problem | None:
    """Return the first problem of a value that is not JSON or exceeds a bound; None without one."""
    defect = _first_defect(value, DEPTH_MAX)
    if defect is None:
        return None
    path = "".join(reversed(defect.steps)).removeprefix(".")
    return Problem(path, defect.got, defect.expected)


@dataclass(slots=True)
class _Defect:
    """A defect, and the steps of the path to it. The last step comes first.

    The steps are collected on the way back from the defect. Building the path on the way down would
    cost the length of the keys above for every value.
    """

    got: str
    expected: str
    steps: list[str] = field(default_factory=list)


def _first_defect(value: object, depth_max: int) -> _Defect | None:
    kind = type(value)
    if kind is str:
        return None if is_encodable(value) else _no_text()  # type: ignore[arg-type]
    if kind is bool or value is None:
        return None
    if kind is int:
        if -INTEGER_END < value < INTEGER_END:  # type: ignore[operator]
            return None
        return _Defect(
            f"an integer of more than {INTEGER_DIGITS_MAX} digits",
            f"at most {INTEGER_DIGITS_MAX} digits, or a string",
        )
    if kind is float:
        # Only NaN and the infinities are not 0 after `* 0`.
        if value * 0 == 0:  # type: ignore[operator]
            return None
        return _Defect("a number beyond a double", "a finite number")
    if depth_max <= 0:
        return _Defect(f"more than {DEPTH_MAX} levels", f"at most {DEPTH_MAX} levels")
    if kind is dict:
        for key, member in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not is_encodable(key):
                return _no_text(" (a key)")
            if type(member) is str and member.isascii():
                continue
            found = _first_defect(member, depth_max - 1)
            if found is not None:
                found.steps.append(f".{key}")
                return found
        return None
    if kind is list:
        for position, member in enumerate(value):  # type: ignore[arg-type]
            found = _first_defect(member, depth_max - 1)
            if found is not None:
                found.steps.append(f"[{position}]")
                return found
        return None
    return _Defect("a value that JSON does not have", "a JSON value")


def as_whole(value: Any) -> Any:
    """Return a whole double, such as 5000.0 or 1e3, as an integer; any other value unchanged."""
    if type(value) is float and value % 1 == 0 and -INTEGER_MAX <= value <= INTEGER_MAX:
        return int(value)
    return value


def holds_wide_integer(value: object) -> bool:
    """Say whether a JSON value contains an integer of 2^53 or more, which many libraries round.

    Negative integers count by their size.

    Args:
        value: a value of at most `DEPTH_MAX` levels.
    """
    if type(value) is int:
        return not -INTEGER_MAX <= value <= INTEGER_MAX
    if type(value) is dict:
        return any(map(holds_wide_integer, value.values()))
    return type(value) is list and any(map(holds_wide_integer, value))


def is_deeper_than(value: object, depth_max: int) -> bool:
    """Say whether a JSON value is nested deeper than `depth_max`; a text or number has depth 0.

    Each level is handled by a few calls of C functions, whatever its number of values. A reply of
    1 MiB can have half a million values, and the check blocks the owner's event loop.
    """
    level = [value]
    for _ in range(depth_max):
        kinds = list(map(type, level))
        lists, dicts = _of_kind(list, kinds, level), _of_kind(dict, kinds, level)
        if not lists and not dicts:
            return False
        values = chain.from_iterable(map(dict.values, dicts))
        level = list(chain(chain.from_iterable(lists), values))
    return not {list, dict}.isdisjoint(map(type, level))


def _of_kind(kind: type, kinds: list[type], values: list[Any]) -> list[Any]:
    count = kinds.count(kind)
    if count in (0, len(values)):
        return values if count else []
    return list(compress(values, map(partial(is_, kind), kinds)))


def find_nul_at(text: bytes) -> int | None:
    """Return the position of the first escape `\\u0000` in a JSON text, or None."""
    found = _NUL.search(text) if b"\\u0000" in text else None
    return None if found is None else found.end() - len(b"\\u0000")


def is_encodable(text: str) -> bool:
    """Say whether a text has a UTF-8 form, that is, no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_text(*steps: str) -> _Defect:
    return _Defect("text without a UTF-8 form", "Unicode text", list(steps))
