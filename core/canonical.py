"""Canonical JSON (RFC 8785, JCS) and the hash over it.

Two encoders with one result: orjson, whose forms of some numbers are replaced, for nearly all
values, and `jcs.py` for those with keys that the two sort differently, and for what is refused.
Spec: Protocol-layer records (`sha256:` prefixed hashes); contract.md (Encodings); money.md
section 5.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import orjson

from core.jcs import jcs, number_text

_INTEGER_BOUND: Final = 2**53
# JCS sorts keys by UTF-16 units and orjson by UTF-8 bytes: the orders differ only between these
# characters and those beyond U+FFFF.
_SORTED_DIFFERENTLY: Final = re.compile("[\ue000-\uffff]")
# The numbers whose forms differ: those without a fraction, minus zero, those from 10^16 to 10^21,
# and those from 10^-6 to 10^-5.
_EMPTY_FRACTION: Final = re.compile(rb"\.0(?![0-9])")
_MINUS_ZERO: Final = re.compile(rb"(?<!e)-0(?![.0-9])")
# Without their signs. Each number is tried once: the lookbehind keeps the search from its middle.
_OTHER_EXPONENT: Final = re.compile(
    rb"(?<![0-9.])[0-9]++(?:\.[0-9]++)?e(?:\+(?:1[6-9]|20)|-6)(?![0-9])"
)
_TEXT: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")')


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 form of a JSON value.

    Raises: ValueError for values that JCS cannot express: integers from 2^53, NaN and infinities,
    lone surrogates, non-text keys, other types.
    """
    try:
        if not _is_plain(value):
            return jcs(value)
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        # Such bytes may also stand in texts.
        is_odd = b".0" in text or b"e+" in text or b"e-6" in text
        return _with_canonical_numbers(text) if is_odd else text
    except (ValueError, orjson.JSONEncodeError) as error:
        raise ValueError(f"not expressible as canonical JSON: {error}") from error
    except RecursionError:
        raise ValueError("not expressible as canonical JSON: nested too deeply") from None


def hash_bytes(body: bytes) -> str:
    """Return `sha256:` + lowercase hex of the SHA-256 of these bytes."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def hash_text(value: Any) -> str:
    """Return `sha256:` + lowercase hex over the canonical form of a JSON value.

    Raises: ValueError as `canonical` does.
    """
    return hash_bytes(canonical(value))


def _is_plain(value: Any) -> bool:
    """Tell whether orjson's text of the value is its canonical form, but for some numbers.

    Exact types only: orjson also writes dataclasses, enums and dates, which are not JSON values.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return bool(-_INTEGER_BOUND < value < _INTEGER_BOUND)
    if kind is float:
        return bool(value * 0 == 0)  # finite
    if kind is dict:
        for key, member in value.items():
            if type(key) is not str or not _is_plain(member):
                return False
            if not key.isascii() and _SORTED_DIFFERENTLY.search(key):
                return False
        return True
    if kind is list:
        return all(map(_is_plain, value))
    return False


def _with_canonical_numbers(text: bytes) -> bytes:
    """Return orjson's text with its numbers in their canonical forms.

    What is between the texts is treated as one, since a reply can hold half a million numbers.
    """
    parts = _TEXT.split(text) if b'"' in text else [text]
    between = _EMPTY_FRACTION.sub(b"", b'"'.join(parts[::2]))
    between = _MINUS_ZERO.sub(b"0", between)
    if b"e" in between:
        between = _OTHER_EXPONENT.sub(_canonical_number, between)
    parts[::2] = between.split(b'"')
    return b"".join(parts)


def _canonical_number(match: re.Match[bytes]) -> bytes:
    return number_text(float(match[0])).encode()
