"""Ed25519 signatures of outsiders: of an agent over its card, of an agent over a result.

Pure; it judges a signature against a key and must not know whose key it is or where it came from.
Spec: Authentication 3; contract.md head (Encodings) and section 6 (Signed results).
"""

from __future__ import annotations

import base64

import nacl.exceptions
from nacl.signing import VerifyKey

_PREFIX = "ed25519:"


def is_signed_by(public_key: str, message: bytes, signature: object) -> bool:
    """Tell whether a signature is this key's over these bytes; anything malformed is not.

    Args:
        public_key: base64 of 32 bytes, with `ed25519:` before it or not.
        message: what was signed.
        signature: as it came: base64 of 64 bytes, with `ed25519:` before it or not.
    """
    if not isinstance(signature, str):
        return False
    try:
        raw = base64.b64decode(signature.removeprefix(_PREFIX), validate=True)
        VerifyKey(key_bytes(public_key)).verify(message, raw)
    except (ValueError, nacl.exceptions.CryptoError):
        return False
    return True


def key_bytes(public_key: str) -> bytes:
    """Return the 32 bytes of a public key.

    Raises:
        ValueError: it is not base64 of 32 bytes.
    """
    raw = base64.b64decode(public_key.removeprefix(_PREFIX), validate=True)
    if len(raw) != 32:
        raise ValueError(f"got {len(raw)} bytes, expected 32")
    return raw


def result_message(node: str, workflow_id: str, result_hash: str) -> bytes:
    """Return what an agent signs of a result (contract.md section 6, Signed results).

    Args:
        result_hash: `sha256:` + hex over the result's JCS form.
    """
    return f"{node}:{workflow_id}:{result_hash}".encode()
