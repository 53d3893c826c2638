"""Keys derived from the deployment's keys: one per purpose and version, by HKDF-SHA256.

A leaked derived key reveals neither the other purposes' keys nor the deployment's. The key's
version is stored with each use, so that it can be read after a rotation. Pure. RFC 5869.
Decision permissions-and-keys.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from core.trust.deployment_keys import KEY_BYTES, DeploymentKeys


class KeyPurpose(StrEnum):
    """The purpose of a derived key. Closed: each purpose has a key of its own."""

    RESULT_ID = "result-id"
    HEARTBEAT_TOKEN = "heartbeat-token"
    SIGNING_SECRET = "signing-secret"
    STORED_REPLY = "stored-reply"
    SIGNING_KEY = "signing-key"
    PEER_TOKEN = "peer-token"
    PUBLISH_WEBHOOK = "publish-webhook"


def derived_key(keys: DeploymentKeys, purpose: KeyPurpose, version: int) -> bytes:
    """Return the key of a purpose, 32 bytes.

    Args:
        version: one of `keys.versions`.
    """
    key = keys.key(version)
    assert key is not None, (version, keys)
    return _derived(key, purpose, version)


def derived_keys(keys: DeploymentKeys, purpose: KeyPurpose) -> tuple[bytes, ...]:
    """Return the keys of a purpose by every key that is accepted, by the one in use first."""
    return tuple(derived_key(keys, purpose, version) for version in keys.versions)


@lru_cache(maxsize=64)
def _derived(key: bytes, purpose: KeyPurpose, version: int) -> bytes:
    info = f"callboard/{purpose}/v{version}".encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key)
