"""Secrets at rest: signing secrets are stored sealed with the deployment's key.

Pure: the nonce is the caller's. XSalsa20-Poly1305 (PyNaCl `SecretBox`): a changed byte is noticed.
contract.md section 3 (signingSecret, stored encrypted).
"""

from __future__ import annotations

import nacl.exceptions
from nacl.secret import SecretBox

NONCE_BYTES = SecretBox.NONCE_SIZE


def seal(secret: str, key: bytes, nonce: bytes) -> bytes:
    """Encrypt a secret.

    Args:
        secret: the text to hide.
        key: 32 bytes, the deployment's.
        nonce: `NONCE_BYTES` random bytes, never used twice.
    """
    return bytes(SecretBox(key).encrypt(secret.encode(), nonce))


def unseal(sealed: bytes, key: bytes) -> str | None:
    """Decrypt a sealed secret; None when the key is another one or a byte was changed."""
    try:
        return SecretBox(key).decrypt(sealed).decode()
    except nacl.exceptions.CryptoError:
        return None
