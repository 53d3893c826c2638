"""Orders at a peer that answers well, badly, late, twice or never: a real HTTP server each time.

Goal: an order is stored once whatever is lost, ends with one event, and is cancelled where it is
given up. Reference: features.md (Nodes at peers).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from actors.dispatch import peer_orders
from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.order_inputs import mapped_sources
from actors.ports import Contact, DispatchOrder
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.ids import event_id
from core.settings import Settings
from core.workflow.events import AttemptFailed, AttemptSucceeded, Event, Verdict, WorkStarted
from core.workflow.peer_orders import OrderTerms
from federation.name_resolver import NameResolver
from tests.actors.orders import WORKFLOW, order_to, serving, sources_of
from tests.platform.waiting import until

# For a broken program, not for a slow machine.
PATIENCE_S = 60.0
Json = dict[str, Any]
OnPublish = Callable[[Json, int], Awaitable[web.StreamResponse | None]]
EVENT = event_id(WORKFLOW, "a", 1)
PUBLISH = "/v1/workflows/publish"
SOURCES = sources_of({"n": 1, "text": "{{x}}"}, {"p": {"z": 2}}, {"z": "$.p.result.z"})


class Signer:
    """Signs with a number, which is another one after the key was forgotten."""

    key = 1
    outages = 0

    def forget(self) -> None:
        self.key += 1

    async def headers(self, method: str, url: str, body: bytes) -> dict[str, str]:
        return {"Signature": f"{self.key} {method} {url}"}

    async def is_revoked(self, peer_id: str, agent_did: str) -> bool:
        self.outages -= 1
        if self.outages >= 0:
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "down")
        return (peer_id, agent_did) == ("us-1", "did:x:revoked")


@dataclass
class StubPeer:
    """A peer that keeps orders by their keys; `on_publish` and `on_look` may answer otherwise."""

    orders: dict[str, Json] = field(default_factory=dict)
    requests: list[tuple[str, str, Json]] = field(default_factory=list)
    cancelled: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    on_publish: OnPublish | None = None
    on_look: Callable[[str], Awaitable[web.StreamResponse | None]] | None = None

    async def publish(self, request: web.Request) -> web.StreamResponse:
        manifest = await request.json()
        key = request.headers["Idempotency-Key"]
        self.requests.append((request.method, request.path, dict(request.headers)))
        count = sum(path == request.path for _, path, _ in self.requests)
        kept = self.orders.setdefault(key, {"manifest": manifest, "id": f"w{len(self.orders)}"})
        assert kept["manifest"] == manifest, "the same request under the same key"
        if self.on_publish is not None:
            answer = await self.on_publish(kept, count)
            if answer is not None:
                return answer
        if "Prefer" not in request.headers:
            return web.json_response({"workflowId": kept["id"], "status": "running"})
        return web.json_response(record(kept))

    async def listed(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, dict(request.headers)))
        kept = self.orders.get(request.query["idempotencyKey"])
        shown = [{"id": kept["id"], "intent": kept["manifest"]["intent"]}] if kept else []
        return web.json_response({"workflows": shown})

    async def look(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, dict(request.headers)))
        if request.path.endswith("/cancel"):
            self.cancelled.put_nowait(request.path.split("/")[-2])
            return web.json_response({"success": True})
        if self.on_look is not None:
            answer = await self.on_look(request.path)
            if answer is not None:
                return answer
        (kept,) = [one for one in self.orders.values() if one["id"] in request.path]
        return web.json_response(record(kept))


def record(kept: Json, **changed: Any) -> Json:
    """Return the record of an order that has succeeded."""
    node = {"status": "success", "result": kept["manifest"]["nodes"]["node"]["payload"]}
    return {
        "workflowId": kept["id"],
        "status": "success",
        "intent": kept["manifest"]["intent"],
        "nodes": {"node": node},
        "spentCredits": 0.019,
        **changed,
    }


def answering(answer: Callable[[Json], Any], status: int = 200) -> OnPublish:
    """Return what answers each publish of an order alike."""

    async def on_publish(kept: Json, _: int) -> web.StreamResponse:
        return web.json_response(answer(kept), status=status)

    return on_publish


not_yet = answering(lambda kept: {"workflowId": kept["id"], "status": "pending"})


@dataclass
class Scene:
    """A dispatcher and a peer, and what was heard and noted."""

    dispatcher: Dispatcher
    peer: StubPeer
    url: str
    signer: Signer
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    contacts: list[Contact] = field(default_factory=list)

    def order(self, **fields: Any) -> DispatchOrder:
        """Return an order to the peer."""
        values = {
            "sources": mapped_sources(SOURCES.node, SOURCES.results, None),
            "url": f"{self.url}/v1/workflows/publish",
            "peer": OrderTerms("us-1", 19_000, 500),
            **fields,
        }
        return order_to(self.url, **values)

    def send(self, **fields: Any) -> DispatchOrder:
        order = self.order(**fields)
        self.dispatcher.send(order, lambda _, event: self.events.put_nowait(event))
        return order

    async def event(self) -> Event:
        """Return the last event of an order."""
        while True:
            event = await asyncio.wait_for(self.events.get(), PATIENCE_S)
            if not isinstance(event, WorkStarted):
                return event

    async def outcome(self, **fields: Any) -> Event:
        self.send(**fields)
        return await self.event()

    async def failure(self, **fields: Any) -> AttemptFailed:
        event = await self.outcome(**fields)
        assert isinstance(event, AttemptFailed), event
        return event


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    peer, signer, contacts = StubPeer(), Signer(), list[Contact]()
    dispatcher = Dispatcher(
        Settings(deployment_key="00" * 32, egress_allow=("127.0.0.0/8",)),
        LoopClock(),
        begin=lambda _: None,
        note=lambda _, contact: contacts.append(contact),
        names=NameResolver(),
        at_work=AtWork(),
        signer=signer,
    )
    paths = {
        "/v1/workflows": peer.listed,
        "/v1/workflows/publish": peer.publish,
        "/v1/workflows/{path:.*}": peer.look,
    }
    async with serving(paths) as url:
        try:
            yield Scene(dispatcher, peer, url, signer, contacts=contacts)
        finally:
            await dispatcher.close()


async def test_an_order_is_published_once_and_its_end_is_the_agents_reply() -> None:
    async with scene() as here:
        event = await here.outcome()
        assert isinstance(event, AttemptSucceeded), event
        assert json.loads(event.result_json or "") == {"n": 1, "text": "{{x}}", "z": 2}
        assert event.charged_micro == 20_000, "19,000 and the fee of 5 %"
        assert event.metrics["peer"] == {
            "peerId": "us-1",
            "workflowId": "w0",
            "chargedCredits": 0.019,
        }
        ((method, path, headers),) = here.peer.requests
        assert (method, path) == ("POST", "/v1/workflows/publish")
        assert headers["Idempotency-Key"] == EVENT
        assert headers["Signature"] == f"1 POST {here.url}{path}"
        assert headers["Prefer"].startswith("wait=")
        assert headers["traceparent"].split("-")[1] == WORKFLOW.replace("-", "")
        assert here.contacts == [Contact.REACHED]


async def test_an_order_ends_there_before_its_workflow_ends_here() -> None:
    """Whatever it has waited here: its timeout counts from when it is sent."""
    async with scene() as here:
        ends_ms = LoopClock().now_ms() + 20_000
        await here.outcome(timeout_ms=60_000, ends_ms=ends_ms)
        (kept,) = here.peer.orders.values()
        assert kept["manifest"]["settings"]["maxRuntimeMs"] <= 19_000


async def test_an_order_that_takes_longer_is_looked_up_until_it_ends() -> None:
    looks: list[str] = []

    async def look(path: str) -> web.StreamResponse | None:
        looks.append(path)
        running = {"workflowId": "w0", "status": "running"}
        return web.json_response(running) if len(looks) < 3 else None

    async with scene() as here:
        here.peer.on_publish, here.peer.on_look = not_yet, look
        assert isinstance(await here.outcome(), AttemptSucceeded)
        assert looks == ["/v1/workflows/w0"] * 3
        assert here.peer.cancelled.empty()


async def test_a_lost_reply_is_asked_for_again_with_the_same_key() -> None:
    async def lose(kept: Json, count: int) -> web.StreamResponse | None:
        if count == 1:
            raise ConnectionResetError
        return web.json_response({}, status=503) if count == 2 else None

    async with scene() as here:
        here.peer.on_publish = lose
        assert isinstance(await here.outcome(), AttemptSucceeded)
        assert list(here.peer.orders) == [EVENT]
        assert len(here.peer.requests) == 3


async def test_a_key_that_is_refused_is_read_anew_once() -> None:
    async def refuse(_: Json, count: int) -> web.StreamResponse | None:
        return web.json_response({"code": "UNAUTHORIZED"}, status=401) if count == 1 else None

    async with scene() as here:
        here.peer.on_publish = refuse
        assert isinstance(await here.outcome(), AttemptSucceeded)
        assert here.signer.key == 2

        here.peer.on_publish = answering(lambda _: {"code": "UNAUTHORIZED"}, status=401)
        event = await here.failure()
        assert event.failure.is_declined and here.signer.key == 3
        assert here.peer.cancelled.empty()


async def test_without_credits_there_the_node_goes_elsewhere_at_once() -> None:
    body = {"code": "INSUFFICIENT_CREDITS", "detail": "deposit credits"}
    async with scene() as here:
        here.peer.on_publish = answering(lambda _: body, status=401)
        event = await here.failure()
        assert event.failure.is_declined and "deposit credits" in event.failure.message
        assert here.contacts == [Contact.REACHED]


async def test_a_peer_that_is_not_there_is_left_at_once() -> None:
    async with scene() as here:
        event = await here.failure(url="http://127.0.0.1:9/v1/workflows/publish")
        assert event.failure.is_declined
        assert here.contacts == [Contact.UNREACHABLE]


async def test_a_peer_that_falls_silent_is_left_when_the_time_is_over() -> None:
    release = asyncio.Event()

    async def hang(_: Json, __: int) -> None:
        await release.wait()

    async with scene() as here:
        here.peer.on_publish = hang
        event = await here.failure(timeout_ms=300)
        assert event.failure.code is NodeErrorCode.AGENT_TIMEOUT
        assert here.contacts == [Contact.UNKNOWN], "the payer has chosen a time this short"
        release.set()
        here.peer.on_publish = None
        assert await asyncio.wait_for(here.peer.cancelled.get(), PATIENCE_S) == "w0"


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_order_that_is_given_up_is_cancelled_there(is_known: bool) -> None:
    """Also one whose id never came: it is looked up by its key, and not published again."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def hang(kept: Json, count: int) -> web.StreamResponse | None:
        if is_known and count == 1:
            return web.json_response({"workflowId": kept["id"], "status": "running"})
        if count == 1:
            reached.set()
            await release.wait()
        return None

    async def look(_: str) -> None:
        reached.set()
        await release.wait()

    async with scene() as here:
        here.peer.on_publish, here.peer.on_look = hang, look
        order = here.send()
        await asyncio.wait_for(reached.wait(), PATIENCE_S)
        here.dispatcher.abort(order, "user_request")
        assert await asyncio.wait_for(here.peer.cancelled.get(), PATIENCE_S) == "w0"
        assert list(here.peer.orders) == [EVENT]
        assert [path for _, path, _ in here.peer.requests].count(PUBLISH) == 1
        release.set()


