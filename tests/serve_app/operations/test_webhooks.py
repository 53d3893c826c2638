"""With which credential a webhook ends."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from core.trust.access import DID_KEY_ID, JWT_KEY_ID, Principal
from core.trust.did_key import did_of_key
from serve_app.operations.events.webhooks import _made_with
from tests.serve_app.parts import call_of

OWN_KEY = bytes(range(32))
DID_KEY = did_of_key(OWN_KEY)
NOTHING = dict.fromkeys(("key_id", "signed_key", "expires_ms"))


@pytest.mark.parametrize(
    ("did", "key_id", "more", "expected"),
    [
        ("did:a:1", "k-1", {}, {"key_id": "k-1"}),
        ("did:a:1", "k-1", {"expires_ms": 5}, {"key_id": "k-1", "expires_ms": 5}),
        ("did:a:1", JWT_KEY_ID, {"expires_ms": 5}, {"expires_ms": 5}),
        (
            "did:a:1",
            DID_KEY_ID,
            {"signing_key": "x"},
            {"signed_key": "x"},
        ),
    ],
)
def test_a_webhook_ends_with_what_the_caller_came_with(
    did: str, key_id: str, more: dict[str, Any], expected: dict[str, Any]
) -> None:
    caller = Principal(did, key_id, frozenset(), **more)
    assert _made_with(call_of(principal=caller)) == {**NOTHING, **expected}


def test_a_did_that_is_its_key_ends_by_its_revocation_alone() -> None:
    key = base64.b64encode(OWN_KEY).decode()
    caller = Principal(DID_KEY, DID_KEY_ID, frozenset(), signing_key=key)
    assert _made_with(call_of(principal=caller)) == NOTHING
