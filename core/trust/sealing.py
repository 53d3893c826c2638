"""Secrets at rest: signing secrets and stored replies are sealed with keys of the deployment.

Pure: the caller provides the nonce. XSalsa20-Poly1305 (PyNaCl `SecretBox`) detects changed bytes.
The first byte is the version of the deployment's key.
"""

from __future__ import annotations

import nacl.exceptions
from nacl.secret import SecretBox

from core.trust.deployment_keys import DeploymentKeys
from core.trust.derived_keys import KeyPurpose, derived_key

NONCE_BYTES = SecretBox.NONCE_SIZE


def seal(secret: str, keys: DeploymentKeys, nonce: bytes, purpose: KeyPurpose) -> bytes:
    """Encrypt a secret with the key in use.

    Args:
        secret: the text to hide.
        nonce: `NONCE_BYTES` random bytes, never used twice.
        purpose: the purpose of the text, which `unseal` must repeat.
    """
    box = SecretBox(derived_key(keys, purpose, keys.version))
    return bytes([keys.version]) + bytes(box.encrypt(secret.encode(), nonce))


def unseal(sealed: bytes, keys: DeploymentKeys, purpose: KeyPurpose) -> str | None:
    """Decrypt a sealed secret; None for a key that is not accepted or a changed byte."""
    version = sealed[0] if sealed else 0
    if version not in keys.versions:
        return None
    try:
        return SecretBox(derived_key(keys, purpose, version)).decrypt(sealed[1:]).decode()
    except nacl.exceptions.CryptoError:
        return None
