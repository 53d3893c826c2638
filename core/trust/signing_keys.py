"""The deployment's signing key: an Ed25519 key that signs receipts and audit checkpoints.

Pure: the caller provides the seed and the nonce. The key is stored encrypted in Postgres, so that
every machine can sign with it. Reference: money.md (Signing keys).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

from nacl.signing import SigningKey as Ed25519Key

from core.trust.deployment_keys import DeploymentKeys, KeyPurpose, seal, unseal

SEED_BYTES = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A signing key.

    Args:
        seed: the private key, `SEED_BYTES` random bytes.
    """

    seed: bytes = field(repr=False)

    @property
    def public_bytes(self) -> bytes:
        """The public key, 32 bytes."""
        return bytes(Ed25519Key(self.seed).verify_key)

    @property
    def public_key(self) -> str:
        """The public key in base64."""
        return base64.b64encode(self.public_bytes).decode()

    @property
    def key_id(self) -> str:
        """The id of the key, 16 hex digits."""
        return key_id_of(self.public_key)

    def sign_raw(self, message: bytes) -> bytes:
        """Return the signature over a message, 64 bytes."""
        return Ed25519Key(self.seed).sign(message).signature

    def sign(self, message: bytes) -> str:
        """Return the signature over a message, `ed25519:` and base64."""
        return "ed25519:" + base64.b64encode(self.sign_raw(message)).decode()

    def seal(self, keys: DeploymentKeys, nonce: bytes) -> bytes:
        """Return the private key, encrypted with the deployment key in use."""
        return seal(self.seed.hex(), keys, nonce, KeyPurpose.SIGNING_KEY)


def unseal_signing_key(sealed: bytes, keys: DeploymentKeys) -> SigningKey | None:
    """Decrypt the result of `SigningKey.seal`; None if the deployment key is not accepted."""
    seed = unseal(sealed, keys, KeyPurpose.SIGNING_KEY)
    return None if seed is None else SigningKey(bytes.fromhex(seed))


def key_id_of(public_key: str) -> str:
    """Return the id of a public key (base64): the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()[:16]


def next_signing_key(chosen: str, known: Collection[str], entropy: bytes) -> SigningKey:
    """Return the key that replaces the signing key in use.

    Args:
        chosen: the seed that the operator chose, in hex; "" for none.
        known: the ids of all keys that are or were in use. If the key of `chosen` has one of these
            ids, `chosen` is ignored, because an old key must not sign again.
        entropy: `SEED_BYTES` random bytes, the seed of a new key.
    """
    key = SigningKey(bytes.fromhex(chosen) or entropy)
    return SigningKey(entropy) if key.key_id in known else key


def signing_key_rotation_message(new_public_key: str) -> bytes:
    """Return the message that the previous key signs when it is replaced.

    Args:
        new_public_key: the new public key in base64.
    """
    return f"rotate-signing-key:{new_public_key}".encode()


def checkpoint_origin(ledger_origin: str, first_public_key: str) -> str:
    """Return the origin of the deployment's checkpoints, which no other deployment has.

    Args:
        ledger_origin, first_public_key: the values in the first audit entry.
    """
    return f"{ledger_origin}/{key_id_of(first_public_key)}"


def checkpoint_note(origin: str, size: int, root: bytes, key: SigningKey) -> str:
    """Return the signed checkpoint of a tree, in the form of C2SP's tlog-checkpoint.

    Args:
        origin: the origin of the log, which is also the name of its keys.
        size: the number of entries.
        root: the root of the tree, 32 bytes.
        key: the key that signs the checkpoint.
    """
    text = f"{origin}\n{size}\n{base64.b64encode(root).decode()}\n"
    key_hash = hashlib.sha256(f"{origin}\n\x01".encode() + key.public_bytes).digest()[:4]
    signature = base64.b64encode(key_hash + key.sign_raw(text.encode())).decode()
    return f"{text}\n— {origin} {signature}\n"
