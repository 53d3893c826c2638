"""Explains to the author of a text why it is not JSON, and at which place.

The parser that refused the text usually does not report both the cause and the place. This analysis
is slower than a parser, so it is used only for refused texts. Very deep nesting does not overflow
the stack, and long numbers are not converted. Pure.
Reference: features.md (Dispatch). RFC 8259.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from core.json_bounds import find_nul_at

# Constants that Python's parser accepts and JSON does not have.
_CONSTANTS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|(?P<name>NaN|-?Infinity)')
_HEX: Final = "[0-9a-fA-F]"
# The escape of one half of a surrogate pair without the other half. A preceding `\\` is an escaped
# backslash and does not belong to the escape.
_LONE_SURROGATE: Final = re.compile(
    rf"(?<!\\)(?:\\\\)*+(?P<half>\\u[dD](?:[89abAB]{_HEX}{{2}}(?!\\u[dD][c-fC-F])"
    rf"|(?<!\\u[dD][89abAB]{_HEX}{{2}}\\u[dD])[c-fC-F]{_HEX}{{2}}))"
)


def find_json_defect(text: bytes, said: str) -> str:
    """Return why a text is not JSON, with line and column; columns are characters, from 1.

    Args:
        text: the refused text.
        said: the message of the parser that refused it. It is used if the reason is not found.
    """
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        before = text[: error.start].decode()
        return f"not JSON: not UTF-8, byte 0x{text[error.start]:02x}{_place(before, len(before))}"
    if not decoded.strip(" \t\r\n"):
        return "not JSON: empty"
    try:
        _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        reason = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        return f"not JSON: {reason}{_place(decoded, error.pos)}"
    except RecursionError:
        return "not JSON: nested too deeply"
    except _NotANumber:
        found = next(one for one in _CONSTANTS.finditer(decoded) if one["name"])
        return f"not JSON: {found['name']} is no value{_place(decoded, found.start('name'))}"
    lone = _LONE_SURROGATE.search(decoded)
    if lone is not None:
        return f"not JSON: half a surrogate pair{_place(decoded, lone.start('half'))}"
    return f"not JSON: {said}"


def find_nul(text: bytes) -> str | None:
    """Return the place of the first U+0000 in the strings and keys of JSON, None without one."""
    at = find_nul_at(text)
    return None if at is None else f"U+0000 in a text{_place(text[:at].decode(), None)}"


class _NotANumber(Exception):
    """The text has a constant that JSON does not have: NaN or an infinity."""


def _refuse(_: str) -> Any:
    raise _NotANumber


def _skip(_: str) -> None:
    """Return None instead of a number, because a number may have a million digits."""


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_skip, parse_float=_skip)


def _place(text: str, at: int | None) -> str:
    before = text[:at]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f" at line {line} column {column}"
