"""Reads and writes JSON texts. Integers keep all their digits.

A number without fraction and exponent is an integer of up to `INTEGER_DIGITS_MAX` digits. Any other
number is a double. `read_foreign_json` reads texts from outside and bounds integers. `read_json`
reads texts that the service has written. Decision requests-json-and-client.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final

import msgspec
from msgspec import Raw as Raw

from core.errors import Problem
from core.json_bounds import INTEGER_DIGITS_MAX, json_problem

# Both encoders raise UnicodeEncodeError for a lone surrogate, and TypeError for a value that JSON
# does not have. `write_sorted_json` sorts members by the bytes of their names.
write_json: Final = msgspec.json.Encoder().encode
write_sorted_json: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder().decode

_NOT_FINITE: Final = "a number is not finite"
# The problem of a duplicate member: the texts for `got` and `expected`.
DOUBLED: Final = ("the member twice", "each member of an object once")
# In any 129 consecutive characters, three are at multiples of 43.
_STRIDE: Final = 43
_DIGITS_AS_0: Final = bytes(b"0"[0] if byte in b"0123456789" else b" "[0] for byte in range(256))
_LONG_ZEROS: Final = b"0" * (INTEGER_DIGITS_MAX + 1)
_TOO_LONG: Final = re.compile(rb"(?<![0-9])([0-9]{%d})[0-9]*" % (INTEGER_DIGITS_MAX + 1))


class NotJson(ValueError):
    """A text is not valid JSON, or is refused here. The message says why and where."""


class UnreadNumber(NotJson):
    """An integer of the text has too many digits, or a number is too large for a double.

    `problem`: the path of the number. `value`: the text's value with the integer cut to fewer
    digits; None for a number that is too large for a double. JSON itself does not limit the digits
    of a number.
    """

    def __init__(self, problem: Problem, value: Any = None) -> None:
        super().__init__(f"{problem.path}: {problem.got}, expected {problem.expected}")
        self.problem = problem
        self.value = value


def read_json(text: bytes | str) -> Any:
    """Return the value of a JSON text. If an object has a member twice, the last one counts.

    Raises:
        NotJson: the text is not JSON, has a lone surrogate or a number that is too large for a
            double, or is nested too deeply.
    """
    try:
        return _decode(text)
    except UnicodeDecodeError as error:
        raise NotJson(_encoding_problem(text, error)) from None
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise NotJson(_problem(str(error), len(text))) from None


def read_foreign_json(text: bytes) -> Any:
    """Return the value of a JSON text from outside.

    Raises:
        UnreadNumber: an integer has too many digits, or a number is too large for a double.
        NotJson: as in `read_json`.
    """
    found = value = None
    try:
        if _has_long_digits(text):
            value = read_json(_TOO_LONG.sub(rb"\1", text))
            found = json_problem(value)
        if found is None:
            return read_json(text)
    except NotJson as error:
        found = _infinite_number(text) if str(error) == _NOT_FINITE else None
        if found is None:
            raise
    raise UnreadNumber(found, value)


def _infinite_number(text: bytes) -> Problem | None:
    try:
        return json_problem(json.loads(text))  # `json` reads such a number as infinity
    except (ValueError, RecursionError):  # the text has another defect after the number
        return None


def may_have_duplicates(text: bytes, value: Any) -> bool:
    """Say whether an object of a text may have two members with the same name.

    Args:
        value: the value of the text; parts of it may still be `Raw`.
    """
    # Each member has a colon, so a dropped duplicate leaves fewer colons when the value is written
    # again. Colons inside strings are in both texts, unless they were escaped.
    has_escapes = b"\\u003a" in text or b"\\u003A" in text
    return has_escapes or text.count(b":") != write_json(value).count(b":")


def duplicate_member(text: bytes) -> str | None:
    """Return the path of a duplicate member of an object of a JSON text; None if there is none.

    This takes as long as Python's own parser. Call the fast `may_have_duplicates` first, which
    nearly always excludes duplicates.
    """
    try:
        found = json_problem(json.loads(text, object_pairs_hook=_with_mark))
    except RecursionError:
        return "$"
    return None if found is None else found.path or "$"


def _with_mark(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; if a name is duplicate, only this name with an invalid value."""
    value = dict(members)
    if len(value) == len(members):
        return value
    counts = Counter(name for name, _ in members)
    return {next(name for name in counts if counts[name] > 1): object}


def _has_long_digits(text: bytes) -> bool:
    """Say whether a text has more consecutive digits than an integer may have."""
    # Looking at every 43rd byte excludes nearly all texts.
    return b"000" in text[::_STRIDE].translate(_DIGITS_AS_0) and _LONG_ZEROS in text.translate(
        _DIGITS_AS_0
    )


def _problem(message: str, size: int) -> str:
    if message.startswith("Number out of range"):
        return _NOT_FINITE
    if message == "Input data was truncated":
        return f"the text ends too early (byte {size})"
    return message.removeprefix("JSON is malformed: ")


def _encoding_problem(text: bytes | str, error: UnicodeDecodeError) -> str:
    if isinstance(text, bytes):
        try:
            text.decode()
        except UnicodeDecodeError as whole:  # msgspec counts from the start of the string
            error = whole
    return f"invalid UTF-8 (byte {error.start})"
