"""The deployment's keys, the keys derived from them, and secrets encrypted with derived keys. Pure.

Decision permissions-and-keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

import nacl.exceptions
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl.secret import SecretBox

# The deployment's keys have versions. One key is in use. During a rotation, a second key is
# accepted: the next or the previous one. The row of an attempt and the first byte of a sealed
# secret contain the version of their key. Heartbeat tokens and connections between machines contain
# no version, so each accepted key is tried.

KEY_BYTES: Final = 32
# The version of a key whose text names no version.
FIRST_VERSION: Final = 1
# The version is the first byte of a sealed secret.
VERSION_MAX: Final = 255
# The first message of a connection relies on this maximum, too (actors/transport/handshake.py).
KEYS_MAX: Final = 2
FORM: Final = (
    "64 hex digits, which are 32 bytes; or, with several keys, version:digits of each with commas"
    " between them, the one in use first"
)
_KEY: Final = re.compile(r"(?:([1-9][0-9]{0,2}):)?([0-9a-fA-F]{64})")


class DeploymentKeys:
    """The keys of a deployment.

    Args:
        keys: (version, 32 bytes) of each key; the key in use comes first. Empty before the first
            key is created.
    """

    __slots__ = ("_by_version",)

    def __init__(self, keys: Sequence[tuple[int, bytes]] = ()) -> None:
        self._by_version = dict(keys)
        assert len(self._by_version) == len(keys) <= KEYS_MAX, len(keys)
        assert all(len(key) == KEY_BYTES for _, key in keys)

    def __repr__(self) -> str:
        return f"<DeploymentKeys versions={self.versions}>"

    @classmethod
    def parse(cls, text: str) -> DeploymentKeys:
        """Return the keys from the text of the setting; an empty text has no keys.

        Raises:
            ValueError: the text does not have the form `FORM`. The message does not contain it.
        """
        keys = [_parse_key(part) for part in text.split(",")] if text else []
        if len({version for version, _ in keys}) < len(keys) or len(keys) > KEYS_MAX:
            raise ValueError(f"expected at most {KEYS_MAX} keys, each of another version")
        return cls(keys)

    @property
    def version(self) -> int:
        """The version of the key in use."""
        return next(iter(self._by_version), FIRST_VERSION)

    @property
    def versions(self) -> tuple[int, ...]:
        """All accepted versions; the version in use comes first."""
        return tuple(self._by_version)

    def key(self, version: int) -> bytes | None:
        """Return the key of a version; None if the version is not accepted."""
        return self._by_version.get(version)

    def in_use(self) -> bytes:
        """Return the key in use. Raises KeyError if there is no key."""
        return self._by_version[self.version]

    def text(self) -> str:
        """Return the form that `parse` reads."""
        return ",".join(f"{version}:{key.hex()}" for version, key in self._by_version.items())

    # -- rotation: every process must know the result of a step before the next step --------------

    def with_next(self, key: bytes) -> DeploymentKeys:
        """Return the keys with a new key that is accepted but not in use yet.

        Raises:
            ValueError: the highest version is in use, or there are already `KEYS_MAX` keys.
        """
        version = max(self.versions) + 1
        if version > VERSION_MAX or len(self._by_version) >= KEYS_MAX:
            raise ValueError(f"got the version {version} and {len(self._by_version)} keys before")
        return DeploymentKeys([*self._by_version.items(), (version, key)])

    def with_newest_in_use(self) -> DeploymentKeys:
        """Return the keys, with the key of the highest version in use."""
        newest_first = sorted(self._by_version.items(), reverse=True)
        return DeploymentKeys(newest_first)

    def with_one(self) -> DeploymentKeys:
        """Return only the key in use. Tokens and secrets made with another key become invalid."""
        return DeploymentKeys([(self.version, self.in_use())])


@lru_cache(maxsize=8)
def parse_deployment_keys(text: str) -> DeploymentKeys:
    """Return the keys from a setting that is already checked; see `DeploymentKeys.parse`."""
    return DeploymentKeys.parse(text)


def _parse_key(text: str) -> tuple[int, bytes]:
    form = _KEY.fullmatch(text)
    version = int(form[1] or FIRST_VERSION) if form is not None else 0
    if form is None or version > VERSION_MAX:
        raise ValueError(f"got {len(text)} characters, expected {FORM}")
    return version, bytes.fromhex(form[2])


# For each purpose and version, HKDF-SHA256 (RFC 5869) derives a key from the deployment's key. A
# leaked derived key reveals neither the deployment's key nor the keys of other purposes.


class KeyPurpose(StrEnum):
    """The purposes of derived keys. Each purpose has its own key."""

    RESULT_ID = "result-id"
    HEARTBEAT_TOKEN = "heartbeat-token"
    SIGNING_SECRET = "signing-secret"
    STORED_REPLY = "stored-reply"
    SIGNING_KEY = "signing-key"
    PEER_TOKEN = "peer-token"
    PUBLISH_WEBHOOK = "publish-webhook"


def derived_key(keys: DeploymentKeys, purpose: KeyPurpose, version: int) -> bytes:
    """Return the derived key of a purpose, 32 bytes.

    Args:
        version: the version of the deployment's key, one of `keys.versions`.
    """
    key = keys.key(version)
    assert key is not None, (version, keys)
    return _derived(key, purpose, version)


def derived_keys(keys: DeploymentKeys, purpose: KeyPurpose) -> tuple[bytes, ...]:
    """Return the derived key of a purpose for each accepted key; the key in use comes first."""
    return tuple(derived_key(keys, purpose, version) for version in keys.versions)


@lru_cache(maxsize=64)
def _derived(key: bytes, purpose: KeyPurpose, version: int) -> bytes:
    info = f"callboard/{purpose}/v{version}".encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(key)


# Signing secrets and stored replies are sealed, that is, stored encrypted with a derived key.
# XSalsa20-Poly1305 (PyNaCl `SecretBox`) detects changed bytes. The first byte of the sealed form is
# the version of the deployment's key. The caller provides the nonce.

NONCE_BYTES = SecretBox.NONCE_SIZE


def seal(secret: str, keys: DeploymentKeys, nonce: bytes, purpose: KeyPurpose) -> bytes:
    """Encrypt a secret with the key in use.

    Args:
        secret: the text to encrypt.
        nonce: `NONCE_BYTES` random bytes, never used twice.
        purpose: the purpose of the text; `unseal` needs the same purpose.
    """
    box = SecretBox(derived_key(keys, purpose, keys.version))
    return bytes([keys.version]) + bytes(box.encrypt(secret.encode(), nonce))


def unseal(sealed: bytes, keys: DeploymentKeys, purpose: KeyPurpose) -> str | None:
    """Decrypt a sealed secret; None if its key is not accepted or a byte was changed."""
    version = sealed[0] if sealed else 0
    if version not in keys.versions:
        return None
    try:
        return SecretBox(derived_key(keys, purpose, version)).decrypt(sealed[1:]).decode()
    except nacl.exceptions.CryptoError:
        return None