async def test_a_publish_that_never_arrived_is_not_made_by_its_cancellation() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def lose(kept: Json, _: int) -> web.StreamResponse:
        del here.peer.orders[EVENT]  # it was never stored
        asked.set()
        await release.wait()
        return web.json_response({}, status=503)

    async with scene() as here:
        here.peer.on_publish = lose
        order = here.send()
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        here.dispatcher.abort(order, "user_request")
        await until(lambda: ("GET", "/v1/workflows") in [one[:2] for one in here.peer.requests])
        assert not here.peer.orders and here.peer.cancelled.empty()
        release.set()


@pytest.mark.parametrize("is_done", [True, False])
async def test_an_order_that_is_given_up_still_has_its_end(is_done: bool) -> None:
    """Its result may have been charged before the cancellation came."""
    ended = asyncio.Event()

    async def look(_: str) -> web.StreamResponse | None:
        await ended.wait()
        (kept,) = here.peer.orders.values()
        error = {"code": "CANCELLED", "message": "the payer"}
        node = {"node": {"status": "cancelled", "error": error}}
        cancelled = record(kept, status="cancelled", nodes=node, spentCredits=0)
        return None if is_done else web.json_response(cancelled)

    async with scene() as here:
        here.peer.on_publish, here.peer.on_look = not_yet, look
        order = here.send()
        await until(lambda: len(here.peer.requests) >= 2)
        here.dispatcher.give_up(order)
        assert await asyncio.wait_for(here.peer.cancelled.get(), PATIENCE_S) == "w0"
        ended.set()
        assert isinstance(await here.event(), AttemptSucceeded if is_done else AttemptFailed)
        assert here.peer.cancelled.empty(), "once"


