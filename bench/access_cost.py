"""Measures what access costs a request: `python -m bench.access_cost [--calls N]`. Decision 0275.

Prints CPU microseconds of one process per request: who calls, a place, a turn, the permission, the
count of the call and its headers. Requests go through the endpoint itself, once to an operation
that takes a right and is counted and once to one that is public and exempt; access is the
difference, the median of rounds in which they take turns. What is asked of the database is answered
at once here: by a remembered key once a second, by a lease once per block, by a signature for its
nonce. Bound of issue 8: 50 us for a known API key with calls left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import jwt
import orjson
import uvloop
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.signing import SigningKey

from actors.gateway.gateway import Gateway
from core.settings import Settings
from core.trust.access import DEFAULT_SCOPES, Principal
from core.trust.did_key import did_of_key
from core.trust.requests.did_standing import DidStanding
from core.trust.requests.request_signature import signature_headers
from ledger.keys.nonces import Nonce
from ledger.replies import ReplyStore
from serve_app.callers.access_tokens import EDDSA, HS256, RS256
from serve_app.callers.admission import Admission
from serve_app.callers.auth import Authenticator, Sources, StoredKey, new_api_key
from serve_app.callers.limits import Granted, RateClass, RateLimiter
from serve_app.callers.peers import PEER_HEADER, Peers, peer_tokens
from serve_app.http.calls import Call, Operation, Reply
from serve_app.http.endpoint import Endpoint
from serve_app.operations.agents.heartbeat_store import Heartbeats
from serve_app.services import Services

ROUNDS: Final = 9
DEPLOYMENT_KEY: Final = "5a" * 32
HOST: Final = "callboard.example"
PATH: Final = "/v1/agents"
OWNER: Final = "did:example:owner-of-a-bench"
SECRET: Final = "a secret of a bench, of 32 bytes or more"
SETTINGS: Final = Settings(
    deployment_key=DEPLOYMENT_KEY,
    jwt_secret=SECRET,
    jwks_url="https://issuer.example/keys",
    public_url=f"https://{HOST}",
    signed_rate=10**9,
    signed_total_rate=10**9,
    read_rate=10**6,
)

Headers = dict[bytes, bytes]


class SettingsOnly:
    """A gateway of which only the settings are used."""

    settings = SETTINGS


class Issuer:
    """An issuer of access tokens with a key of each algorithm."""

    def __init__(self) -> None:
        self._keys = {
            RS256: rsa.generate_private_key(public_exponent=65_537, key_size=2_048),
            EDDSA: Ed25519PrivateKey.generate(),
        }

    async def key_set(self) -> bytes:
        """Return the published keys."""
        published = []
        for name, key in self._keys.items():
            algorithm = jwt.get_algorithm_by_name(name)
            published.append({**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": name})
        return orjson.dumps({"keys": published})

    def token(self, algorithm: str) -> Headers:
        """Return the headers of a request with a token of this algorithm."""
        claims = {"sub": OWNER, "exp": int(time.time()) + 3_600}
        key = SECRET if algorithm == HS256 else self._keys[algorithm]
        text = jwt.encode(claims, key, algorithm, headers={"kid": algorithm})
        return {b"authorization": b"Bearer " + text.encode()}


async def find_keys(digests: list[bytes]) -> list[StoredKey | None]:
    """Return the same owner's key for every digest."""
    stored = StoredKey(Principal(OWNER, "key", frozenset(DEFAULT_SCOPES)), None)
    return [stored for _ in digests]


async def find_standings(dids: list[str]) -> list[DidStanding | None]:
    """Return a DID that owns API keys, for each."""
    return [DidStanding(has_keys=True) for _ in dids]


async def take_nonces(nonces: list[Nonce]) -> list[bool]:
    """Take every nonce as new."""
    return [True for _ in nonces]


async def take_block(_did: str, _rate: str, wanted: int, _limit: int) -> Granted:
    """Grant what is wanted, of an empty window."""
    return Granted(wanted, wanted, 60_000)


