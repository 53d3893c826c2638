"""The deployment's keys, the keys derived from them, and secrets sealed with these. Pure.

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

# The deployment's keys by version: one is in use, another is still, or already, accepted.
# Whatever is made with a key carries its version: an attempt in its row, a sealed secret in its
# first byte. What carries none (heartbeat tokens, connections between machines) is tried with
# each. Pure; derivations are in `derived_keys.py`.

KEY_BYTES: Final = 32
# The version of a key that is written without one.
FIRST_VERSION: Final = 1
# One byte in front of what is sealed.
VERSION_MAX: Final = 255
# Of a connection's first message, too (actors/transport/handshake.py).
KEYS_MAX: Final = 2
FORM: Final = (
    "64 hex digits, which are 32 bytes; or, with several keys, version:digits of each with commas"
    " between them, the one in use first"
)
_KEY: Final = re.compile(r"(?:([1-9][0-9]{0,2}):)?([0-9a-fA-F]{64})")


class DeploymentKeys:
    """A deployment's keys.

    Args:
        keys: (version, 32 bytes) of each, the one in use first; none where there is no key yet.
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
        """Return the keys of a setting, none of an empty text.

        Raises:
            ValueError: it is not of `FORM`; the message has nothing of the text.
        """
        keys = [_parse_key(part) for part in text.split(",")] if text else []
        if len({version for version, _ in keys}) < len(keys) or len(keys) > KEYS_MAX:
            raise ValueError(f"expected at most {KEYS_MAX} keys, each of another version")
        return cls(keys)

    @property
    def version(self) -> int:
        """The version in use: what is made now is made with it."""
        return next(iter(self._by_version), FIRST_VERSION)

    @property
    def versions(self) -> tuple[int, ...]:
        """All versions that are accepted, the one in use first."""
        return tuple(self._by_version)

    def key(self, version: int) -> bytes | None:
        """Return the key of a version, None where it is not accepted."""
        return self._by_version.get(version)

    def in_use(self) -> bytes:
        """Return the key in use; there is one."""
        return self._by_version[self.version]

    def text(self) -> str:
        """Return the form that `parse` reads."""
        return ",".join(f"{version}:{key.hex()}" for version, key in self._by_version.items())

    # -- rotation: each step has to be known to every process before the next ---------------------

    def with_next(self, key: bytes) -> DeploymentKeys:
        """Return the keys with a new one that is accepted and not in use yet.

        Raises:
            ValueError: there is no version left, or no room.
        """
        version = max(self.versions) + 1
        if version > VERSION_MAX or len(self._by_version) >= KEYS_MAX:
            raise ValueError(f"got the version {version} and {len(self._by_version)} keys before")
        return DeploymentKeys([*self._by_version.items(), (version, key)])

    def with_newest_in_use(self) -> DeploymentKeys:
        """Return the keys with that of the highest version in use."""
        newest_first = sorted(self._by_version.items(), reverse=True)
        return DeploymentKeys(newest_first)

    def with_one(self) -> DeploymentKeys:
        """Return the key in use alone: whatever was made with another one is worth nothing."""
        return DeploymentKeys([(self.version, self.in_use())])


@lru_cache(maxsize=8)
def parse_deployment_keys(text: str) -> DeploymentKeys:
    """Return the keys of a setting that was checked; see `DeploymentKeys.parse`."""
    return DeploymentKeys.parse(text)


def _parse_key(text: str) -> tuple[int, bytes]:
    form = _KEY.fullmatch(text)
    version = int(form[1] or FIRST_VERSION) if form is not None else 0
    if form is None or version > VERSION_MAX:
        raise ValueError(f"got {len(text)} characters, expected {FORM}")
    return version, bytes.fromhex(form[2])


# Keys derived from the deployment's keys: one per purpose and version, by HKDF-SHA256. A leaked
# derived key reveals neither the other purposes' keys nor the deployment's. The key's version is
# stored with each use, so that it can be read after a rotation. RFC 5869.


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


# Secrets at rest: signing secrets and stored replies are sealed with keys of the deployment.
# Pure: the caller provides the nonce. XSalsa20-Poly1305 (PyNaCl `SecretBox`) detects changed
# bytes. The first byte is the version of the deployment's key.

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
