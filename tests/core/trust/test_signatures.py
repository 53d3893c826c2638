"""Signatures of outsiders."""

from __future__ import annotations

import base64

import pytest
from nacl.signing import SigningKey

from core.trust.signatures import is_signed_by, key_bytes, result_message

KEY = SigningKey(bytes(range(32)))
PUBLIC = base64.b64encode(bytes(KEY.verify_key)).decode()
MESSAGE = result_message("sum up", "w-1", "sha256:ab")
SIGNATURE = base64.b64encode(KEY.sign(MESSAGE).signature).decode()


def test_what_is_signed_is_node_workflow_and_hash() -> None:
    assert MESSAGE == b"sum up:w-1:sha256:ab"
    assert result_message("é", "w", "h") == "é:w:h".encode()


@pytest.mark.parametrize("signature", [SIGNATURE, f"ed25519:{SIGNATURE}"])
@pytest.mark.parametrize("key", [PUBLIC, f"ed25519:{PUBLIC}"])
def test_a_signature_holds_with_its_prefix_and_without(key: str, signature: str) -> None:
    assert is_signed_by(key, MESSAGE, signature)


@pytest.mark.parametrize(
    "signature",
    [
        "", "ed25519:", SIGNATURE[:-4], SIGNATURE + "AAAA", "é" + SIGNATURE, SIGNATURE.lower(),
        None, 7, [SIGNATURE], base64.b64encode(bytes(64)).decode(), f"sha256:{SIGNATURE}", "\ud800",
        SIGNATURE[:20] + "\n" + SIGNATURE[20:],
    ],
)  # fmt: skip
def test_anything_else_does_not(signature: object) -> None:
    assert not is_signed_by(PUBLIC, MESSAGE, signature)


def test_another_message_or_key_does_not() -> None:
    assert not is_signed_by(PUBLIC, MESSAGE + b"x", SIGNATURE)
    other = base64.b64encode(bytes(SigningKey(bytes(32)).verify_key)).decode()
    assert not is_signed_by(other, MESSAGE, SIGNATURE)
    assert not is_signed_by("AAAA", MESSAGE, SIGNATURE)


@pytest.mark.parametrize("text", ["", "AAAA", "no base64", PUBLIC + "AAAA"])
def test_a_key_has_32_bytes(text: str) -> None:
    assert key_bytes(PUBLIC) == bytes(KEY.verify_key)
    with pytest.raises(ValueError, match=r"."):
        key_bytes(text)
