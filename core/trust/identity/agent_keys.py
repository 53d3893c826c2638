"""The keys of an agent's DID: bounds, ids, and the message that proves a rotation.

A DID has one current key. Its previous keys are in the key history, with the time in which each key
was valid. A previous key is never accepted as a new key again, so no proof can be replayed. Pure;
this file verifies no signatures. Reference: features.md (Key rotation). Decision agent-identity.
"""

from __future__ import annotations

import base64
from typing import Final

from nacl.bindings import crypto_core_ed25519_is_valid_point

from core.trust.signatures import key_bytes

# Up to this number of keys, a rotation needs no minimum age of the current key. This bounds the
# size of the key history.
KEYS_MAX: Final = 1_000
# For further keys, the current key can sign its replacement only after it was current for this
# time.
KEY_AGE_MS_MIN: Final = 24 * 3_600_000


def rotation_message(did: str, new_key: str) -> bytes:
    """Return the message that the current key signs for its replacement.

    Args:
        new_key: the text of the new key, exactly as in the request.
    """
    return f"rotate:{did}:{new_key}".encode()


def key_name(did: str, number: int) -> str:
    """Return the id of a key of a DID.

    Args:
        number: the place of the key in the history, 1 for the first key.
    """
    return f"{did}#key-{number}"


def canonical_key(text: str) -> str:
    """Return an Ed25519 public key as base64 of its 32 bytes, without a prefix.

    Raises:
        ValueError: the text is not base64 of 32 bytes, or no valid signature by this key can exist.
    """
    raw = key_bytes(text)
    if not crypto_core_ed25519_is_valid_point(raw):
        raise ValueError("no point of the curve's main subgroup")
    return base64.b64encode(raw).decode()
