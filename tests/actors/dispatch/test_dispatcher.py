"""The dispatcher against a real HTTP agent: what is sent, and what each kind of reply becomes."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from nacl.signing import SigningKey

from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.http_failures import JUDGED_TIMEOUT_MS_MIN
from actors.dispatch.large_results import Blobs
from actors.dispatch.order_inputs import BUILT_IN_LOOP_BYTES_MAX
from actors.dispatch.ticket import DEFAULT_LIMITS
from actors.ports import Contact, DispatchOrder, InputSources
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from actors.values.agent_schemas import AgentSchemas
from core.canonical import hash_text
from core.errors import NodeErrorCode
from core.ids import event_id
from core.settings import Settings
from core.trust.signing import is_signature_valid
from core.workflow.events import (
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Verdict,
    VerificationFinished,
    WorkStarted,
)
from federation.name_resolver import NameResolver
from tests.actors.orders import WORKFLOW, Handler, order_to, serving, sources_of
from tests.federation.name_servers import name_server

SOURCES = sources_of({"n": 1}, {"p": {"z": 2}})
# For a broken program, not for a slow machine.
PATIENCE_S = 60.0


@dataclass
class Scene:
    """A dispatcher, the agent's address, and what was heard and noted."""

    dispatcher: Dispatcher
    url: str
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    contacts: list[Contact] = field(default_factory=list)

    def order(self, **fields: Any) -> DispatchOrder:
        """Return an order to the agent."""
        return order_to(self.url, **{"sources": SOURCES, **fields})

    async def outcome(self, **fields: Any) -> Event:
        """Send an order and return its last event."""
        self.dispatcher.send(self.order(**fields), lambda _, event: self.events.put_nowait(event))
        while True:
            event = await asyncio.wait_for(self.events.get(), PATIENCE_S)
            if not isinstance(event, WorkStarted):
                return event


@asynccontextmanager
async def scene(
    handler: Handler,
    clock: LoopClock | None = None,
    blobs: Blobs | None = None,
    names: NameResolver | None = None,
    may_send: Callable[[], bool] = lambda: True,
    schemas: AgentSchemas | None = None,
    **settings: Any,
) -> AsyncIterator[Scene]:
    """Serve `handler` at every path and give a dispatcher to it."""
    contacts: list[Contact] = []
    bounds = {name: settings.pop(name) for name in settings.keys() & asdict(DEFAULT_LIMITS).keys()}
    limits = replace(DEFAULT_LIMITS, **bounds)
    dispatcher = Dispatcher(
        Settings(deployment_key="00" * 32, **settings),
        clock or LoopClock(),
        limits=limits,
        begin=lambda _: None,
        note=lambda _, contact: contacts.append(contact),
        names=names or NameResolver(),
        at_work=AtWork(),
        blobs=blobs,
        may_send=may_send,
        schemas=schemas,
    )
    async with serving({"/{path:.*}": handler}) as url:
        try:
            yield Scene(dispatcher, url, contacts=contacts)
        finally:
            await dispatcher.close()


