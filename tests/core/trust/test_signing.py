"""The dispatch signature. Reference: features.md (Dispatch signatures)."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.trust.signing import is_signature_valid, sign_body


def test_the_signature_is_lowercase_hex_hmac_sha256_of_the_body() -> None:
    body = '{"eventId":"é"}'.encode()
    assert sign_body(body, "s3cret") == hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()


@given(body=st.binary(), secret=st.text(min_size=1), place=st.integers(min_value=0))
def test_one_changed_bit_of_the_body_is_noticed(body: bytes, secret: str, place: int) -> None:
    signature = sign_body(body, secret)
    assert is_signature_valid(body, secret, signature)
    changed = bytearray(body + b"\0")
    changed[place % len(changed)] ^= 1
    assert not is_signature_valid(bytes(changed), secret, signature)


@pytest.mark.parametrize("signature", [None, "", "é", "0" * 64])
def test_what_is_no_signature_is_refused(signature: str | None) -> None:
    assert not is_signature_valid(b"{}", "s3cret", signature)


def test_uppercase_hex_is_refused() -> None:
    assert not is_signature_valid(b"{}", "s3cret", sign_body(b"{}", "s3cret").upper())
