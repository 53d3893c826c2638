"""Whose key speaks for a DID, and what its signature permits."""

from __future__ import annotations

import base64

from nacl.signing import SigningKey

from core.trust.access import DEFAULT_SCOPES, PEER_SCOPES, READ_TRUST
from core.trust.did_key import did_of_key
from core.trust.requests.did_standing import (
    STRANGER,
    DidStanding,
    scopes_of_signer,
    signing_key,
)

KEY = bytes(SigningKey(b"k" * 32).verify_key)
TEXT = base64.b64encode(KEY).decode()
NET = "did:net:a"
OTHER = base64.b64encode(bytes(SigningKey(b"o" * 32).verify_key)).decode()


def test_a_did_key_is_its_own_key_whatever_the_registry_holds() -> None:
    did = did_of_key(KEY)
    registered = DidStanding(registered_key=OTHER, owner_did=did, is_active=True)
    for standing in (STRANGER, registered):
        assert signing_key(did, standing) == TEXT
        assert scopes_of_signer(did, standing) == frozenset(DEFAULT_SCOPES)


def test_a_registered_key_speaks_for_an_active_agent() -> None:
    standing = DidStanding(registered_key=TEXT, owner_did="did:net:owner", is_active=True)
    assert signing_key(NET, standing) == TEXT
    assert signing_key(NET, STRANGER) is None
    assert signing_key(NET, DidStanding(owner_did=NET, is_active=True)) is None, "without a key"
    gone = DidStanding(registered_key=TEXT, owner_did="did:net:owner")
    assert signing_key(NET, gone) is None
    assert signing_key(NET, DidStanding(registered_key=TEXT, owner_did=NET)) == TEXT, "its own"


def test_a_peers_key_speaks_for_its_did_whatever_the_registry_holds() -> None:
    standing = DidStanding(registered_key=OTHER, owner_did=NET, is_active=True, peer_key=TEXT)
    assert signing_key(NET, standing) == TEXT
    assert scopes_of_signer(NET, standing) == PEER_SCOPES
    assert PEER_SCOPES - {READ_TRUST} < frozenset(DEFAULT_SCOPES)
    assert "workflows:write" in PEER_SCOPES
