"""Secrets at rest: signing secrets and stored replies are sealed with keys of the deployment.

Pure: the caller provides the nonce. XSalsa20-Poly1305 (PyNaCl `SecretBox`) detects changed bytes.
The first byte is the version of the key.
contract.md section 3 (signingSecret, stored encrypted).
"""

from __future__ import annotations

import nacl.exceptions
from nacl.secret import SecretBox

from core.trust.derived_keys import KEY_VERSION, KeyPurpose, derived_key

NONCE_BYTES = SecretBox.NONCE_SIZE


def seal(secret: str, key: bytes, nonce: bytes, purpose: KeyPurpose) -> bytes:
    """Encrypt a secret.

    Args:
        secret: the text to hide.
        key: 32 bytes, the deployment's.
        nonce: `NONCE_BYTES` random bytes, never used twice.
        purpose: the purpose of the text, which `unseal` must repeat.
    """
    box = SecretBox(derived_key(key, purpose, KEY_VERSION))
    return bytes([KEY_VERSION]) + bytes(box.encrypt(secret.encode(), nonce))


def unseal(sealed: bytes, key: bytes, purpose: KeyPurpose) -> str | None:
    """Decrypt a sealed secret; None for another key or a changed byte."""
    version = sealed[0] if sealed else 0
    if not 1 <= version <= KEY_VERSION:
        return None
    try:
        return SecretBox(derived_key(key, purpose, version)).decrypt(sealed[1:]).decode()
    except nacl.exceptions.CryptoError:
        return None
