"""Says why a text is not JSON, and where: for the one who wrote it.

Independent of the parser that refused it, which mostly does not say both. Slower than a parser, so
for refused texts only; never deeper than the stack, and no number is converted. Pure.
Reference: features.md (Dispatch). RFC 8259.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from core.json_bounds import find_nul_at

# Names of the constants that Python's parser takes, and JSON does not have.
_CONSTANTS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|(?P<name>NaN|-?Infinity)')
_HEX: Final = "[0-9a-fA-F]"
# The escape of half a character, without its other half; an escaped backslash before it is none.
_LONE_SURROGATE: Final = re.compile(
    rf"(?<!\\)(?:\\\\)*+(?P<half>\\u[dD](?:[89abAB]{_HEX}{{2}}(?!\\u[dD][c-fC-F])"
    rf"|(?<!\\u[dD][89abAB]{_HEX}{{2}}\\u[dD])[c-fC-F]{_HEX}{{2}}))"
)


def find_json_defect(text: bytes, said: str) -> str:
    """Return why a text is not JSON, with line and column, counted in characters from 1.

    Args:
        said: the words of the parser that refused it, for what is not found here.
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
    """Return where JSON has a text or key with U+0000, None where it has none."""
    at = find_nul_at(text)
    return None if at is None else f"U+0000 in a text{_place(text[:at].decode(), None)}"


class _NotANumber(Exception):
    """NaN or an infinity."""


def _refuse(_: str) -> Any:
    raise _NotANumber


def _skip(_: str) -> None:
    """Convert no number: it may have a million digits."""


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_int=_skip, parse_float=_skip)


def _place(text: str, at: int | None) -> str:
    before = text[:at]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f" at line {line} column {column}"