async def test_a_retry_waits_until_the_earlier_order_is_cancelled() -> None:
    """The earlier one holds credits there, which a tight prefund lacks for the next."""
    release = asyncio.Event()

    async def hang(_: Json, count: int) -> None:
        if count == 1:
            await release.wait()

    async with scene() as here:
        here.peer.on_publish = hang
        first = here.send()
        await until(lambda: here.peer.requests)
        here.dispatcher.abort(first, "error")
        await asyncio.sleep(0)  # its cancellation begins
        event = await here.outcome(attempt=2, timeout_ms=9_000)
        assert isinstance(event, AttemptSucceeded)
        _, kept = here.peer.orders.values()
        # The wait here is shorter than the second by which the order ends before the attempt.
        assert kept["manifest"]["settings"]["maxRuntimeMs"] == 9_000 - 1_000
        paths = [path for _, path, _ in here.peer.requests]
        assert paths.index("/v1/workflows/w0/cancel") < len(paths) - paths[::-1].index(PUBLISH) - 1
        release.set()


async def test_a_large_order_is_not_kept_in_memory_while_it_runs() -> None:
    """Its publish waits for no end, so that the request is free when its id is known."""
    sources = sources_of({"text": "x" * 300_000}, {}, {})
    async with scene() as here:
        event = await here.outcome(sources=mapped_sources(sources.node, sources.results, None))
        assert isinstance(event, AttemptSucceeded)
        publish, look = here.peer.requests
        assert "Prefer" not in publish[2] and look[2]["Prefer"].startswith("wait=")