def replying(http_status: int = 200, **reply: Any) -> Handler:
    """Return a handler with a constant JSON reply."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response(reply, status=http_status)

    return handler


async def test_dispatch_request_fields_headers_and_signature() -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((dict(request.headers), await request.read()))
        return web.json_response({"status": "success", "result": {"b": 1, "a": [True, None]}})

    async with scene(handler) as here:
        event = await here.outcome(secret="hush")
    headers, raw = seen[0]
    body = json.loads(raw)
    assert isinstance(event, AttemptSucceeded)
    assert body["eventId"] == event_id(WORKFLOW, "a", 1)
    assert (body["capabilityId"], body["capability"]) == ("cap.x.v1", "cap.x.v1")
    assert body["inputs"] == body["input"] == {"n": 1}
    assert body["parents"] == {"p": {"result": {"z": 2}}}
    assert (body["workflowId"], body["taskId"], body["nodeId"]) == (WORKFLOW, "t", "a")
    assert (body["agentDid"], body["timestamp"][-1]) == ("did:x:a", "Z")
    written, due = map(datetime.fromisoformat, (body["timestamp"], body["meta"]["deadline"]))
    assert due - written == timedelta(milliseconds=60_000)
    assert headers["Accept-Encoding"] == "identity"
    assert is_signature_valid(raw, "hush", headers["x-callboard-signature"])
    assert headers["traceparent"].startswith(f"00-{WORKFLOW.replace('-', '')}-")
    assert event.input_hash == hash_text({"n": 1})
    assert (event.result_json, event.result_ref) == ('{"a":[true,null],"b":1}', None)
    assert event.output_hash == hash_text({"b": 1, "a": [True, None]})


@pytest.mark.parametrize(
    ("status", "reply", "code", "verdict"),
    [
        (500, {"status": "error", "error": "boom"}, NodeErrorCode.AGENT_ERROR, Verdict.RETRYABLE),
        (
            404,
            {"status": "error", "error": "x"},
            NodeErrorCode.AGENT_ERROR,
            Verdict.FINAL_FOR_AGENT,
        ),
        (302, {}, NodeErrorCode.INVALID_REPLY, Verdict.RETRYABLE),
        (200, {"status": "success", "result": {}, "eventId": "other"}, None, None),
    ],
)
async def test_a_bad_reply_is_a_failed_attempt(
    status: int, reply: dict[str, Any], code: NodeErrorCode | None, verdict: Verdict | None
) -> None:
    async with scene(replying(status, **reply)) as here:
        event = await here.outcome()
    assert isinstance(event, AttemptFailed)
    assert event.failure.code is (code or NodeErrorCode.INVALID_REPLY)
    assert event.failure.verdict is (verdict or Verdict.RETRYABLE)
    assert here.contacts == [Contact.REACHED]


def packed(coding: str, body: bytes) -> bytes:
    """Return a body in a content coding."""
    if coding == "raw deflate":
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return packer.compress(body) + packer.flush()
    return gzip.compress(body) if coding == "gzip" else zlib.compress(body)


def coded(coding: str, body: bytes, status: int = 200) -> Handler:
    """Return a handler whose reply says that it is in this content coding."""

    async def handler(_: web.Request) -> web.Response:
        headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
        return web.Response(status=status, body=body, headers=headers)

    return handler


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
async def test_a_compressed_reply_is_understood(coding: str) -> None:
    body = packed(coding, b'{"status": "success", "result": {"n": 1}}')
    async with scene(coded(coding.split()[-1], body)) as here:
        event = await here.outcome()
    assert isinstance(event, AttemptSucceeded), event
    assert event.result_json == '{"n":1}'


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
async def test_a_compressed_reply_is_not_unpacked_beyond_the_bound(coding: str) -> None:
    body = packed(coding, b'{"status": "success", "result": "' + b"0" * (64 << 20) + b'"}')
    assert len(body) < 1 << 18
    async with scene(coded(coding.split()[-1], body)) as here:
        tracemalloc.start()
        event = await here.outcome()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert isinstance(event, AttemptFailed)
    assert event.failure.code is NodeErrorCode.RESULT_TOO_LARGE
    assert peak < 8 << 20


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("br", b"{}"),
        ("gzip, gzip", b"{}"),
        ("gzip", b'{"status": "success", "result": {}}'),
        ("gzip", gzip.compress(b'{"status": "success", "result": {}}', mtime=0)[:-9]),
        ("deflate", b"\xff\xff"),
        ("deflate", zlib.compress(b"{}") + b"more"),
    ],
)
async def test_a_reply_in_no_known_coding_is_invalid(coding: str, body: bytes) -> None:
    async with scene(coded(coding, body)) as here:
        event = await here.outcome()
    assert isinstance(event, AttemptFailed)
    assert event.failure.code is NodeErrorCode.INVALID_REPLY
    async with scene(coded(coding, body, status=503)) as here:
        event = await here.outcome()
    assert isinstance(event, AttemptFailed)
    assert event.failure.code is NodeErrorCode.AGENT_ERROR, "the status says more"


class SetBack(LoopClock):
    """A wall clock that is set back by an hour after each look."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def now_ms(self) -> int:
        self.looks += 1
        return super().now_ms() - 3_600_000 * self.looks


