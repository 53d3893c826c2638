"""The public key in a `did:key` DID, which verifies signatures of unregistered agents too.

Pure. Ed25519 alone: multibase `z` (base58btc) over the multicodec prefix 0xed01 and 32 bytes.
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


# Each signed request asks several times, and one takes 25 us.
@lru_cache(maxsize=4_096)
def key_of_did(did: str) -> str | None:
    """Return the Ed25519 public key of a `did:key` DID, base64 of 32 bytes; None for any other."""
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