async def test_an_order_that_was_not_sent_is_not_cancelled() -> None:
    async with scene() as here:
        order = here.send()
        here.dispatcher.abort(order, "user_request")
        await asyncio.sleep(0)
        assert not here.peer.requests and here.peer.cancelled.empty()


LIES: dict[str, Callable[[Json], Any]] = {
    "more charged than agreed": lambda kept: record(kept, spentCredits=0.019001),
    "the record of other work": lambda kept: record(kept, intent="order of someone else"),
    "another node": lambda kept: record(kept, nodes={"x": {"status": "success", "result": 1}}),
    "no result": lambda kept: record(kept, nodes={"node": {"status": "success"}}),
    "no record": lambda kept: ["success"],
    "a path for an id": lambda kept: record(kept, workflowId="../keys"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_a_peer_that_lies_gets_nothing(lie: Callable[[Json], Any]) -> None:
    async def answer(kept: Json, count: int) -> web.StreamResponse | None:
        return web.json_response(lie(kept)) if count == 1 else None

    async with scene() as here:
        here.peer.on_publish = answer
        event = await here.failure()
        assert event.failure.code is NodeErrorCode.INVALID_REPLY
        assert event.failure.verdict is Verdict.FINAL_FOR_AGENT
        assert event.charged_micro == 0
        assert await asyncio.wait_for(here.peer.cancelled.get(), PATIENCE_S) == "w0"


@pytest.mark.parametrize("text", ["[1e20]", "1}"])
async def test_a_result_for_which_the_record_has_no_room_is_read_by_itself(text: str) -> None:
    """Refused as missing, it would be charged there and paid by nobody here."""

    nodes = {"node": {"status": "success", "resultRef": {"sha256": "0", "size": 9}}}

    async def give(path: str) -> web.StreamResponse:
        assert path == "/v1/workflows/w0/nodes/node/result"
        looks.append(path)
        return web.Response(text=text, status=503 if len(looks) == 1 else 200)

    looks: list[str] = []
    async with scene() as here:
        here.peer.on_publish = answering(lambda kept: record(kept, nodes=nodes))
        here.peer.on_look = give
        event = await here.outcome()
        if text == "1}":
            assert isinstance(event, AttemptFailed), event
            assert event.failure.code is NodeErrorCode.INVALID_REPLY
        else:
            assert isinstance(event, AttemptSucceeded), event
            assert event.result_json == "[100000000000000000000]"
            assert event.charged_micro == 20_000


async def test_an_order_that_may_not_wait_there_is_looked_at_again() -> None:
    """A peer lets each caller have few waiting requests: others' orders may be all of them."""

    async def full(kept: Json, _: int) -> web.StreamResponse | None:
        waits = "Prefer" in here.peer.requests[-1][2]
        return web.json_response({"code": "RATE_LIMITED"}, status=429) if waits else None

    async def look(_: str) -> web.StreamResponse | None:
        assert "Prefer" not in here.peer.requests[-1][2]
        looks.append("")
        (kept,) = here.peer.orders.values()
        running = record(kept, status="running", nodes={"node": {"status": "running"}})
        return web.json_response(running) if len(looks) == 1 else None

    looks: list[str] = []
    async with scene() as here:
        here.peer.on_publish, here.peer.on_look = full, look
        assert isinstance(await here.outcome(), AttemptSucceeded)
        assert len(looks) == 2 and here.contacts == [Contact.REACHED]


@pytest.mark.parametrize("agent_did", ["did:x:revoked", "did:x:other"])
async def test_the_result_of_an_agent_that_the_peer_has_revoked_is_refused(agent_did: str) -> None:
    async def answer(kept: Json, _: int) -> web.StreamResponse:
        told = record(kept)
        told["nodes"]["node"]["agentDid"] = agent_did
        return web.json_response(told)

    async with scene() as here:
        here.peer.on_publish, here.signer.outages = answer, 1
        event = await here.outcome()
        assert len(here.peer.requests) == 2, "asked again when the ledger is back"
        if agent_did == "did:x:other":
            assert isinstance(event, AttemptSucceeded), event
        else:
            assert isinstance(event, AttemptFailed), event
            assert event.failure.code is NodeErrorCode.REVOKED
            assert event.failure.verdict is Verdict.FINAL_FOR_AGENT
            assert event.charged_micro == 20_000
        assert here.peer.cancelled.empty()


async def test_the_record_of_another_workflow_than_the_first_reply_named_is_a_lie() -> None:
    async def look(_: str) -> web.StreamResponse:
        (kept,) = here.peer.orders.values()
        return web.json_response(record(kept, workflowId="w7"))

    async with scene() as here:
        here.peer.on_publish, here.peer.on_look = not_yet, look
        event = await here.failure()
        assert event.failure.code is NodeErrorCode.INVALID_REPLY
        assert await asyncio.wait_for(here.peer.cancelled.get(), PATIENCE_S) == "w0"


async def test_a_record_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_orders, "RECORD_BYTES_MAX", 10_000)

    async with scene() as here:
        here.peer.on_publish = answering(lambda kept: record(kept, error="x" * 20_000))
        event = await here.failure()
        assert event.failure.code is NodeErrorCode.RESULT_TOO_LARGE


async def test_a_result_that_no_agent_may_give_is_refused() -> None:
    nodes = {"node": {"status": "success", "result": "\u0000"}}
    async with scene() as here:
        here.peer.on_publish = answering(lambda kept: record(kept, nodes=nodes))
        event = await here.failure()
        assert event.failure.code is NodeErrorCode.INVALID_REPLY


async def test_a_rejected_verification_carries_its_charge() -> None:
    error = {"code": "VERIFICATION_REJECTED", "message": "no"}
    rejected = {"status": "failed", "nodes": {"node": {"status": "failed", "error": error}}}
    async with scene() as here:
        here.peer.on_publish = answering(lambda kept: record(kept, **rejected, spentCredits=0.0095))
        event = await here.failure()
        assert event.failure.code is NodeErrorCode.VERIFICATION_REJECTED
        assert event.charged_micro == 10_000
