"""Requests to agents over HTTP, from the loop of whoever holds the order.

Knows aiohttp, signatures and limits; knows nothing of workflows beyond the order it was given, and
judges no reply itself (`core/workflow/verdict.py` does). Every order is answered by exactly one
event unless it is aborted. Spec: Dispatch request, Dispatch response, Authentication 3; contract.md
section 5; design.md section 3.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
import orjson

from actors.blobs import Blobs, by_reference
from actors.orders import with_inputs
from actors.ports import Clock, DispatchOrder
from actors.replies import event_of, offline
from core.canonical import canonical, hash_bytes
from core.errors import NodeErrorCode
from core.ids import event_id, result_id, span_id, trace_id
from core.settings import Settings
from core.trust.signing import sign_body
from core.workflow.events import Event, Failure, Verdict, WorkStarted
from core.workflow.verdict import Accepted, Success, judge_reply
from federation.egress import EgressDenied, gated_socket_factory

Receive = Callable[[str, Event], None]
OrderId = tuple[str, str, int, int]

PROTOCOL_VERSION = "0.4"
# Notices that wait, enough for one workflow of the largest size, and those under way at once.
CANCELS_MAX = 2_000
CANCELS_AT_ONCE = 64
# A full dispatcher grows only while agents are slow: with fast ones more sockets gain nothing.
SLOW_REPLY_MS = 20


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    """Counters since the dispatcher was made."""

    sent: int
    in_flight: int
    in_flight_limit: int
    queued: int


class Dispatcher:
    """Sends orders within a limit of attempts in flight; the rest waits in order.

    Args:
        settings: service name, deployment key, egress allow-list and bounds.
        clock: wall time.
        blobs: where large results are; None: results of any size travel as they are.
        note: told (did, is_reachable) when an attempt closes, and `begin(did)` when it opens.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        begin: Callable[[str], None],
        note: Callable[[str, bool], None],
        blobs: Blobs | None = None,
    ) -> None:
        self._settings = settings
        self._service = settings.service
        self._key = bytes.fromhex(settings.deployment_key)
        self._clock = clock
        self._begin = begin
        self._note = note
        self._blobs = blobs
        self._limit = settings.inflight_start
        self._waiting: OrderedDict[OrderId, tuple[DispatchOrder, Receive]] = OrderedDict()
        self._open: dict[OrderId, asyncio.Task[None]] = {}
        self._notices: set[asyncio.Task[None]] = set()
        self._notice_turns = asyncio.Semaphore(CANCELS_AT_ONCE)
        self._sent = 0
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=30,
            socket_factory=gated_socket_factory(settings.egress_allow),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"<Dispatcher open={len(self._open)} waiting={len(self._waiting)}>"

    def statistics(self) -> DispatchStatistics:
        """Return the counters."""
        return DispatchStatistics(self._sent, len(self._open), self._limit, len(self._waiting))

    @property
    def has_room(self) -> bool:
        """Whether an order would leave at once without growing the limit to its maximum."""
        return len(self._open) < self._settings.inflight_max

    def send(self, order: DispatchOrder, receive: Receive) -> None:
        """Send the order as soon as the limit allows; `receive` gets its events."""
        if len(self._open) < self._limit:
            self._start(order, receive)
        else:
            self._waiting[_order_id(order)] = (order, receive)

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Stop waiting for the order's reply, or never send it; tell the agent if it was sent.

        One that is neither open nor waiting was accepted: the agent works on without a request.
        """
        if self._waiting.pop(_order_id(order), None) is not None:
            return
        task = self._open.get(_order_id(order))
        if task is not None:
            task.cancel()
        self.notify(order, reason)

    def notify(self, order: DispatchOrder, reason: str) -> None:
        """Tell the agent that the output is not wanted, once, best effort (spec: Events 3)."""
        if len(self._notices) < CANCELS_MAX:
            notice = asyncio.get_running_loop().create_task(self._notify_cancel(order, reason))
            self._notices.add(notice)
            notice.add_done_callback(self._notices.discard)

    async def close(self) -> None:
        """Cancel everything in flight and close the connections."""
        for task in list(self._open.values()) + list(self._notices):
            task.cancel()
        await self._session.close()

    # -- one order --------------------------------------------------------------------------------

    def _start(self, order: DispatchOrder, receive: Receive) -> None:
        task = asyncio.get_running_loop().create_task(self._perform(order, receive))
        self._open[_order_id(order)] = task
        self._sent += 1

    def _start_waiting(self) -> None:
        while self._waiting and len(self._open) < self._limit:
            _, (order, receive) = self._waiting.popitem(last=False)
            self._start(order, receive)

    async def _perform(self, order: DispatchOrder, receive: Receive) -> None:
        self._begin(order.agent_did)
        is_reachable = True
        started_ms = self._clock.now_ms()
        try:
            if not order.is_verification:
                receive(order.workflow_id, WorkStarted(order.node, order.attempt, started_ms))
            reply, is_reachable, input_hash = await self._reply(order, started_ms)
            at_ms = self._clock.now_ms()
            if at_ms - started_ms > SLOW_REPLY_MS and self._waiting:
                self._limit = min(self._limit + 1, self._settings.inflight_max)
            event = event_of(order, reply, input_hash, started_ms, at_ms)
            if self._blobs is not None:
                # Within the limit of orders in flight, which bounds the bytes that wait here.
                event = await by_reference(
                    event, self._blobs, self._settings.result_inline_bytes_max
                )
        finally:
            self._open.pop(_order_id(order), None)
            self._note(order.agent_did, is_reachable)
            self._start_waiting()
        receive(order.workflow_id, event)

    async def _reply(
        self, order: DispatchOrder, started_ms: int
    ) -> tuple[Success | Accepted | Failure, bool, str]:
        """As `_post`, for orders whose inputs may still have to be loaded."""
        if order.large is not None:
            assert self._blobs is not None, "a large result was stored without a store"
            bytes_max = self._settings.dispatch_body_bytes_max
            complete = await with_inputs(order, self._blobs.values, bytes_max)
            if isinstance(complete, Failure):
                return complete, True, ""
            order = complete
        return await self._post(order, started_ms)

    async def _post(
        self, order: DispatchOrder, started_ms: int
    ) -> tuple[Success | Accepted | Failure, bool, str]:
        """Send the request; return the judged reply, whether the agent was reachable, the hash."""
        try:
            inputs = canonical(order.inputs)
        except ValueError as error:
            return (
                Failure(NodeErrorCode.INPUT_MAPPING_FAILED, str(error), Verdict.FINAL),
                True,
                "",
            )
        input_hash = hash_bytes(inputs)
        event = event_id(order.workflow_id, order.node, order.attempt)
        if order.is_verification:
            event += "#verify"
        body = self._body(order, inputs, event, started_ms)
        bytes_max = self._settings.dispatch_body_bytes_max
        if len(body) > bytes_max:
            message = f"the dispatch has {len(body)} bytes, limit {bytes_max}"
            return Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL), True, input_hash
        timeout = aiohttp.ClientTimeout(
            total=order.timeout_ms / 1000,
            sock_connect=min(order.timeout_ms, self._settings.connect_timeout_ms) / 1000,
        )
        try:
            async with self._session.post(
                order.url,
                data=body,
                headers=self._headers(order, body, event),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                reply_body = await self._read(response)
                if reply_body is None:
                    message = (
                        f"the reply is larger than {self._settings.agent_reply_bytes_max} bytes"
                    )
                    return Failure(NodeErrorCode.RESULT_TOO_LARGE, message), True, input_hash
                verdict = judge_reply(
                    response.status,
                    response.headers.get("Content-Type", ""),
                    reply_body,
                    event_id=event,
                    capability_id=order.capability_id,
                    retry_after=response.headers.get("Retry-After"),
                )
                return verdict, True, input_hash
        except aiohttp.ConnectionTimeoutError:
            return offline(order, "the connection was not accepted in time"), False, input_hash
        except TimeoutError:
            message = f"no reply within {order.timeout_ms} ms"
            return Failure(NodeErrorCode.AGENT_TIMEOUT, message), False, input_hash
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, EgressDenied):
                message = f"the egress policy forbids {order.agent_did}: {error.os_error.reason}"
                return (
                    Failure(NodeErrorCode.POLICY_DENIED, message, Verdict.FINAL),
                    True,
                    input_hash,
                )
            return offline(order, "the connection was refused"), False, input_hash
        except (aiohttp.ClientError, OSError) as error:
            message = f"the connection broke: {type(error).__name__}"
            return Failure(NodeErrorCode.AGENT_ERROR, message), False, input_hash

    async def _read(self, response: aiohttp.ClientResponse) -> bytes | None:
        """Return the body, or None when it is larger than the limit (the rest is not read)."""
        limit = self._settings.agent_reply_bytes_max
        if response.content_length is not None and response.content_length <= limit:
            return await response.read()
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > limit:
                response.close()
                return None
            chunks.append(chunk)
        return b"".join(chunks)

    def _body(self, order: DispatchOrder, inputs: bytes, event: str, started_ms: int) -> bytes:
        fragment = orjson.Fragment(inputs)
        token = result_id(
            self._key, order.workflow_id, order.node, order.attempt, order.verify_attempt
        )
        return orjson.dumps(
            {
                "eventId": event,
                "timestamp": iso_ms(started_ms),
                "workflowId": order.workflow_id,
                "taskId": order.task_id,
                "nodeId": order.node,
                "attempt": order.attempt,
                "capabilityId": order.capability_id,
                "capability": order.capability_id,
                "inputs": fragment,
                "input": fragment,
                "parents": order.parents,
                "resultId": token,
                "meta": {},
            }
        )

    def _headers(self, order: DispatchOrder, body: bytes, event: str) -> dict[str, str]:
        prefix = f"x-{self._service}"
        span = span_id(order.workflow_id, order.node, order.attempt)
        headers = {
            "Content-Type": "application/json",
            f"{prefix}-event": "node.dispatch",
            f"{prefix}-event-id": event,
            f"{prefix}-workflow-id": order.workflow_id,
            f"{prefix}-node-id": header_text(order.node),
            f"{prefix}-protocol-version": PROTOCOL_VERSION,
            "traceparent": f"00-{trace_id(order.workflow_id)}-{span}-01",
        }
        if order.secret is not None:
            headers[f"{prefix}-signature"] = sign_body(body, order.secret)
        return headers

    async def _notify_cancel(self, order: DispatchOrder, reason: str) -> None:
        body = orjson.dumps(
            {
                "eventId": event_id(order.workflow_id, order.node, order.attempt),
                "workflowId": order.workflow_id,
                "nodeId": order.node,
                "reason": reason,
            }
        )
        headers = {"Content-Type": "application/json", f"x-{self._service}-event": "node.cancel"}
        if order.secret is not None:
            headers[f"x-{self._service}-signature"] = sign_body(body, order.secret)
        timeout = aiohttp.ClientTimeout(total=self._settings.cancel_notice_timeout_ms / 1000)
        try:
            async with (
                self._notice_turns,
                self._session.post(
                    order.cancel_url,
                    data=body,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                ),
            ):
                pass
        except (aiohttp.ClientError, TimeoutError, OSError):
            # Best effort by contract: the agent learns it from the 409 of its late reply otherwise.
            return


def iso_ms(at_ms: int) -> str:
    """Return a time in milliseconds as `YYYY-MM-DDTHH:MM:SS.sssZ`."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def header_text(value: str) -> str:
    """Return a node name as a header value: characters outside visible ASCII are escaped."""
    return value.encode("ascii", "backslashreplace").decode()


def _order_id(order: DispatchOrder) -> OrderId:
    return order.workflow_id, order.node, order.attempt, order.verify_attempt
