"""Who calls: keys by both headers, access tokens, and how long a revoked key lives."""

from __future__ import annotations

import asyncio

import jwt
import pytest

from core.errors import ErrorCode, ServiceError
from core.trust.access import DEFAULT_SCOPES, Principal
from serve_app.auth import Authenticator, StoredKey, key_hash, new_api_key

SECRET = "0123456789abcdef0123456789abcdef"
API_KEY = new_api_key()
ALICE = Principal(did="did:net:alice", key_id="k", scopes=frozenset({"agents:read"}))


class Keys:
    """The ledger's keys, counting how often they are asked for."""

    def __init__(self, stored: StoredKey | None) -> None:
        self.stored = stored
        self.asked = 0

    async def find(self, digest: bytes) -> StoredKey | None:
        self.asked += 1
        await asyncio.sleep(0)
        return self.stored if digest == key_hash(API_KEY) else None


def ask(headers: dict[bytes, bytes], secret: str = SECRET, ends_ms: int | None = None) -> Principal:
    keys = Keys(StoredKey(ALICE, ends_ms))
    principal = asyncio.run(Authenticator(keys.find, secret, bytes(32)).principal(headers, 1_000))
    assert principal is not None
    return principal


def token(**claims: object) -> bytes:
    return jwt.encode({"sub": "did:net:bob", "exp": 2**40, **claims}, SECRET, "HS256").encode()


@pytest.mark.parametrize(
    "headers",
    [
        {b"x-api-key": API_KEY.encode()},
        {b"authorization": b"Bearer " + API_KEY.encode()},
        {b"authorization": b"bearer  " + API_KEY.encode()},
    ],
)
def test_a_key_is_taken_from_either_header(headers: dict[bytes, bytes]) -> None:
    assert ask(headers) == ALICE


def test_no_credential_is_nobody() -> None:
    authenticator = Authenticator(Keys(None).find, "", bytes(32))
    assert asyncio.run(authenticator.principal({}, 0)) is None


@pytest.mark.parametrize(
    "headers",
    [
        {b"x-api-key": b"cb_wrong"},
        {b"x-api-key": b""},
        {b"x-api-key": b"\xff" * 40},
        {b"authorization": b"Basic abc"},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer a.b.c"},
        {b"x-api-key": b"cb_wrong", b"authorization": b"Bearer " + API_KEY.encode()},
    ],
)
def test_a_wrong_credential_is_refused(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(ServiceError) as refusal:
        ask(headers)
    assert refusal.value.code is ErrorCode.UNAUTHORIZED


def test_an_expired_key_is_refused() -> None:
    with pytest.raises(ServiceError, match="expired"):
        ask({b"x-api-key": API_KEY.encode()}, ends_ms=1_000)


def test_an_access_token_names_its_principal_and_scopes() -> None:
    principal = ask({b"authorization": b"Bearer " + token(scope="agents:read nonsense")})
    assert (principal.did, principal.scopes) == ("did:net:bob", frozenset({"agents:read"}))
    assert ask({b"authorization": b"Bearer " + token()}).scopes == frozenset(DEFAULT_SCOPES)


@pytest.mark.parametrize(
    "bad",
    [
        token(exp=1),
        token(sub="bob"),
        token(scope=7),
        jwt.encode({"sub": "did:net:bob"}, SECRET, "HS256").encode(),
        jwt.encode({"sub": "did:net:bob", "exp": 2**40}, SECRET[::-1], "HS256").encode(),
        jwt.encode({"sub": "did:net:bob", "exp": 2**40}, None, "none").encode(),
    ],
    ids=["expired", "no DID", "scope no text", "no exp", "other secret", "unsigned"],
)
def test_a_bad_access_token_is_refused(bad: bytes) -> None:
    with pytest.raises(ServiceError) as refusal:
        ask({b"authorization": b"Bearer " + bad})
    assert refusal.value.code is ErrorCode.UNAUTHORIZED


def test_without_a_secret_no_access_token_is_taken() -> None:
    with pytest.raises(ServiceError, match="no access tokens"):
        ask({b"authorization": b"Bearer " + token()}, secret="")


def test_a_revoked_key_ends_within_a_second_and_many_askers_ask_once() -> None:
    async def scenario() -> None:
        keys = Keys(StoredKey(ALICE, None))
        authenticator = Authenticator(keys.find, "", bytes(32))
        headers = {b"x-api-key": API_KEY.encode()}
        assert (
            await asyncio.gather(*(authenticator.principal(headers, 0) for _ in range(20)))
            == [ALICE] * 20
        )
        assert keys.asked == 1
        keys.stored = None
        assert await authenticator.principal(headers, 999) == ALICE
        with pytest.raises(ServiceError):
            await authenticator.principal(headers, 1_000)

    asyncio.run(scenario())
