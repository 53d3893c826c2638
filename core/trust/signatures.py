"""Verifies Ed25519 signatures over cards, results and requests.

Pure. This file must not know to whom a key belongs or where it comes from.
Reference: features.md (Dispatch signatures).
"""

from __future__ import annotations

import base64

import nacl.exceptions
from nacl.signing import VerifyKey

_PREFIX = "ed25519:"


def is_signed_by(public_key: str, message: bytes, signature: object) -> bool:
    """Say whether a signature over a message was made with this key; False for malformed input.

    Args:
        public_key: base64 of 32 bytes, with or without the prefix `ed25519:`.
        message: the signed bytes.
        signature: base64 of 64 bytes, with or without the prefix `ed25519:`.
    """
    if not isinstance(signature, str):
        return False
    try:
        raw = base64.b64decode(signature.removeprefix(_PREFIX), validate=True)
        key = key_bytes(public_key)
    except ValueError:
        return False
    return is_signed_by_key(key, message, raw)


def is_signed_by_key(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether an Ed25519 signature over a message was made with this key.

    Args:
        public_key: 32 bytes.
        signature: 64 bytes; any other length is refused.
    """
    try:
        VerifyKey(public_key).verify(message, signature)
    except (ValueError, nacl.exceptions.CryptoError):
        return False
    return True


def signature_text(signature: str) -> str:
    """Return a valid signature as it is stored: `ed25519:` and base64."""
    return _PREFIX + signature.removeprefix(_PREFIX)


def key_bytes(public_key: str) -> bytes:
    """Return the 32 bytes of a public key.

    Raises:
        ValueError: the text is not base64 of 32 bytes.
    """
    raw = base64.b64decode(public_key.removeprefix(_PREFIX), validate=True)
    if len(raw) != 32:
        raise ValueError(f"got {len(raw)} bytes, expected 32")
    return raw


def result_message(node: str, workflow_id: str, result_hash: str) -> bytes:
    """Return the message that an agent signs for a result (Signed results).

    Args:
        result_hash: `sha256:` + hex over the JCS form of the result.
    """
    return f"{node}:{workflow_id}:{result_hash}".encode()
