"""One key per purpose and version, and what is sealed for one purpose opens for no other."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from core.trust.deployment_keys import (
    KEYS_MAX,
    NONCE_BYTES,
    VERSION_MAX,
    DeploymentKeys,
    KeyPurpose,
    derived_key,
    derived_keys,
    seal,
    unseal,
)
from core.trust.tokens import heartbeat_token, read_heartbeat_token

KEY, NEXT = bytes(range(32)), b"n" * 32
ONE = DeploymentKeys([(1, KEY)])


def test_a_derived_key_is_hkdf_sha256_as_the_standard_has_it() -> None:
    """RFC 5869 with no salt: one block of HMAC over the purpose suffices for 32 bytes."""
    extracted = hmac.new(bytes(32), KEY, hashlib.sha256).digest()
    for version in (1, 7):
        info = f"callboard/result-id/v{version}".encode()
        expected = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
        keys = DeploymentKeys([(version, KEY)])
        assert derived_key(keys, KeyPurpose.RESULT_ID, version) == expected


def test_no_two_purposes_share_a_key_and_none_is_the_deployments() -> None:
    keys = {derived_key(ONE, purpose, 1) for purpose in KeyPurpose}
    assert len(keys) == len(KeyPurpose)
    assert KEY not in keys
    assert derived_key(DeploymentKeys([(1, NEXT)]), KeyPurpose.RESULT_ID, 1) not in keys


def test_what_is_sealed_opens_for_its_own_purpose_key_and_version_alone() -> None:
    sealed = seal("hush", ONE, bytes(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
    assert sealed[0] == 1
    assert unseal(sealed, ONE, KeyPurpose.SIGNING_SECRET) == "hush"
    assert unseal(sealed, ONE, KeyPurpose.STORED_REPLY) is None
    assert unseal(sealed, DeploymentKeys([(1, NEXT)]), KeyPurpose.SIGNING_SECRET) is None
    assert unseal(sealed, DeploymentKeys([(2, KEY)]), KeyPurpose.SIGNING_SECRET) is None


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_unknown_version_and_a_changed_byte_open_nothing(version: int) -> None:
    sealed = seal("hush", ONE, bytes(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
    assert unseal(bytes([version]) + sealed[1:], ONE, KeyPurpose.SIGNING_SECRET) is None
    assert unseal(sealed[:-1] + b"\x00", ONE, KeyPurpose.SIGNING_SECRET) is None
    assert unseal(b"", ONE, KeyPurpose.SIGNING_SECRET) is None


# --- rotation -------------------------------------------------------------------------------------


def test_a_rotation_accepts_a_key_everywhere_before_it_is_in_use_anywhere() -> None:
    """Neighbouring steps read each other: processes are replaced one after the other."""
    steps = [ONE, ONE.with_next(NEXT)]
    steps += [steps[1].with_newest_in_use(), steps[1].with_newest_in_use().with_one()]
    assert [one.version for one in steps] == [1, 1, 2, 2]
    assert [one.versions for one in steps] == [(1,), (1, 2), (2, 1), (2,)]
    made = [
        (
            seal("hush", one, bytes(NONCE_BYTES), KeyPurpose.SIGNING_SECRET),
            heartbeat_token(one, "did:x:a", 1),
            derived_keys(one, KeyPurpose.PEER_TOKEN),
        )
        for one in steps
    ]
    for at, keys in enumerate(steps):
        for sealed, token, peer in made[max(0, at - 1) : at + 2]:
            assert unseal(sealed, keys, KeyPurpose.SIGNING_SECRET) == "hush"
            assert read_heartbeat_token(keys, token) == ("did:x:a", 1)
            assert peer[0] in derived_keys(keys, KeyPurpose.PEER_TOKEN)
    first, last = made[0], steps[-1]
    assert unseal(first[0], last, KeyPurpose.SIGNING_SECRET) is None
    assert read_heartbeat_token(last, first[1]) is None


def test_keys_are_read_as_they_are_written() -> None:
    both = ONE.with_next(NEXT).with_newest_in_use()
    assert both.text() == f"2:{NEXT.hex()},1:{KEY.hex()}"
    assert DeploymentKeys.parse(both.text()).text() == both.text()
    assert DeploymentKeys.parse(KEY.hex()).versions == (1,)
    assert DeploymentKeys.parse("").versions == ()
    assert KEY.hex() not in repr(both)


@pytest.mark.parametrize(
    "text",
    [
        "ab" * 31, "ab" * 33, "zz" * 32, "0:" + "ab" * 32, "256:" + "ab" * 32, "02:" + "ab" * 32,
        "1:" + "ab" * 32 + ",1:" + "cd" * 32, "ab" * 32 + ",1:" + "cd" * 32, "ab" * 32 + ",",
        "ab" * 32 + ", 2:" + "cd" * 32, ",".join(f"{n}:{'ab' * 32}" for n in range(1, 4)),
    ],
)  # fmt: skip
def test_other_texts_are_no_keys_and_are_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="expected") as refused:
        DeploymentKeys.parse(text)
    assert "abab" not in str(refused.value)


def test_a_rotation_ends_before_the_next_one_begins() -> None:
    both = ONE.with_next(NEXT)
    assert len(both.versions) == KEYS_MAX
    with pytest.raises(ValueError, match="keys before"):
        both.with_next(b"x" * 32)
    with pytest.raises(ValueError, match="got the version"):
        DeploymentKeys([(VERSION_MAX, KEY)]).with_next(NEXT)