async def answer(_call: Call) -> Reply:
    """Answer as cheaply as a handler can."""
    return Reply(b"{}")


async def take_reply(message: Any) -> None:
    """Take a part of a reply, which must not be a refusal."""
    assert message.get("status", 200) == 200, message


async def no_body() -> Any:
    """Return the body of a request without one."""
    return {"type": "http.request", "body": b"", "more_body": False}


def endpoints(issuer: Issuer) -> tuple[Endpoint, Endpoint]:
    """Return the endpoint of a counted operation with a right, and of a public and exempt one."""
    sources = Sources(find_keys, find_standings, take_nonces, issuer.key_set)
    services = Services(
        cast(Gateway, SettingsOnly()),
        Authenticator(sources, SETTINGS),
        RateLimiter(SETTINGS, take_block),
        cast(Heartbeats, None),
        cast(ReplyStore, None),
        Admission(SETTINGS),
        Peers(SETTINGS.deployment_keys),
    )

    def endpoint(scope: str | None, rate: RateClass) -> Endpoint:
        operation = Operation(
            method="GET",
            path=PATH,
            handler=answer,
            summary="",
            scope=scope,
            rate=rate,
            tag="bench",
            reply="X",
        )
        return Endpoint([operation], services)

    return endpoint("agents:read", RateClass.READ), endpoint(None, RateClass.EXEMPT)


def signed_requests() -> Iterator[Headers]:
    """Make headers of requests that a `did:key` has signed, each with a nonce of its own."""
    key = SigningKey.generate()
    did = did_of_key(bytes(key.verify_key))
    for number in itertools.count():
        named = signature_headers(
            "GET",
            f"https://{HOST}{PATH}",
            b"",
            did=did,
            private_key=bytes(key),
            created_s=int(time.time()),
            nonce=f"nonce-{number}",
        )
        yield {name.lower().encode(): value.encode() for name, value in named.items()}


async def request_us(endpoint: Endpoint, credentials: list[Headers]) -> float:
    """Return CPU microseconds per request, of one after the other in turns of the loop."""
    peer = peer_tokens(SETTINGS.deployment_keys)[0].encode() + b" 192.0.2.1"
    sent = {b"host": HOST.encode(), b"accept": b"*/*", b"user-agent": b"bench", PEER_HEADER: peer}
    scopes = [
        {
            "type": "http",
            "method": "GET",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": list((sent | credential).items()),
        }
        for credential in credentials
    ]
    gc.collect()
    began_s = time.process_time()
    for scope in scopes:
        await endpoint(scope, no_body, take_reply)
        await asyncio.sleep(0)
    return (time.process_time() - began_s) * 1e6 / len(scopes)


async def access_us(next_credential: Callable[[], Headers], calls: int, issuer: Issuer) -> float:
    """Return CPU microseconds of access per request, of the median round."""
    counted, public = endpoints(issuer)
    found = []
    for _ in range(ROUNDS + 1):
        credentials = [next_credential() for _ in range(calls)]
        whole_us = await request_us(counted, credentials)
        found.append(whole_us - await request_us(public, credentials))
    return statistics.median(found[1:])  # the first warms up


async def measure(calls: int) -> None:
    """Print one line per kind of credential."""
    issuer = Issuer()
    key = {b"x-api-key": new_api_key().encode()}
    signed = signed_requests()
    kinds: dict[str, Callable[[], Headers]] = {
        "API key, known, calls left": lambda: key,
    }
    for algorithm in (HS256, RS256, EDDSA):
        token = issuer.token(algorithm)
        kinds[f"access token, {algorithm}"] = lambda token=token: token  # type: ignore[misc]
    kinds["signature of a did:key"] = lambda: next(signed)
    for name, next_credential in kinds.items():
        print(f"{name:32} {await access_us(next_credential, calls, issuer):8.1f} us")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=5_000, help="requests a round")
    uvloop.run(measure(parser.parse_args().calls))


if __name__ == "__main__":
    main()
