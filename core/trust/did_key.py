"""Converts between an Ed25519 public key and its `did:key` DID.

A `did:key` DID contains its key, so signatures can be verified even if the DID is not registered.
Pure. Only Ed25519 is supported: multibase `z` (base58btc) over the multicodec prefix 0xed01 and the
32 bytes of the key.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Final

PREFIX: Final = "did:key:z"
_DIGITS: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519: Final = b"\xed\x01"
_KEY_BYTES: Final = 32
# 34 bytes are 46 to 48 digits; the bound keeps the arithmetic small.
_CHARS_MAX: Final = 48


# Cached, because each signed request needs the key several times and a conversion takes 25 us.
@lru_cache(maxsize=4_096)
def key_of_did(did: str) -> str | None:
    """Return the Ed25519 public key of a `did:key` DID in base64; None for any other text."""
    digits = did.removeprefix(PREFIX)
    if digits == did or not 0 < len(digits) <= _CHARS_MAX:
        return None
    number = 0
    for digit in digits:
        value = _DIGITS.find(digit)
        if value < 0:
            return None
        number = number * len(_DIGITS) + value
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    if len(raw) != len(_ED25519) + _KEY_BYTES or not raw.startswith(_ED25519):
        return None
    return base64.b64encode(raw.removeprefix(_ED25519)).decode()


def did_of_key(public_key: bytes) -> str:
    """Return the `did:key` DID of an Ed25519 public key.

    Args:
        public_key: 32 bytes.
    """
    # The prefix's first byte is not zero, so there are no leading zeros to keep.
    number = int.from_bytes(_ED25519 + public_key, "big")
    digits = ""
    while number:
        number, place = divmod(number, len(_DIGITS))
        digits = _DIGITS[place] + digits
    return PREFIX + digits
