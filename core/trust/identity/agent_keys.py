"""The keys of an agent's DID: which of them is valid when, and what proves a change.

A DID has one current key; the keys before it stand in its history, each with the time in which it
was valid, and are never accepted again: so no proof can be replayed. Pure; verifies no signature by
itself. Reference: features.md (Key rotation). Decision agent-identity.
"""

from __future__ import annotations

import base64
from typing import Final

from nacl.bindings import crypto_core_ed25519_is_valid_point

from core.trust.signatures import key_bytes

# Keys that a DID has as fast as it likes, the current one included: a history that can be stored.
KEYS_MAX: Final = 1_000
# From then on a key is replaced by its own word when it has been the current one for so long.
KEY_AGE_MS_MIN: Final = 24 * 3_600_000


def rotation_message(did: str, new_key: str) -> bytes:
    """Return what the current key signs to be replaced.

    Args:
        new_key: the text of the new key, exactly as the request holds it.
    """
    return f"rotate:{did}:{new_key}".encode()


def key_name(did: str, number: int) -> str:
    """Return the id of a key of a DID: its place in the history, 1 for the first."""
    return f"{did}#key-{number}"


def canonical_key(text: str) -> str:
    """Return an Ed25519 public key as base64 of its 32 bytes, without a prefix.

    Raises:
        ValueError: it is not base64 of 32 bytes, or no signature could be of this key.
    """
    raw = key_bytes(text)
    if not crypto_core_ed25519_is_valid_point(raw):
        raise ValueError("no point of the curve's main subgroup")
    return base64.b64encode(raw).decode()
