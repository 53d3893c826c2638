"""A signed request as the client makes it and the service reads it; what else is refused."""

from __future__ import annotations

import base64
import hashlib

import pytest
from nacl.signing import SigningKey

from core.trust.requests.request_signature import (
    DIGEST,
    METHOD,
    TARGET,
    content_digest,
    is_digest_of,
    signature_headers,
    signed_text,
)
from core.trust.requests.signature_fields import SignatureDefect, read_digests, read_signature
from core.trust.signatures import is_signed_by_key

SEED = bytes(range(32))
DID = "did:net:signer"
URL = "https://callboard.example/v1/agents?limit=1"
GOOD = '("@method" "@target-uri");created=1700000000;keyid="did:net:a";nonce="n"'
SIGNATURE = b"s=:" + base64.b64encode(b"x" * 64) + b":"


def headers(body: bytes = b"") -> dict[str, str]:
    return signature_headers(
        "POST", URL, body, did=DID, private_key=SEED, created_s=1_700_000_000, nonce="n-1"
    )


@pytest.mark.parametrize("body", [b"", b'{"a":1}'])
def test_what_a_client_signs_is_what_the_service_verifies(body: bytes) -> None:
    sent = headers(body)
    fields = read_signature(sent["Signature-Input"].encode(), sent["Signature"].encode())
    assert (fields.did, fields.created_s, fields.nonce) == (DID, 1_700_000_000, "n-1")
    values = {METHOD: "POST", TARGET: URL}
    if body:
        values[DIGEST] = sent["Content-Digest"]
    assert set(fields.covered) == set(values)
    key = bytes(SigningKey(SEED).verify_key)
    assert is_signed_by_key(
        key, signed_text(fields.covered, fields.parameters, values), fields.signature
    )
    for name in values:
        changed = signed_text(fields.covered, fields.parameters, {**values, name: "other"})
        assert not is_signed_by_key(key, changed, fields.signature)


def test_the_signed_text_is_that_of_the_standard() -> None:
    """RFC 9421 section 2.5, with the components that this service knows."""
    text = signed_text((METHOD, TARGET), GOOD, {METHOD: "GET", TARGET: "https://a.example/x"})
    assert text.decode().splitlines() == [
        '"@method": GET',
        '"@target-uri": https://a.example/x',
        f'"@signature-params": {GOOD}',
    ]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "bytes"),
        ("s=" + "x" * 2_000, "bytes"),
        ("s=(", "structured"),
        ("s=1", "list of components"),
        (f"s={GOOD}, t={GOOD}", "2 members"),
        (f"s={GOOD}, s={GOOD}", "twice"),
        (f"t={GOOD}", "different labels"),
        ("s=" + GOOD.replace('"@target-uri"', '"@path"'), "'@path'"),
        ("s=" + GOOD.replace('"@target-uri"', '"@target-uri";req'), "@target-uri"),
        ("s=" + GOOD.replace(' "@target-uri"', ""), "does not cover"),
        ("s=" + GOOD.replace("@target-uri", "@method"), "does not cover"),
        ("s=" + GOOD.replace("created=1700000000;", ""), "created"),
        ("s=" + GOOD.replace("1700000000", '"1700000000"'), "created"),
        ("s=" + GOOD.replace("1700000000", "17.5"), "created"),
        ("s=" + GOOD.replace("1700000000", "?1"), "created"),
        ("s=" + GOOD.replace('"did:net:a"', "1"), "keyid"),
        ("s=" + GOOD.replace(';keyid="did:net:a"', ""), "keyid"),
        ("s=" + GOOD.replace(';nonce="n"', ""), "nonce"),
        ("s=" + GOOD.replace('"n"', '""'), "nonce"),
        ("s=" + GOOD.replace('"n"', '"' + "n" * 129 + '"'), "nonce"),
        ("s=" + GOOD.replace('"n"', '"a b"'), "nonce"),
        ("s=" + GOOD + ';alg="hmac-sha256"', "alg"),
        ("s=" + GOOD + ';alg="rsa-v1_5-sha256"', "alg"),
        ("s=" + GOOD + ";colour=red", "colour"),
        ("s=" + GOOD + ';expires="soon"', "expires"),
    ],
)
def test_a_signature_that_says_too_little_or_what_is_not_known_is_refused(
    given: str, why: str
) -> None:
    read_signature(f"s={GOOD}".encode(), SIGNATURE)
    with pytest.raises(SignatureDefect, match=why):
        read_signature(given.encode(), SIGNATURE)


@pytest.mark.parametrize(
    "signature", [None, b"", b"s=:AAAA:", b"s=1", b"s", b"s=:" + b"A" * 300 + b":"]
)
def test_a_signature_of_another_form_is_refused(signature: bytes | None) -> None:
    with pytest.raises(SignatureDefect):
        read_signature(f"s={GOOD}".encode(), signature)


def test_a_key_verifies_its_own_signature_alone() -> None:
    signature = SigningKey(SEED).sign(b"m").signature
    own, other = SigningKey(SEED).verify_key, SigningKey(b"o" * 32).verify_key
    assert is_signed_by_key(bytes(own), b"m", signature)
    assert not is_signed_by_key(bytes(other), b"m", signature)
    assert not is_signed_by_key(bytes(own), b"m", signature[:63])
    assert not is_signed_by_key(b"short", b"m", signature)


def test_a_body_has_every_digest_that_is_known() -> None:
    body = b"body"
    sha256 = read_digests(content_digest(body).encode())
    assert is_digest_of(sha256, body)
    assert not is_digest_of(sha256, b"other")
    assert is_digest_of({**sha256, "sha-512": hashlib.sha512(body).digest(), "md5": b"x"}, body)
    assert not is_digest_of({**sha256, "sha-512": b"x" * 64}, body)
    assert not is_digest_of({"md5": hashlib.md5(body).digest()}, body), "none that is known"
    assert not is_digest_of({}, body)


@pytest.mark.parametrize("given", [b"", b"sha-256", b"sha-256=1", b"sha-256=:A", b"x" * 600])
def test_a_digest_of_another_form_is_refused(given: bytes) -> None:
    with pytest.raises(SignatureDefect):
        read_digests(given)
