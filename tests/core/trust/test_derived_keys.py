"""One key per purpose and version, and what is sealed for one purpose opens for no other."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from core.trust.derived_keys import KEY_VERSION, KeyPurpose, derived_key
from core.trust.sealing import NONCE_BYTES, seal, unseal

KEY = bytes(range(32))


def test_a_derived_key_is_hkdf_sha256_as_the_standard_has_it() -> None:
    """RFC 5869 with no salt: one block of HMAC over the purpose suffices for 32 bytes."""
    extracted = hmac.new(bytes(32), KEY, hashlib.sha256).digest()
    expected = hmac.new(extracted, b"callboard/result-id/v1\x01", hashlib.sha256).digest()
    assert derived_key(KEY, KeyPurpose.RESULT_ID, 1) == expected


def test_no_two_purposes_share_a_key_and_none_is_the_deployments() -> None:
    keys = {derived_key(KEY, purpose, KEY_VERSION) for purpose in KeyPurpose}
    assert len(keys) == len(KeyPurpose)
    assert KEY not in keys
    assert derived_key(bytes(32), KeyPurpose.RESULT_ID, 1) not in keys


def test_what_is_sealed_opens_for_its_own_purpose_key_and_version_alone() -> None:
    sealed = seal("hush", KEY, bytes(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
    assert sealed[0] == KEY_VERSION
    assert unseal(sealed, KEY, KeyPurpose.SIGNING_SECRET) == "hush"
    assert unseal(sealed, KEY, KeyPurpose.STORED_REPLY) is None
    assert unseal(sealed, bytes(32), KeyPurpose.SIGNING_SECRET) is None


@pytest.mark.parametrize("version", [0, KEY_VERSION + 1, 255])
def test_an_unknown_version_and_a_changed_byte_open_nothing(version: int) -> None:
    sealed = seal("hush", KEY, bytes(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
    assert unseal(bytes([version]) + sealed[1:], KEY, KeyPurpose.SIGNING_SECRET) is None
    assert unseal(sealed[:-1] + b"\x00", KEY, KeyPurpose.SIGNING_SECRET) is None
    assert unseal(b"", KEY, KeyPurpose.SIGNING_SECRET) is None