async def test_a_wall_clock_that_is_set_back_makes_no_span_negative() -> None:
    async with scene(replying(status="success", result={}), SetBack()) as here:
        event = await here.outcome()
    assert isinstance(event, AttemptSucceeded)
    assert event.metrics["latency_ms"] >= 0
    assert event.at_ms >= event.started_ms


RESULT = {"b": 1.5, "a": ["é"]}
KEY = SigningKey(bytes(range(32)))
PUBLIC = base64.b64encode(bytes(KEY.verify_key)).decode()
SIGNED = KEY.sign(f"a:{WORKFLOW}:{hash_text(RESULT)}".encode()).signature
SIGNATURE = "ed25519:" + base64.b64encode(SIGNED).decode()


@pytest.mark.parametrize(
    ("registered", "members"),
    [
        (PUBLIC, {"signature": SIGNATURE}),
        (PUBLIC, {"signature": SIGNATURE, "publicKey": f"ed25519:{PUBLIC}"}),
        (PUBLIC, {}),
        (PUBLIC, {"signature": None}),
        (None, {"signature": "of an unknown key"}),
    ],
)
async def test_a_result_that_its_agent_has_signed_or_nobody_can_judge_is_taken(
    registered: str | None, members: dict[str, Any]
) -> None:
    async with scene(replying(status="success", result=RESULT, **members)) as here:
        event = await here.outcome(public_key=registered)
    assert isinstance(event, AttemptSucceeded)
    assert (event.result_json, event.output_hash) == ('{"a":["é"],"b":1.5}', hash_text(RESULT))


@pytest.mark.parametrize(
    ("order", "members", "is_forged"),
    [
        ({}, {"signature": "ed25519:AAAA"}, True),
        ({}, {"signature": 7}, True),
        ({}, {"signature": SIGNATURE, "result": {"b": 2}}, True),
        ({"node": "b"}, {"signature": SIGNATURE}, True),
        ({"public_key": base64.b64encode(bytes(32)).decode()}, {"signature": SIGNATURE}, True),
        ({}, {"signature": SIGNATURE, "publicKey": "another"}, False),
    ],
)
async def test_a_result_signed_wrongly_is_the_agents_last_word_and_forged(
    order: dict[str, Any], members: dict[str, Any], is_forged: bool
) -> None:
    """Naming another key than the registered one is no forgery: it may have changed."""
    reply = {"status": "success", "result": RESULT, **members}
    async with scene(replying(**reply)) as here:
        event = await here.outcome(**{"public_key": PUBLIC, **order})
        judged = await here.outcome(
            **{"public_key": PUBLIC, **order, "is_verification": True, "verify_attempt": 1}
        )
    assert isinstance(event, AttemptFailed)
    assert (event.failure.code, event.failure.is_forged) == ("INVALID_REPLY", is_forged)
    assert event.failure.verdict is (Verdict.FINAL_FOR_AGENT if is_forged else Verdict.RETRYABLE)
    assert isinstance(judged, VerificationFinished)
    assert judged.failure is None, "a verifier's signature is not judged"


async def test_a_reply_above_the_limit_is_cut_off_whether_its_length_is_told_or_not() -> None:
    async def told(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 5_000_000, content_type="application/json")

    async def untold(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 65_536)
        return response

    for handler in (told, untold):
        async with scene(handler) as here:
            event = await here.outcome()
        assert isinstance(event, AttemptFailed)
        assert event.failure.code is NodeErrorCode.RESULT_TOO_LARGE


