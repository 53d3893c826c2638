"""A `did:key` names its own key; anything else names none."""

from __future__ import annotations

import base64

import pytest

from core.trust.did_key import did_of_key, key_of_did

# Of the did:key specification's examples for Ed25519.
DID = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
KEY_HEX = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"


def test_the_key_of_a_did_key_is_in_it() -> None:
    assert key_of_did(DID) == base64.b64encode(bytes.fromhex(KEY_HEX)).decode()


@pytest.mark.parametrize("key", [bytes.fromhex(KEY_HEX), bytes(32), b"\xff" * 32])
def test_a_key_has_the_did_that_names_it(key: bytes) -> None:
    assert key_of_did(did_of_key(key)) == base64.b64encode(key).decode()
    assert did_of_key(bytes.fromhex(KEY_HEX)) == DID


@pytest.mark.parametrize(
    "did",
    [
        "did:web:example.org",
        "did:key:",
        "did:key:z",
        DID[:-1],
        DID + "1",
        DID.replace("6Mk", "6Ml", 1),
        DID.replace("z6", "z0"),
        "did:key:z" + "z" * 100_000,
        DID.upper(),
    ],
)
def test_what_is_no_ed25519_did_key_has_no_key(did: str) -> None:
    assert key_of_did(did) is None
