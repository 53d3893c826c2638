"""Canonical JSON (RFC 8785, JCS) and the hash over it.

Two encoders with one result: a fast one for values whose form does not depend on the encoder
(no floats, integers below 2^53, ASCII keys), and `jcs.py` for all others. Spec:
Protocol-layer records (`sha256:` prefixed hashes); contract.md (Encodings); money.md section 5.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import orjson

from core.jcs import jcs

_INTEGER_BOUND: Final = 2**53


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 form of a JSON value.

    Raises: ValueError for values that JCS cannot express: integers from 2^53, NaN and infinities,
    lone surrogates, non-text keys, other types.
    """
    try:
        if _is_plain(value):
            return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        return jcs(value)
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
    """Tell whether the fast encoder's output is the canonical form of the value.

    Exact types only: orjson also writes dataclasses, enums and dates, which are not JSON values.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return bool(-_INTEGER_BOUND < value < _INTEGER_BOUND)
    if kind is dict:
        for key, member in value.items():
            # Keys sort by UTF-16 units in JCS and by UTF-8 bytes here: equal for ASCII.
            if type(key) is not str or not key.isascii() or not _is_plain(member):
                return False
        return True
    if kind is list:
        return all(map(_is_plain, value))
    return False
