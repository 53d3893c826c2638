"""Canonical JSON (RFC 8785, JCS) and the hash over it. Unlike RFC 8785, integers keep all digits.

msgspec, which is fast, encodes nearly all values. Its texts of some doubles are then replaced.
`jcs.py` encodes values with keys that msgspec sorts differently, and raises for values without a
canonical form. Both encoders give the same bytes.
Reference: money.md (Audit chain). Decision requests-json-and-client.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from core.jcs import jcs, number_text
from core.json_bounds import INTEGER_END
from core.json_text import write_sorted_json

# JCS sorts keys by UTF-16 units, msgspec by UTF-8 bytes. The two orders differ only between these
# characters and characters beyond U+FFFF.
_SORTED_DIFFERENTLY: Final = re.compile("[\ue000-\uffff]")
# msgspec writes these doubles differently: whole numbers, minus zero, numbers from 10^16 to 10^21
# and from 10^-6 to 10^-5. From 10^21 on, msgspec only omits the plus of the exponent.
_EMPTY_FRACTION: Final = re.compile(rb"\.0(?![0-9])")
_MINUS_ZERO: Final = re.compile(rb"(?<!e)-0(?![.0-9])")
# The pattern does not include the sign. The lookbehind prevents a search from the middle of each
# number.
_OTHER_EXPONENT: Final = re.compile(rb"(?<![0-9.])[0-9]++(?:\.[0-9]++)?e(?:1[6-9]|20|-6)(?![0-9])")
_UNSIGNED_EXPONENT: Final = re.compile(rb"(?<=[0-9])e(?=[0-9])")
_TEXT: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")')
# How a value is encoded: by msgspec alone, by msgspec with replaced doubles, or by `jcs`.
_SAME, _ODD, _OTHER = range(3)


def canonical(value: Any) -> bytes:
    """Return the canonical form of a JSON value.

    Raises: ValueError for values without a canonical form: integers of more than 128 digits, NaN,
    infinities, lone surrogates, keys that are no texts, and other types.
    """
    try:
        form = _form_of(value)
        if form == _OTHER:
            return jcs(value)
        text = write_sorted_json(value)
        return _with_canonical_numbers(text) if form == _ODD else text
    except ValueError as error:
        raise ValueError(f"not expressible as canonical JSON: {error}") from error
    except RecursionError:
        raise ValueError("not expressible as canonical JSON: nested too deeply") from None


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """Return the canonical form of an object, from the canonical forms of its members.

    Raises: ValueError for a name that has no canonical form.
    """
    names = sorted(members, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    return b"{" + b",".join(canonical(name) + b":" + members[name] for name in names) + b"}"


def hash_bytes(body: bytes) -> str:
    """Return `sha256:` + lowercase hex of the SHA-256 of these bytes."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def hash_text(value: Any) -> str:
    """Return `sha256:` + lowercase hex over the canonical form of a JSON value.

    Raises: ValueError as `canonical` does.
    """
    return hash_bytes(canonical(value))


def _form_of(value: Any) -> int:
    """Return how a value must be encoded: `_SAME`, `_ODD` or `_OTHER`.

    Types are compared exactly, because msgspec also writes dataclasses, enums and dates, which are
    not JSON values.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return _SAME
    if kind is int:
        return _SAME if -INTEGER_END < value < INTEGER_END else _OTHER
    if kind is float:
        if value % 1 == 0 or -1e-5 < value < 1e-5:
            return _ODD
        return _SAME if value * 0 == 0 else _OTHER  # NaN, infinity
    if kind is dict:
        form = _SAME
        for key, member in value.items():
            if type(key) is not str or (not key.isascii() and _SORTED_DIFFERENTLY.search(key)):
                return _OTHER
            if (found := _form_of(member)) > form:
                form = found
        return form
    return max(map(_form_of, value), default=_SAME) if kind is list else _OTHER


def _with_canonical_numbers(text: bytes) -> bytes:
    """Return msgspec's text with all numbers in canonical form.

    The parts between the strings are joined and replaced at once, because a reply can have half a
    million numbers.
    """
    parts = _TEXT.split(text) if b'"' in text else [text]
    between = _EMPTY_FRACTION.sub(b"", b'"'.join(parts[::2]))
    between = _MINUS_ZERO.sub(b"0", between)
    if b"e" in between:
        between = _OTHER_EXPONENT.sub(_canonical_number, between)
        between = _UNSIGNED_EXPONENT.sub(b"e+", between)
    parts[::2] = between.split(b'"')
    return b"".join(parts)


def _canonical_number(match: re.Match[bytes]) -> bytes:
    return number_text(float(match[0])).encode()
