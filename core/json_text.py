"""JSON texts are read and written here: one parser, one writer, and every digit of an integer.

A number without fraction and exponent is an integer of up to `INTEGER_DIGITS_MAX` digits; any other
is a double. What comes from outside is read by `read_foreign_json`, which bounds integers; texts of
our own are read by `read_json`. Decision requests-json-and-client.
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

# Raise UnicodeEncodeError for a lone surrogate, TypeError for what has no JSON. Members are sorted
# by the bytes of their names.
write_json: Final = msgspec.json.Encoder().encode
write_sorted_json: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder().decode

_NOT_FINITE: Final = "a number is not finite"
# What a refusal of a doubled member says: what was got, and what was expected.
DOUBLED: Final = ("the member twice", "each member of an object once")
# Three characters of a run of more than 128 digits stand at multiples of 43.
_STRIDE: Final = 43
_DIGITS_AS_0: Final = bytes(b"0"[0] if byte in b"0123456789" else b" "[0] for byte in range(256))
_LONG_ZEROS: Final = b"0" * (INTEGER_DIGITS_MAX + 1)
_TOO_LONG: Final = re.compile(rb"(?<![0-9])([0-9]{%d})[0-9]*" % (INTEGER_DIGITS_MAX + 1))


class NotJson(ValueError):
    """A text is not JSON that is read here; the message says why, and where."""


class UnreadNumber(NotJson):
    """An integer of the text has too many digits, or a number is beyond a double; `problem`: where.

    `value`: the text's value with that integer cut short, None for a number beyond a double. JSON
    has no bound of digits, so the writer of an integer may not know of it.
    """

    def __init__(self, problem: Problem, value: Any = None) -> None:
        super().__init__(f"{problem.path}: {problem.got}, expected {problem.expected}")
        self.problem = problem
        self.value = value


def read_json(text: bytes | str) -> Any:
    """Return the value of a JSON text; of members with one name the last one counts.

    Raises:
        NotJson: it has none, holds a lone surrogate or a number beyond a double, or is nested too
            deeply.
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
    """Return the value of a JSON text of someone else's.

    Raises:
        UnreadNumber: an integer has too many digits, or a number is beyond a double.
        NotJson: as of `read_json`.
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
        return json_problem(json.loads(text))  # which reads it as infinity
    except (ValueError, RecursionError):  # the text is wrong behind it
        return None


def may_double(text: bytes, value: Any) -> bool:
    """Say whether an object of a text may have two members of one name.

    Args:
        value: what the text was read as; parts of it may still be `Raw`.
    """
    # Each member has a colon. Those in texts are in both, unless they were written as escapes.
    has_escapes = b"\\u003a" in text or b"\\u003A" in text
    return has_escapes or text.count(b":") != write_json(value).count(b":")


def doubled_member(text: bytes) -> str | None:
    """Return the path of a member that stands twice in one object of a JSON text, or None.

    It takes as long as Python's own parser; `may_double` is quick, and nearly always enough.
    """
    try:
        found = json_problem(json.loads(text, object_pairs_hook=_with_mark))
    except RecursionError:
        return "$"
    return None if found is None else found.path or "$"


def _with_mark(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members; of those with a doubled name, that name and no JSON value."""
    value = dict(members)
    if len(value) == len(members):
        return value
    counts = Counter(name for name, _ in members)
    return {next(name for name in counts if counts[name] > 1): object}


def _has_long_digits(text: bytes) -> bool:
    """Say whether a text has more digits in a row than an integer may have."""
    # Every 43rd byte rules out nearly all texts.
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
        except UnicodeDecodeError as whole:  # msgspec's own counts from the start of a text
            error = whole
    return f"invalid UTF-8 (byte {error.start})"
