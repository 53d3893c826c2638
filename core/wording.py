"""Parts of error messages: names of JSON types, bounded texts of values, suggested names.

Messages name the types of JSON, never those of Python. Decision requests-json-and-client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

GOT_CHARS_MAX: Final = 100
VALUE_CHARS_MAX: Final = 40
NAMES_MAX: Final = 10
# The number of known names that are compared with an unknown name. There are fewer settings. 50
# comparisons take one to two milliseconds, or eight for long names.
COMPARED_MAX: Final = 200
_COMPARED_CHARS_MAX: Final = 64
_MEANT_CHARS_MAX: Final = 128
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_NOT_LETTERS: Final = re.compile(r"[\W_]+")


def kind_of(value: object) -> str:
    """Return the JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list | tuple) else "an object"


def got_of(value: object) -> str:
    """Return the `got` of a message: the value if it is a text or number, otherwise its kind."""
    if isinstance(value, str):
        return value[:GOT_CHARS_MAX]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)[:GOT_CHARS_MAX]
    return kind_of(value)


def value_text(value: Any, chars_max: int = VALUE_CHARS_MAX) -> str:
    """Return a bounded text of a value: a scalar as in JSON, otherwise its kind and size."""
    if isinstance(value, dict | list):
        return f"{kind_of(value)} with {counted(len(value), 'member')}"
    if isinstance(value, str):
        return quoted(value, chars_max)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)[:chars_max]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def quoted(text: str, chars_max: int = VALUE_CHARS_MAX) -> str:
    """Return foreign text in quotes, cut to a length, without control characters and surrogates."""
    line = _CONTROL.sub(" ", text[: chars_max + 1])
    return f"'{line}'" if len(text) <= chars_max else f"'{line[: chars_max - 1]}…'"


def names_text(names: Iterable[str], count: int) -> str:
    """Return the first `NAMES_MAX` names in quotes, and the number of further names.

    Args:
        count: the number of all names.
    """
    listed = ", ".join(map(quoted, islice(names, NAMES_MAX)))
    return f"{listed} and {count - NAMES_MAX} more" if count > NAMES_MAX else listed


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the most similar known name, or "".

    At most `COMPARED_MAX` names are compared. A name with the same letters and digits (apart from
    case and separators) wins over similar names.
    """
    compared = list(islice(known, COMPARED_MAX))
    name = name[:_COMPARED_CHARS_MAX]
    letters = _letters(name)
    nearest = next((one for one in compared if _letters(one) == letters), None)
    if nearest is None:
        nearest = next(iter(get_close_matches(name, compared, 1)), None)
    return "" if nearest is None else f"; did you mean {quoted(nearest, _MEANT_CHARS_MAX)}?"


def _letters(name: str) -> str:
    return _NOT_LETTERS.sub("", name).lower()
