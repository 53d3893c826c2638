"""Who calls: keys by both headers, access tokens by a secret, how long a revoked key lives."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import jwt
import pytest

from core.errors import ErrorCode, ServiceError
from core.records.bounds import TIME_MS_MAX
from core.settings import Settings
from core.trust.access import BY_ADDRESS, JWT_KEY_ID, SUGGEST, Principal
from core.trust.requests.did_standing import DidStanding
from ledger.features.nonces import Nonce
from serve_app.callers.auth import (
    CACHED_MAX,
    Authenticator,
    CredentialSources,
    Pending,
    StoredKey,
    key_hash,
    new_api_key,
)
from serve_app.callers.credential_lookups import PAUSE_S, WRONG_RATE, WrongCredentials
from tests.platform.waiting import until

SECRET = "0123456789abcdef0123456789abcdef"
API_KEY = new_api_key()
ALICE = Principal(did="did:net:alice", key_id="k", scopes=frozenset({"agents:read"}))


HERE, THERE = "192.0.2.1", "192.0.2.2"


class Keys:
    """The ledger's keys, counting how often, and for how many keys, they are asked for."""

    def __init__(self, stored: StoredKey | None) -> None:
        self.stored = {} if stored is None else {key_hash(API_KEY): stored}
        self.asked = 0
        self.batches: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def find(self, digests: list[bytes]) -> list[StoredKey | None]:
        self.asked += 1
        self.batches.append(len(digests))
        await self.may_answer.wait()
        return [self.stored.get(digest) for digest in digests]


class Dids:
    """What is stored of DIDs: of none of them anything, but that some are revoked."""

    def __init__(self, *revoked: str) -> None:
        self.revoked = revoked

    async def find(self, dids: list[str]) -> list[DidStanding | None]:
        return [DidStanding(is_revoked=True) if did in self.revoked else None for did in dids]


async def take_none(nonces: list[Nonce]) -> list[bool]:
    raise AssertionError(f"no request is signed here: {nonces}")


def authenticator(
    keys: Keys,
    secret: str = "",
    dids: Dids | None = None,
    *,
    wrong_rate: int = WRONG_RATE,
    pause_s: float = PAUSE_S,
    cached_max: int = CACHED_MAX,
    **settings: Any,
) -> Authenticator:
    made = replace(Settings(**settings), jwt_secret=secret, deployment_key="00" * 32)
    sources = CredentialSources(keys.find, (dids or Dids()).find, take_none)
    wrong = WrongCredentials(made.share_of_free, rate=wrong_rate, pause_s=pause_s)
    return Authenticator(sources, made, wrong=wrong, cached_max=cached_max)


async def principal_of(
    asked: Authenticator,
    headers: dict[bytes, bytes],
    now_ms: int,
    clock_ms: int,
    address: str = HERE,
) -> Principal | None:
    found = asked.recognise({"method": "GET", "raw_path": b"/"}, headers, now_ms, clock_ms)
    if isinstance(found, Pending):
        return await asked.prove(found, address, now_ms, clock_ms)
    return found


def with_key(api_key: str) -> dict[bytes, bytes]:
    return {b"x-api-key": api_key.encode()}


async def outcome(
    asked: Authenticator, api_key: str, clock_ms: int = 0, address: str = HERE
) -> str:
    """Return the DID of a key, or the code with which it is refused."""
    try:
        principal = await principal_of(asked, with_key(api_key), 0, clock_ms, address)
    except ServiceError as error:
        return error.code
    assert principal is not None
    return principal.did


def ask(headers: dict[bytes, bytes], secret: str = SECRET, ends_ms: int | None = None) -> Principal:
    keys = Keys(StoredKey(ALICE, ends_ms))
    principal = asyncio.run(principal_of(authenticator(keys, secret), headers, 1_000, 0))
    assert principal is not None
    return principal


def token(**claims: object) -> bytes:
    return jwt.encode({"sub": "did:net:bob", "exp": 2**40, **claims}, SECRET, "HS256").encode()


