"""Which texts are keys, and what is signed for the next one."""

from __future__ import annotations

import base64

import pytest
from nacl.signing import SigningKey

from core.trust.identity.agent_keys import canonical_key, key_name, rotation_message

RAW = bytes(SigningKey(bytes(32)).verify_key)
KEY = base64.b64encode(RAW).decode()


@pytest.mark.parametrize("text", [KEY, f"ed25519:{KEY}"])
def test_a_key_has_one_form(text: str) -> None:
    assert canonical_key(text) == KEY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        base64.b64encode(RAW[:31]).decode(),
        base64.b64encode(bytes(32)).decode(),  # a point of small order, whose signatures are free
        base64.b64encode(b"\x01" + bytes(31)).decode(),  # the neutral element
        base64.b64encode(b"\xff" * 32).decode(),  # no point at all
    ],
)
def test_what_no_signature_can_be_of_is_no_key(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        canonical_key(text)


def test_the_message_holds_the_new_key_as_it_was_sent() -> None:
    message = rotation_message("did:net:a", f"ed25519:{KEY}")
    assert message == f"rotate:did:net:a:ed25519:{KEY}".encode()


def test_a_key_is_named_by_its_place_in_the_history() -> None:
    assert key_name("did:net:a", 3) == "did:net:a#key-3"