async def test_an_agent_that_hangs_times_out_and_one_that_is_absent_is_offline() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with scene(hang) as here:
        event = await here.outcome(
            timeout_ms=JUDGED_TIMEOUT_MS_MIN, promised_ms=JUDGED_TIMEOUT_MS_MIN
        )
        assert isinstance(event, AttemptFailed)
        assert event.failure.code is NodeErrorCode.AGENT_TIMEOUT
        assert not event.failure.is_spared
        absent = await here.outcome(url="http://127.0.0.1:1/node")
        assert isinstance(absent, AttemptFailed)
        assert absent.failure.code is NodeErrorCode.AGENT_UNAVAILABLE
        assert absent.failure.details == "agent_offline"
        assert here.contacts == [Contact.UNANSWERED, Contact.UNREACHABLE]


async def test_a_connection_that_breaks_after_the_request_counts_for_its_payer_alone() -> None:
    """A payer's input may be what breaks it, and three of those took the agent from everybody."""

    async def leave(request: web.Request) -> web.Response:
        await request.read()
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with scene(leave) as here:
        event = await here.outcome()
        assert isinstance(event, AttemptFailed)
        assert (event.failure.code, event.failure.is_spared) == (NodeErrorCode.AGENT_ERROR, True)
        assert here.contacts == [Contact.UNANSWERED]


@pytest.mark.parametrize("is_verification", [False, True])
async def test_a_timeout_before_the_promised_time_is_no_fault(is_verification: bool) -> None:
    """Neither stake nor reputation, and no step towards a circuit (money.md, Promised time)."""

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    terms = {"is_verification": is_verification, "verify_attempt": int(is_verification)}
    async with scene(hang) as here:
        event = await here.outcome(
            timeout_ms=JUDGED_TIMEOUT_MS_MIN, promised_ms=JUDGED_TIMEOUT_MS_MIN + 1, **terms
        )
        assert isinstance(event, AttemptFailed | VerificationFinished)
        assert event.failure is not None
        assert (event.failure.code, event.failure.is_spared) == (NodeErrorCode.AGENT_TIMEOUT, True)
        assert here.contacts == [Contact.UNKNOWN]


@pytest.mark.parametrize(("timeout_ms", "is_cut_short"), [(1, True), (1, False), (999, False)])
async def test_too_little_time_says_nothing_about_an_agent_that_is_at_work(
    timeout_ms: int, is_cut_short: bool
) -> None:
    """Three workflows with a moment left, or three time-outs of 1 ms that a payer has set, would
    open the agent's circuit for everybody."""

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with scene(hang) as here:
        event = await here.outcome(timeout_ms=timeout_ms, promised_ms=0, is_cut_short=is_cut_short)
        assert isinstance(event, AttemptFailed)
        assert event.failure.code in (NodeErrorCode.AGENT_TIMEOUT, NodeErrorCode.AGENT_UNAVAILABLE)
        assert here.contacts == [Contact.UNKNOWN]


async def test_an_address_the_policy_forbids_is_never_connected_to() -> None:
    async with scene(replying(), egress_allow=()) as here:
        event = await here.outcome()
    assert isinstance(event, AttemptFailed)
    assert event.failure.code is NodeErrorCode.POLICY_DENIED


async def test_a_name_server_that_is_silent_counts_against_no_agent() -> None:
    async with name_server() as server:
        server.is_silent = True
        names = NameResolver([server.address])
        async with scene(replying(), names=names, connect_timeout_ms=50) as here:
            failed = await here.outcome(url="http://a.good.test/node")
    assert isinstance(failed, AttemptFailed)
    assert failed.failure.is_spared
    assert here.contacts == [Contact.UNKNOWN]