@pytest.mark.parametrize(
    ("exp", "expires_ms"), [(2**40, TIME_MS_MAX), (4_000_000_000, 4_000_000_000_000)]
)
def test_a_token_ends_its_principal(exp: int, expires_ms: int) -> None:
    principal = ask({b"authorization": b"Bearer " + token(exp=exp)})
    assert (principal.key_id, principal.expires_ms) == (JWT_KEY_ID, expires_ms)


def test_a_keys_scheme_is_bearer_in_any_case() -> None:
    assert ask({b"authorization": b"bearer  " + API_KEY.encode()}) == ALICE


def test_no_credential_is_nobody() -> None:
    assert asyncio.run(principal_of(authenticator(Keys(None)), {}, 0, 0)) is None


@pytest.mark.parametrize(
    "headers",
    [
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


def test_without_a_secret_no_access_token_is_taken() -> None:
    with pytest.raises(ServiceError, match="no access tokens"):
        ask({b"authorization": b"Bearer " + token()}, secret="")


async def test_a_revoked_key_ends_within_a_second_and_many_askers_ask_once() -> None:
    keys = Keys(StoredKey(ALICE, None))
    asked = authenticator(keys)
    answers = await asyncio.gather(*(outcome(asked, API_KEY) for _ in range(20)))
    assert answers == [ALICE.did] * 20
    assert keys.asked == 1
    keys.stored = {}
    assert await outcome(asked, API_KEY, 999) == ALICE.did
    assert await outcome(asked, API_KEY, 1_000) == "UNAUTHORIZED"
    assert await outcome(asked, API_KEY, 1_001) == "UNAUTHORIZED"
    assert keys.asked == 2


async def test_a_wall_clock_that_is_set_back_keeps_no_revoked_key_alive() -> None:
    keys = Keys(StoredKey(ALICE, None))
    asked = authenticator(keys)
    await principal_of(asked, with_key(API_KEY), 10**12, 0)
    keys.stored = {}
    with pytest.raises(ServiceError):
        await principal_of(asked, with_key(API_KEY), 0, 1_000)


async def test_wrong_keys_cost_no_query_each_and_are_limited_by_address() -> None:
    keys = Keys(StoredKey(ALICE, None))
    asked = authenticator(keys, wrong_rate=50, pause_s=0.001)
    keys.may_answer.clear()
    tries = [asyncio.ensure_future(outcome(asked, f"cb_{n}")) for n in range(200)]
    await until(lambda: keys.asked >= 2)
    keys.may_answer.set()
    refused = await asyncio.gather(*tries)
    assert sorted(set(refused)) == ["RATE_LIMITED", "UNAUTHORIZED"]
    assert refused.count("UNAUTHORIZED") == 50 + 22, "a ninth of a paused batch of 200"
    assert keys.asked <= 4
    assert sum(keys.batches) == 72


async def test_each_address_has_its_own_budget_of_wrong_keys() -> None:
    keys = Keys(None)
    asked = authenticator(keys, wrong_rate=1, pause_s=3_600)
    assert await outcome(asked, "cb_1") == "UNAUTHORIZED"
    paused = asyncio.ensure_future(outcome(asked, "cb_2"))
    assert await outcome(asked, "cb_3", 0, THERE) == "UNAUTHORIZED"
    assert await outcome(asked, "cb_4", 60_000) == "UNAUTHORIZED", "a new minute"
    assert not paused.done()
    paused.cancel()


async def test_a_right_key_is_not_counted_as_a_wrong_one() -> None:
    keys = Keys(StoredKey(ALICE, None))
    asked = authenticator(keys, wrong_rate=1, pause_s=3_600)
    assert await outcome(asked, API_KEY) == ALICE.did
    assert await outcome(asked, "cb_1") == "UNAUTHORIZED"


async def test_the_key_used_last_is_forgotten_last() -> None:
    keys = Keys(StoredKey(ALICE, None))
    others = [new_api_key() for _ in range(100)]
    keys.stored |= {key_hash(other): StoredKey(ALICE, None) for other in others}
    asked = authenticator(keys, cached_max=100)
    await outcome(asked, API_KEY)
    for other in others:
        await outcome(asked, other)
        await outcome(asked, API_KEY)
    before = keys.asked
    assert await outcome(asked, API_KEY) == ALICE.did
    assert keys.asked == before
    assert repr(asked) == (
        "<Authenticator keys=<CredentialLookups known=100 unknown=0> "
        "dids=<CredentialLookups known=0 unknown=0>>"
    )


async def test_wrong_tokens_wait_for_their_turn_once_their_address_has_spent_its_budget() -> None:
    asked = authenticator(Keys(None), SECRET, wrong_rate=3, pause_s=3_600)
    wrong = {b"authorization": b"Bearer a.b.c"}
    for _ in range(3):
        with pytest.raises(ServiceError, match="not valid"):
            await principal_of(asked, wrong, 0, 0)
    waiting = [asyncio.ensure_future(principal_of(asked, wrong, 0, 0)) for _ in range(40)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = [task for task in waiting if task.done()]
    assert 0 < len(refused) < len(waiting), "a share of the places, the others at once"
    for task in waiting:
        task.cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    codes = [one.code for one in outcomes if isinstance(one, ServiceError)]
    assert codes == [ErrorCode.RATE_LIMITED] * len(refused)
    right = {b"authorization": b"Bearer " + token()}
    assert await principal_of(asked, right, 0, 0, THERE) is not None


async def test_the_free_tier_key_is_known_without_a_look_up_and_may_only_suggest() -> None:
    keys = Keys(None)
    asked = authenticator(keys, free_tier_key="free")
    for headers in ({b"x-api-key": b"free"}, {b"authorization": b"Bearer free"}):
        found = await principal_of(asked, headers, 0, 0)
        assert found is not None
        assert (found.scopes, found.rate_class) == ({SUGGEST}, BY_ADDRESS)
    assert keys.asked == 0
    with pytest.raises(ServiceError, match="not known"):
        await principal_of(authenticator(keys), {b"x-api-key": b"free"}, 0, 0)


async def test_what_goes_on_ends_with_the_key_that_has_opened_it() -> None:
    digest, keys = key_hash(API_KEY), Keys(None)
    opened = replace(ALICE, key_hash=digest, expires_ms=9_000)
    keys.stored[digest] = StoredKey(opened, 5_000)  # until then its previous secret opens
    asked = authenticator(keys)
    assert await principal_of(asked, with_key(API_KEY), 0, 0) == opened
    assert await asked.still_opens(opened, HERE, 4_999, 0)
    assert not await asked.still_opens(opened, HERE, 5_000, 0)
    keys.stored[digest] = StoredKey(opened, None)
    assert await asked.still_opens(opened, HERE, 8_999, 1_000)
    assert not await asked.still_opens(opened, HERE, 9_000, 1_001)
    keys.stored.clear()
    assert await asked.still_opens(opened, HERE, 0, 1_999), "what is remembered for a second"
    assert not await asked.still_opens(opened, HERE, 0, 2_000)


async def test_what_goes_on_ends_with_its_did_and_with_the_key_that_has_signed() -> None:
    dids = Dids()
    asked = authenticator(Keys(None), SECRET, dids)
    bob = await principal_of(asked, {b"authorization": b"Bearer " + token()}, 0, 0)
    assert bob is not None
    bob = replace(bob, expires_ms=10_000)
    assert await asked.still_opens(bob, HERE, 9_999, 0)
    assert not await asked.still_opens(bob, HERE, 10_000, 0)
    signer = Principal("did:net:signer", "did", frozenset(), signing_key="a key of before")
    assert not await asked.still_opens(signer, HERE, 0, 0), "no key is registered any more"
    dids.revoked = (bob.did,)
    assert not await asked.still_opens(bob, HERE, 0, 1_000)
    assert await asked.still_opens(replace(bob, scopes=frozenset({"admin"})), HERE, 0, 1_000)
