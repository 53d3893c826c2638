"""Which key takes the place of a signing key, and how it is sealed.

Reference: money.md (Signing keys).
"""

from __future__ import annotations

from core.trust.deployment_keys import NONCE_BYTES, DeploymentKeys
from core.trust.signatures import is_signed_by
from core.trust.signing_keys import SigningKey, next_signing_key, unseal_signing_key

CHOSEN, RANDOM = "c1" * 32, b"r" * 32


def test_the_chosen_key_is_used_once() -> None:
    chosen, made = SigningKey(bytes.fromhex(CHOSEN)), SigningKey(RANDOM)
    assert next_signing_key("", [], RANDOM) == made
    assert next_signing_key(CHOSEN, [], RANDOM) == chosen
    assert next_signing_key(CHOSEN, [made.key_id], RANDOM) == chosen
    assert next_signing_key(CHOSEN, [chosen.key_id], RANDOM) == made
    assert next_signing_key(CHOSEN, [made.key_id, chosen.key_id], b"n" * 32).seed == b"n" * 32


def test_a_key_signs_and_shows_no_seed() -> None:
    key = SigningKey(RANDOM)
    assert is_signed_by(key.public_key, b"message", key.sign(b"message"))
    assert not is_signed_by(key.public_key, b"messagf", key.sign(b"message"))
    assert "rrr" not in repr(key)


def test_only_its_deployment_key_opens_a_sealed_key() -> None:
    keys, key = DeploymentKeys.parse("ab" * 32), SigningKey(RANDOM)
    sealed = key.seal(keys, b"n" * NONCE_BYTES)
    assert unseal_signing_key(sealed, keys) == key
    assert unseal_signing_key(sealed, DeploymentKeys.parse("ac" * 32)) is None
    assert unseal_signing_key(sealed[:-1] + b"x", keys) is None
