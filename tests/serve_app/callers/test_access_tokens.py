"""Access tokens by an issuer's published keys: which key, which algorithm, when it is fetched."""

from __future__ import annotations

import time
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from core.errors import ServiceError
from core.settings import Settings
from core.trust.access import ADMIN, DEFAULT_SCOPES, Principal
from federation.documents import DocumentUnavailable
from serve_app.callers.access_tokens import AccessTokens, IssuerKeys, read_key_set

SECRET = "0123456789abcdef0123456789abcdef"


# A test may run long after its file was read.
class _Later(int):
    """Seconds from when a token is made."""


BOB = "did:net:bob"
RSA_KEY = generate_private_key(65_537, 2_048)
ED_KEY = Ed25519PrivateKey.generate()


def published(key: RSAPrivateKey | Ed25519PrivateKey, kid: str, **more: Any) -> dict[str, Any]:
    kind = (
        jwt.algorithms.RSAAlgorithm
        if isinstance(key, RSAPrivateKey)
        else jwt.algorithms.OKPAlgorithm
    )
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, **more}


class Issuer:
    """An issuer's key set, counting how often it is fetched."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.is_away = False
        self.fetched = 0

    async def fetch(self) -> bytes:
        self.fetched += 1
        if self.is_away:
            raise DocumentUnavailable("away")
        return orjson.dumps({"keys": self.keys})


def tokens(issuer: Issuer, **settings: Any) -> AccessTokens:
    ages = {
        name: settings.pop(name) for name in ("refresh_s", "pause_s", "kept_s") & settings.keys()
    }
    made = Settings(deployment_key="00" * 32, jwks_url="https://issuer.example/jwks", **settings)
    return AccessTokens(IssuerKeys(issuer.fetch, **ages), made)


def token(key: Any = RSA_KEY, alg: str = "RS256", kid: str | None = "r", **claims: Any) -> bytes:
    now_s = int(time.time())
    given = {"sub": BOB, "exp": _Later(600), **claims}
    given = {name: now_s + one if isinstance(one, _Later) else one for name, one in given.items()}
    kept = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(kept, key, alg, headers={"kid": kid} if kid else {}).encode()


async def outcome(asked: AccessTokens, text: bytes, clock_ms: int = 0) -> str:
    try:
        return (await asked.principal(text, clock_ms)).did
    except ServiceError as error:
        return error.code


async def refused(asked: AccessTokens, text: bytes) -> bool:
    return await outcome(asked, text) == "UNAUTHORIZED"


async def test_a_published_key_verifies_tokens_of_its_algorithm() -> None:
    asked = tokens(Issuer(published(RSA_KEY, "r"), published(ED_KEY, "e")))
    assert await outcome(asked, token()) == BOB
    assert await outcome(asked, token(ED_KEY, "EdDSA", "e")) == BOB
    found = await asked.principal(token(), 0)
    assert found.scopes == frozenset(DEFAULT_SCOPES)
    assert 0 <= int(time.time()) + 600 - found.expires_ms // 1_000 < 600


async def test_a_token_is_verified_by_its_keys_algorithm_alone() -> None:
    """Another key's algorithm, other algorithms, no key and an unknown one."""

    issuer = Issuer(published(RSA_KEY, "r"), published(ED_KEY, "e"))
    for asked in (tokens(issuer), tokens(issuer, jwt_secret=SECRET)):
        for text in (
            token(ED_KEY, "EdDSA", "r"),
            token(RSA_KEY, "RS256", "e"),
            token(RSA_KEY, "RS512"),
            token(RSA_KEY, "PS256"),
            token(kid=None),
            token(kid="other"),
        ):
            assert await refused(asked, text)
    with_secret = tokens(issuer, jwt_secret=SECRET)
    assert await outcome(with_secret, token(SECRET, "HS256", None)) == BOB
    assert await refused(tokens(issuer), token(SECRET, "HS256", None))


@pytest.mark.parametrize(
    "claims",
    [{"iss": None}, {"aud": None}, {"scope": ["agents:read"]}, {"scope": "x" * 5_000}],
)
async def test_what_a_token_says_is_checked(claims: dict[str, Any]) -> None:
    asked = tokens(Issuer(published(RSA_KEY, "r")), jwt_issuer="us", jwt_audience="here")
    good = {"iss": "us", "aud": ["there", "here"], "nbf": _Later(-5), "iat": _Later(0)}
    assert await outcome(asked, token(**good)) == BOB
    assert await outcome(asked, token(**{**good, "exp": _Later(-10)})) == BOB, "the leeway"
    assert await refused(asked, token(**{**good, **claims}))


async def test_a_token_carries_the_rights_that_it_lists_and_admin_of_a_named_issuer_alone() -> None:
    scope = "admin ledger:deposit agents:read nonsense"
    issuer = Issuer(published(RSA_KEY, "r"))
    anyone = await tokens(issuer).principal(token(scope=scope), 0)
    assert anyone.scopes == {"ledger:deposit", "agents:read"}
    named = tokens(issuer, jwt_issuer="us")
    found: Principal = await named.principal(token(scope=scope, iss="us"), 0)
    assert found.scopes == {ADMIN, "ledger:deposit", "agents:read"}


async def test_an_unknown_key_is_fetched_once_in_a_while() -> None:
    issuer = Issuer(published(RSA_KEY, "r"))
    asked = tokens(issuer, pause_s=30)
    assert await outcome(asked, token()) == BOB
    new = token(ED_KEY, "EdDSA", "e")
    issuer.keys = [published(ED_KEY, "e")]
    for clock_ms in range(0, 30_000, 1_000):
        assert await outcome(asked, new, clock_ms) == "UNAUTHORIZED"
    assert issuer.fetched == 1
    assert await outcome(asked, new, 30_000) == BOB
    assert await outcome(asked, token(), 30_000) == "UNAUTHORIZED", "the one of before is gone"
    assert issuer.fetched == 2


async def test_keys_count_for_a_while_when_the_issuer_is_away() -> None:
    issuer = Issuer(published(RSA_KEY, "r"))
    asked = tokens(issuer, refresh_s=60, kept_s=100, pause_s=1)
    assert await outcome(asked, token()) == BOB
    issuer.is_away = True
    assert await outcome(asked, token(), 99_000) == BOB
    assert await outcome(asked, token(), 101_000) == "UNAUTHORIZED"
    issuer.is_away = False
    assert await outcome(asked, token(), 103_000) == BOB


@pytest.mark.parametrize(
    "key",
    [
        "text",
        {},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "k"},
        {"kty": "RSA", "kid": "k"},
        {"kty": "OKP", "crv": "Ed448", "x": "A" * 76, "kid": "k"},
        {"kty": "EC", "crv": "P-256", "kid": "k"},
        published(generate_private_key(65_537, 1_024), "k"),
        published(RSA_KEY, "k", use="enc"),
        published(RSA_KEY, "k", alg="RS512"),
        {**published(RSA_KEY, "k"), "kid": 7},
    ],
)
def test_other_keys_of_a_set_verify_nothing(key: Any) -> None:
    assert list(read_key_set(orjson.dumps({"keys": [key, published(RSA_KEY, "r")]}))) == ["r"]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"keys":1}', b'{"keys":[' + b"1," * 100 + b"1]}"]
)
def test_what_is_no_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"key set|Invalid|the text ends"):
        read_key_set(text)
