"""Signed requests: whose they are, what is replayed, and what they cost when they are wrong."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from nacl.signing import SigningKey

from core.errors import ServiceError
from core.settings import Settings
from core.trust.access import Principal
from core.trust.did_key import did_of_key
from core.trust.requests.did_standing import DidStanding
from core.trust.requests.request_signature import signature_headers
from ledger.features.nonces import Nonce
from serve_app.callers.credential_lookups import (
    PAUSE_S,
    WRONG_RATE,
    CredentialLookups,
    WrongCredentials,
)
from serve_app.callers.signed_requests import (
    SIGNED_RATE,
    SIGNED_TOTAL_RATE,
    SignedRequest,
    SignedRequests,
    bases_by_host,
)

SEED, OTHER_SEED = b"s" * 32, b"o" * 32
OWN = did_of_key(bytes(SigningKey(SEED).verify_key))
NET = "did:net:agent"
HERE, THERE = "192.0.2.1", "192.0.2.2"
NOW_S = 1_700_000_000
BASE = "http://127.0.0.1:8000"


def registered(seed: bytes = SEED, **more: Any) -> DidStanding:
    key = base64.b64encode(bytes(SigningKey(seed).verify_key)).decode()
    return DidStanding(registered_key=key, owner_did="did:net:owner", is_active=True, **more)


class Stored:
    """What the database holds, counting how often it is asked."""

    def __init__(self) -> None:
        self.standings: dict[str, DidStanding] = {}
        self.nonces: set[bytes] = set()
        self.asked = 0
        self.took = 0

    async def find(self, dids: list[str]) -> list[DidStanding | None]:
        self.asked += 1
        return [self.standings.get(did) for did in dids]

    async def take(self, nonces: list[Nonce]) -> list[bool]:
        self.took += 1
        answers = []
        for nonce in nonces:
            answers.append(nonce.hash not in self.nonces)
            self.nonces.add(nonce.hash)
        return answers


class Service:
    """One replica before a database."""

    def __init__(
        self,
        stored: Stored,
        *,
        wrong_rate: int = WRONG_RATE,
        pause_s: float = PAUSE_S,
        rate: int = SIGNED_RATE,
        total_rate: int = SIGNED_TOTAL_RATE,
        **settings: Any,
    ) -> None:
        made = Settings(deployment_key="00" * 32, **settings)
        wrong = WrongCredentials(made.share_of_free, rate=wrong_rate, pause_s=pause_s)
        standings = CredentialLookups("DIDs", stored.find, wrong, remembered_max=10_000)
        self.signed = SignedRequests(
            standings, stored.take, wrong, made, rate=rate, total_rate=total_rate
        )

    async def take(
        self,
        headers: dict[str, str],
        method: str = "GET",
        target: bytes = b"/v1/agents?limit=1",
        *,
        now_s: int = NOW_S,
        clock_ms: int = 0,
        address: str = HERE,
    ) -> Principal:
        request = self.read(headers, method, target, now_s=now_s)
        return await self.signed.prove(request, address, clock_ms)

    def read(
        self, headers: dict[str, str], method: str, target: bytes, *, now_s: int = NOW_S
    ) -> SignedRequest:
        sent = {name.lower().encode(): text.encode() for name, text in headers.items()}
        sent.setdefault(b"host", b"127.0.0.1:8000")
        return self.signed.read(sent, method, target, now_s * 1_000 + 999)


async def outcome(taking: Any) -> str:
    """Return the DID of a request, or the code with which it is refused."""
    try:
        return str((await taking).did)
    except ServiceError as error:
        return error.code


_nonces = iter(range(10**9))


def signed(
    did: str = OWN,
    seed: bytes = SEED,
    *,
    method: str = "GET",
    url: str = f"{BASE}/v1/agents?limit=1",
    body: bytes = b"",
    created_s: int = NOW_S,
    nonce: str | None = None,
) -> dict[str, str]:
    return signature_headers(
        method,
        url,
        body,
        did=did,
        private_key=seed,
        created_s=created_s,
        nonce=nonce or f"n{next(_nonces)}",
    )


@pytest.mark.parametrize("keyid", ["agent", "did:net:" + "x" * 300, "did:net:a b"])
def test_a_keyid_that_is_no_did_is_refused(keyid: str) -> None:
    with pytest.raises(ServiceError, match="keyid is not a DID"):
        Service(Stored()).read(signed(keyid), "GET", b"/v1/agents?limit=1")


async def test_a_nonce_is_taken_once_by_each_signer() -> None:
    stored = Stored()
    first, second = Service(stored), Service(stored)
    request = signed(nonce="one")
    assert await outcome(first.take(request)) == OWN
    assert await outcome(second.take(request, address=THERE)) == "UNAUTHORIZED"
    other = did_of_key(bytes(SigningKey(OTHER_SEED).verify_key))
    assert await outcome(first.take(signed(other, OTHER_SEED, nonce="one"))) == other


async def test_a_replay_takes_nothing_from_the_signer() -> None:
    service = Service(Stored(), rate=3)
    request = signed()
    assert await outcome(service.take(request)) == OWN
    for _ in range(5):
        assert await outcome(service.take(request)) == "UNAUTHORIZED"
    assert await outcome(service.take(signed())) == OWN


@pytest.mark.parametrize(
    ("created_s", "is_taken"), [(-300, True), (-301, False), (300, True), (301, False)]
)
async def test_a_signature_is_of_now(created_s: int, is_taken: bool) -> None:
    found = await outcome_of_created(NOW_S + created_s)
    assert (found == OWN) is is_taken


async def outcome_of_created(created_s: int) -> str:
    try:
        return (await Service(Stored()).take(signed(created_s=created_s))).did
    except ServiceError as error:
        return error.code


async def test_a_signature_for_another_service_is_refused() -> None:
    """Who receives a signed request cannot bring it here under the Host that it was signed for."""

    service = Service(Stored(), public_url="https://api.example/callboard")
    elsewhere = signed(url="http://evil.example/v1/agents?limit=1")
    for host in ("evil.example", "127.0.0.1:8000", "api.example", ""):
        assert await outcome_of(service, {**elsewhere, "Host": host}) == "UNAUTHORIZED"
    here = signed(url="https://api.example/callboard/v1/agents?limit=1")
    assert await outcome_of(service, {**here, "Host": "API.example"}) == OWN


async def outcome_of(service: Service, headers: dict[str, str]) -> str:
    try:
        return (await service.take(headers)).did
    except ServiceError as error:
        return error.code


def test_the_first_address_of_a_host_counts() -> None:
    found = bases_by_host(("https://A.example/x/", "http://a.example", "http://b:1"))
    assert found == {"a.example": "https://a.example/x", "b:1": "http://b:1"}


async def test_wrong_signatures_cost_no_query_each_and_are_limited_by_address() -> None:
    stored = Stored()
    stored.standings[NET] = registered()
    service = Service(stored, wrong_rate=5, pause_s=0.001)
    assert await outcome(service.take(signed(NET))) == NET
    asked, took = stored.asked, stored.took
    tries = [service.take(signed(did, OTHER_SEED)) for did in (NET, OWN) for _ in range(100)]
    refused = await asyncio.gather(*(outcome(one) for one in tries))
    assert set(refused) == {"UNAUTHORIZED", "RATE_LIMITED"}
    assert (stored.asked, stored.took) == (asked, took)
    assert await outcome(service.take(signed(NET))) == NET, "a right one gets through"
    assert await outcome(service.take(signed(NET), address=THERE)) == NET


async def test_made_up_dids_are_looked_up_in_batches() -> None:
    stored = Stored()
    service = Service(stored, wrong_rate=50, pause_s=0.001)
    tries = [service.take(signed(f"did:net:{number}")) for number in range(200)]
    refused = await asyncio.gather(*(outcome(one) for one in tries))
    assert set(refused) == {"UNAUTHORIZED", "RATE_LIMITED"}
    assert stored.asked <= 6
    assert stored.took == 0


async def test_signed_requests_are_counted_for_a_did_and_for_the_address_of_unknown_ones() -> None:
    stored = Stored()
    stored.standings[NET] = registered()
    service = Service(stored, rate=2)
    known = [await outcome(service.take(signed(NET))) for _ in range(3)]
    assert known == [NET, NET, "RATE_LIMITED"]
    seeds = [bytes([number]) * 32 for number in range(3)]
    made = [did_of_key(bytes(SigningKey(seed).verify_key)) for seed in seeds]
    found = [
        await outcome(service.take(signed(did, seed)))
        for did, seed in zip(made, seeds, strict=True)
    ]
    assert found == [*made[:2], "RATE_LIMITED"]
    assert await outcome(service.take(signed(made[2], seeds[2]), address=THERE)) == made[2]
    small = Service(stored, total_rate=1)
    assert await outcome(small.take(signed(NET))) == NET
    assert await outcome(small.take(signed(OWN))) == "OVERLOADED"
