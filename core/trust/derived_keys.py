"""Keys derived from the deployment's one key: one per purpose and version, by HKDF-SHA256.

A leaked derived key reveals neither the other purposes' keys nor the deployment's. The key's
version is stored with each use, so that later versions can still read it. Pure. RFC 5869.
Decision 0099.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES: Final = 32
# The version of new derivations; all versions from 1 on can be read.
KEY_VERSION: Final = 1


class KeyPurpose(StrEnum):
    """The purpose of a derived key. Closed: each purpose has a key of its own."""

    RESULT_ID = "result-id"
    HEARTBEAT_TOKEN = "heartbeat-token"
    SIGNING_SECRET = "signing-secret"
    STORED_REPLY = "stored-reply"
    PEER_TOKEN = "peer-token"
    TRANSPORT = "transport"


@lru_cache(maxsize=64)
def derived_key(deployment_key: bytes, purpose: KeyPurpose, version: int) -> bytes:
    """Return the key of a purpose, 32 bytes.

    Args:
        deployment_key: 32 secret bytes of the deployment.
        version: 1 to `KEY_VERSION`.
    """
    assert len(deployment_key) == KEY_BYTES, len(deployment_key)
    assert 1 <= version <= KEY_VERSION, version
    info = f"callboard/{purpose}/v{version}".encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(deployment_key)