async def test_an_aborted_dispatch_tells_the_agent_and_gives_no_event() -> None:
    started, cancelled = asyncio.Event(), asyncio.Queue[dict[str, Any]]()

    async def handler(request: web.Request) -> web.Response:
        if request.path.endswith("/cancel"):
            cancelled.put_nowait(await request.json())
            return web.json_response({})
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with scene(handler) as here:
        order = here.order()
        events: list[Event] = []
        here.dispatcher.send(order, lambda _, event: events.append(event))
        await asyncio.wait_for(started.wait(), PATIENCE_S)
        here.dispatcher.abort(order, "user_request")
        notice = await asyncio.wait_for(cancelled.get(), PATIENCE_S)
        assert notice == {
            "eventId": event_id(WORKFLOW, "a", 1),
            "workflowId": WORKFLOW,
            "nodeId": "a",
            "reason": "user_request",
        }
        assert [type(event) for event in events] == [WorkStarted]
        assert here.dispatcher.statistics().in_flight == 0


def _sources(result: Any) -> InputSources:
    """Return the sources of a node that maps all of a parent's list."""
    mappings = {"all": "$.p.result", "first": "$.p.result[0]"}
    return sources_of({"own": 1.0, "text": "{{first}}"}, {"p": result}, mappings)


@pytest.mark.parametrize("is_large", [False, True])
async def test_an_order_of_sources_is_sent_with_the_inputs_that_are_made_of_them(
    *, is_large: bool
) -> None:
    seen: list[dict[str, Any]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.json_response({"status": "success", "result": {}})

    result = ["é" * (BUILT_IN_LOOP_BYTES_MAX if is_large else 1), 1e300]
    async with scene(handler) as here:
        event = await here.outcome(sources=_sources(result))
        assert isinstance(event, AttemptSucceeded)
        process = here.dispatcher._value_process
        assert (process.pid is not None) is is_large
    inputs = {"all": result, "first": result[0], "own": 1.0, "text": result[0]}
    assert (seen[0]["inputs"], seen[0]["input"]) == (inputs, inputs)
    assert seen[0]["parents"] == {"p": {"result": result}}
    assert event.input_hash == hash_text(inputs)


@pytest.mark.parametrize("is_large", [False, True])
async def test_an_order_of_sources_that_lack_what_is_mapped_fails(*, is_large: bool) -> None:
    result = {"t": "x" * (BUILT_IN_LOOP_BYTES_MAX if is_large else 1)}
    async with scene(replying()) as here:
        event = await here.outcome(sources=_sources(result))
        assert isinstance(event, AttemptFailed)
        assert event.failure.code is NodeErrorCode.INPUT_MAPPING_FAILED
        assert here.dispatcher.statistics().in_flight == 0
        assert here.contacts == [Contact.UNKNOWN], "nothing was sent: it closes no circuit"


@pytest.mark.parametrize("is_large", [False, True])
async def test_an_order_of_sources_that_exceed_a_dispatch_fails(*, is_large: bool) -> None:
    result = ["x" * (BUILT_IN_LOOP_BYTES_MAX if is_large else 600)]
    async with scene(replying(), body_bytes_max=1_024) as here:
        event = await here.outcome(sources=_sources(result))
        assert isinstance(event, AttemptFailed)
        assert event.failure.code is NodeErrorCode.INPUT_TOO_LARGE


async def test_a_fenced_member_sends_nothing_until_it_may_again() -> None:
    seen: list[str] = []
    may = False

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response({"status": "success", "result": {}})

    async with scene(handler, may_send=lambda: may) as here:
        waiting = asyncio.create_task(here.outcome())
        for _ in range(10):
            await asyncio.sleep(0)
        assert here.dispatcher.statistics().in_flight == 1
        assert seen == []
        may = True
        here.dispatcher.resume()
        assert isinstance(await waiting, AttemptSucceeded)
    assert seen == ["/node"]


async def test_an_order_whose_connection_comes_about_behind_the_fence_uses_up_no_retry() -> None:
    """The ledger was away for 3 s: a node without retries failed, and its workflow with it."""
    seen: list[str] = []
    answers = iter([True, False])  # when it begins, when its connection is made

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response({"status": "success", "result": {}})

    async with scene(handler, may_send=lambda: next(answers)) as here:
        event = await here.outcome()
    assert seen == []
    assert isinstance(event, AttemptFailed)
    assert event.failure.verdict is Verdict.LOST
    assert here.contacts == [Contact.UNKNOWN]
