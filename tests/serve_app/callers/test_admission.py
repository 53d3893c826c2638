"""What a request holds, from its first byte to its last; run through the endpoint itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import cycle
from typing import Any, cast

import orjson
import pytest

from core.errors import ErrorCode, ServiceError
from core.settings import KIB, Settings
from core.trust.access import Principal
from core.trust.deployment_keys import DeploymentKeys
from core.trust.requests.did_standing import DidStanding
from ledger.features.nonces import Nonce
from ledger.operational import RateBlock
from serve_app.callers.admission import BYTES_MAX, Admission, Place
from serve_app.callers.auth import Authenticator, CredentialSources, StoredKey, key_hash
from serve_app.callers.client_address import CLIENT_ADDRESS_HEADER, ClientAddresses, proxy_tokens
from serve_app.callers.limits import RateClass, RateLimiter
from serve_app.http.calls import Call, Operation, Reply
from serve_app.http.endpoint import Endpoint
from tests.platform.waiting import until
from tests.serve_app.parts import gateway_with, services_of

KEY = "aa" * 32
SETTINGS = Settings(
    deployment_key=KEY, replica_requests_max=50, waits_max=20, bodies_max=10, share_of_free=4
)
ALICE, BOB = "did:net:alice", "did:net:bob"
COUNTED = "did:net:counted"  # whose calls are counted
SECOND_KEY = "another key of alice"
HERE, THERE = "192.0.2.1", "192.0.2.2"


async def find_keys(digests: list[bytes]) -> list[StoredKey | None]:
    classes = {ALICE: "unlimited", BOB: "unlimited", COUNTED: "standard"}
    principals = {
        key_hash(did): StoredKey(Principal(did, did, frozenset({"admin"}), rate_class), None)
        for did, rate_class in classes.items()
    }
    principals[key_hash(SECOND_KEY)] = StoredKey(
        Principal(ALICE, SECOND_KEY, frozenset({"agents:read"}), "unlimited"), None
    )
    return [principals.get(digest) for digest in digests]


async def find_none(dids: list[str]) -> list[DidStanding | None]:
    return [None for _ in dids]


async def take_none(nonces: list[Nonce]) -> list[bool]:
    return [False for _ in nonces]


async def take_block(did: str, rate: str, wanted: int, limit: int) -> RateBlock:
    return RateBlock(wanted, wanted, 60_000)


class Api:
    """One operation behind its endpoint; `may_end` lets its requests end.

    Args:
        stalled: what waits for `may_end` too: `look-up` of keys, or `count` of calls.
    """

    def __init__(
        self, *, method: str = "GET", scope: str | None = "agents:read", stalled: str = ""
    ) -> None:
        self.admission = Admission(SETTINGS)
        self.may_end = asyncio.Event()

        async def find(digests: list[bytes]) -> list[StoredKey | None]:
            if stalled == "look-up":
                await self.may_end.wait()
            return await find_keys(digests)

        async def take(did: str, rate: str, wanted: int, limit: int) -> RateBlock:
            if stalled == "count":
                await self.may_end.wait()
            return await take_block(did, rate, wanted, limit)

        self.reply_bytes = 2
        self.is_streaming = self.is_lasting = False
        services = services_of(
            gateway_with(SETTINGS),
            authenticator=Authenticator(CredentialSources(find, find_none, take_none), SETTINGS),
            limiter=RateLimiter(SETTINGS, take),
            admission=self.admission,
            client_addresses=ClientAddresses(DeploymentKeys.parse(KEY)),
        )
        operation = Operation(
            method=method,
            path="/v1/x",
            handler=self._handle,
            summary="",
            scope=scope,
            rate=RateClass.READ,
            tag="t",
            reply="X",
            may_wait=True,
        )
        self._method = method
        self._endpoint = Endpoint([operation], services)
        self.handled = 0

    async def _handle(self, call: Call) -> Reply:
        self.handled += 1
        await self.may_end.wait()
        if self.is_streaming:
            return Reply(self._pages(), is_stream=True, is_lasting=self.is_lasting)
        return Reply(b"x" * self.reply_bytes)

    async def _pages(self) -> AsyncGenerator[bytes, None]:
        yield b"x" * self.reply_bytes

    async def ask(
        self,
        key: str | None = None,
        address: str = HERE,
        headers: dict[bytes, bytes] | None = None,
        receive: Any = None,
        on_send: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[int, Any]:
        """Send one request; return its status and what its body says."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            if on_send is not None and message["type"] == "http.response.body":
                await on_send()
            sent.append(message)

        async def nothing() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        told = proxy_tokens(DeploymentKeys.parse(KEY))[0].encode() + b" " + address.encode()
        all_headers = {CLIENT_ADDRESS_HEADER: told, **(headers or {})}
        if key is not None:
            all_headers[b"x-api-key"] = key.encode()
        scope = {
            "type": "http",
            "method": self._method,
            "path": "/v1/x",
            "raw_path": b"/v1/x",
            "headers": list(all_headers.items()),
        }
        await self._endpoint(scope, receive or nothing, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        is_problem = body.startswith(b"{")
        return sent[0]["status"], orjson.loads(body)["code"] if is_problem else len(body)

    def is_idle(self) -> bool:
        """Whether everything was given back."""
        admission = self.admission
        return not any(
            shares.taken
            for shares in (
                admission.requests,
                admission.event_streams,
                admission.lookups,
                admission.waits,
                admission.incomplete_bodies,
                admission.body_bytes,
                admission.reply_bytes,
                admission.streams,
            )
        )


async def started(count: int, ask: Callable[[], Awaitable[Any]]) -> list[asyncio.Task[Any]]:
    """Begin requests one after the other, each as far as it goes."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.ensure_future(ask()))
        for _ in range(20):
            await asyncio.sleep(0)
    return tasks


async def ended(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return [await task for task in tasks]


async def test_one_owner_never_takes_the_places_of_others() -> None:
    api, keys = Api(), cycle((ALICE, SECOND_KEY))
    open_ones = await started(30, lambda: api.ask(next(keys)))
    refused = [task.result() for task in open_ones if task.done()]
    assert refused == [(429, "RATE_LIMITED")] * 20
    assert api.handled == 10
    others = await started(1, lambda: api.ask(BOB))
    others += await started(1, lambda: api.ask(BOB, THERE))
    assert api.handled == 12
    api.may_end.set()
    assert [status for status, _ in await ended(others)] == [200, 200]
    await ended(open_ones)
    assert api.is_idle()


async def test_addresses_without_a_key_have_shares_of_their_own() -> None:
    api = Api(scope=None)
    here = await started(30, lambda: api.ask(address=HERE))
    assert api.handled == 10
    there = await started(1, lambda: api.ask(address=THERE))
    owner = await started(1, lambda: api.ask(ALICE, HERE))
    assert api.handled == 12, "neither another address nor an owner at the same one suffers"
    api.may_end.set()
    await ended(here + there + owner)
    assert api.is_idle()


async def test_large_bodies_are_counted_by_their_bytes() -> None:
    api = Api(method="POST", scope=None)
    api.may_end.set()
    taken = Place(api.admission)
    taken.enter(HERE)
    large = {b"content-length": b"%d" % (300 * KIB)}
    assert (await api.ask(headers=large))[0] == 200
    taken.take(api.admission.body_bytes, BYTES_MAX // 5, "bytes")
    assert await api.ask(headers=large) == (429, "RATE_LIMITED")
    assert (await api.ask(address=THERE, headers=large))[0] == 200
    assert (await api.ask(headers={b"content-length": b"2"}))[0] == 200
    taken.leave()
    assert api.is_idle()


async def test_a_large_reply_is_counted_until_it_is_taken() -> None:
    api = Api()
    api.may_end.set()
    api.reply_bytes = BYTES_MAX // 6
    may_take = asyncio.Event()
    slow = asyncio.ensure_future(
        api.ask(ALICE, on_send=lambda: cast(Awaitable[None], may_take.wait()))
    )
    await until(lambda: api.admission.reply_bytes.taken)
    assert await api.ask(ALICE) == (429, "RATE_LIMITED")
    assert (await api.ask(BOB))[0] == 200
    may_take.set()
    assert await slow == (200, api.reply_bytes)
    assert api.is_idle()


async def test_streams_are_counted_until_they_are_taken() -> None:
    api = Api()
    api.may_end.set()
    api.is_streaming = True
    may_take, stays = asyncio.Event(), asyncio.Event()
    wait = cast(Callable[[], Awaitable[None]], may_take.wait)
    slow = asyncio.ensure_future(api.ask(ALICE, receive=stays.wait, on_send=wait))
    await until(lambda: api.admission.streams.taken)
    # Of 8 places ALICE may have a quarter, of those that are left then.
    assert await api.ask(ALICE, receive=stays.wait) == (429, "RATE_LIMITED")
    assert (await api.ask(BOB, receive=stays.wait))[0] == 200
    may_take.set()
    assert await slow == (200, api.reply_bytes)
    assert api.is_idle()


async def test_streams_of_events_hold_no_place_of_other_requests() -> None:
    api = Api()
    api.may_end.set()
    api.is_streaming = api.is_lasting = True
    may_take, stays = asyncio.Event(), asyncio.Event()
    wait = cast(Callable[[], Awaitable[None]], may_take.wait)

    tasks: list[asyncio.Future[tuple[int, Any]]] = []
    for key in (*([ALICE] * 20), BOB):
        if key == BOB:
            assert await api.ask(ALICE, receive=stays.wait) == (429, "RATE_LIMITED")
        tasks.append(asyncio.ensure_future(api.ask(key, receive=stays.wait, on_send=wait)))
        await until(lambda: api.admission.event_streams.taken >= len(tasks))
    assert not api.admission.requests.taken
    may_take.set()
    assert {status for status, _ in await asyncio.gather(*tasks)} == {200}
    assert api.is_idle()


def test_a_place_may_be_of_the_share_of_its_address() -> None:
    """DIDs that anybody makes share the exports of their address."""
    admission = Api().admission
    places = [Place(admission) for _ in range(3)]
    for number, place in enumerate(places):
        place.enter(f"did:key:{number}")
    streams, address = admission.streams, "10.0.0.1"
    places[0].take(streams, 1, "exports are open", address)
    with pytest.raises(ServiceError, match=f"too many exports are open for {address}"):
        places[1].take(streams, 1, "exports are open", address)
    places[2].take(streams, 1, "exports are open", "10.0.0.2")
    assert streams.taken == 2
    for place in places:
        place.leave()
    assert not streams.taken


@pytest.mark.parametrize("phase", ["look-up", "body", "count", "handler", "reply"])
async def test_everything_is_given_back_when_the_client_leaves(phase: str) -> None:
    """A request is cancelled while it waits for one thing after the other."""

    api = Api(method="POST" if phase == "body" else "GET", stalled=phase)
    never = asyncio.Event()
    key, asked = ALICE, dict[str, Any]()
    match phase:
        case "body":
            asked = {"headers": {b"content-length": b"300000"}, "receive": never.wait}
        case "count":
            key = COUNTED
        case "handler":
            asked = {"headers": {b"prefer": b"wait=30"}}
        case "reply":
            api.may_end.set()
            api.reply_bytes = 100 * KIB
            asked = {"on_send": never.wait}
    task = asyncio.ensure_future(api.ask(key, **asked))
    for _ in range(20):
        await asyncio.sleep(0)
    assert api.handled == (phase in ("handler", "reply"))
    assert not api.is_idle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert api.is_idle()
    api.may_end.set()


async def test_a_wrong_key_holds_a_place_of_its_address_and_gives_it_back() -> None:
    api = Api()
    assert await api.ask("cb_wrong") == (401, "UNAUTHORIZED")
    assert api.is_idle()


def test_when_all_is_taken_it_says_so_and_when_to_come_again() -> None:
    admission = Admission(SETTINGS)
    for number in range(SETTINGS.replica_requests_max):
        assert admission.requests.take(f"did:net:{number}")
    with pytest.raises(ServiceError) as refusal:
        Place(admission).enter(ALICE)
    assert (refusal.value.code, refusal.value.retry_after_s) == (ErrorCode.OVERLOADED, 1)
