"""Publishes orders at peers, follows them to their ends, and cancels orders that are given up.

A peer is another deployment. In this module an order is the workflow of one node that is published
at a peer for one attempt. Its idempotency key is the `eventId` of the attempt. While the outcome of
the publish is unknown, the publish is repeated with the same key until the attempt's timeout, so
the peer stores no order twice. If the attempt ends before the order, the order is cancelled at the
peer. If the order's id is unknown here, the cancellation looks up the order by its key. When this
process ends, its open orders end at the peer by their own `maxRuntimeMs`.
Reference: features.md (Nodes at peers), money.md (Work of peers).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from actors.ports import DispatchOrder
from actors.values.reply_events import build_failed_event
from core.errors import NodeErrorCode, ServiceError
from core.ids import span_id
from core.json_text import Raw, write_json
from core.market.settlement import gross_of
from core.money import credits_number
from core.records.bounds import TIME_MS_MAX
from core.workflow.events import AttemptFailed, Event, Failure
from core.workflow.peer_orders import (
    NODE,
    REPLY_TIME_MS,
    Done,
    Failed,
    OrderTerms,
    Placed,
    busy_failure,
    find_order,
    judge_refusal,
    order_body,
    read_order,
    read_result,
    refuse_revoked,
)
from core.workflow.traces import trace_of
from core.workflow.verdict import retry_after_ms
from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure, HttpFailureKind, HttpReply, Outcome
from ledger.features.own_state import RequestSigner

log = logging.getLogger("callboard.dispatch")

# Maximum size of a peer's reply with an order's record.
RECORD_BYTES_MAX: Final = 4 * 1024 * 1024 + 256 * 1024
# Maximum size of a result that a separate request reads, because it is not in the record.
RESULT_BYTES_MAX: Final = 8 * 1024 * 1024
# Maximum time that the peer may delay its reply until an order ends, and the time for the reply.
WAIT_S_MAX, REPLY_S = 50.0, 5.0
# The pause between two requests for an order; it grows from the minimum.
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 2.0
# Maximum time that an order waits for the cancellation of the node's earlier order. It must be
# shorter than `REPLY_TIME_MS`, because the wait also delays the order's deadline at the peer.
EARLIER_S: Final = 0.5
# The pauses before the attempts to cancel an order.
CANCEL_PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
# Maximum number of orders that are being cancelled, which bounds their memory.
CANCELLED_MAX: Final = 2_000
# Failures that prove that no part of the request was sent.
_UNSENT: Final = frozenset(
    {
        HttpFailureKind.DENIED, HttpFailureKind.NOT_TRIED, HttpFailureKind.WITHHELD,
        HttpFailureKind.UNREACHABLE, HttpFailureKind.CONNECT_TIMEOUT,
    }
)  # fmt: skip

# The outcome of an order: an HTTP outcome, as for an agent, or a failure of the order at the peer.
Ended = Outcome | Failed
Answered = Callable[[Ended], None]


class _Order(Struct, eq=False):
    """An order that is being published or followed.

    `event_id`: the `eventId` of the attempt. `node`: the ids of the workflow and the node in this
    deployment. `url`: the URL of the peer's workflows. `request`: the next request, which publishes
    or reads the order. `workflow_id`: the order's id at the peer, None while unknown. `is_open`:
    the order may be unfinished at the peer, and must be cancelled when the attempt ends.
    """

    event_id: str
    node: tuple[str, str]
    terms: OrderTerms
    url: str
    request: HttpRequest
    workflow_id: str | None = None
    is_open: bool = False

    def ask(self, path: str) -> HttpRequest:
        """Return a GET request for a path below the URL of the peer's workflows."""
        return replace(self.request, method="GET", url=self.url + path, headers={}, body=None)


class PeerOrders:
    """The orders of one dispatcher to peers.

    Args:
        client: sends the requests.
        signer: signs the requests; None: there are no orders.
    """

    def __init__(self, client: HttpClient, signer: RequestSigner | None) -> None:
        self._client = client
        self._signer = signer
        self._open: dict[str, _Order] = {}  # by event id
        self._cancelling: dict[_Order, asyncio.Task[None]] = {}
        self._is_closed = False

    def close(self) -> None:
        """Stop cancelling orders."""
        self._is_closed = True
        for task in self._cancelling.values():
            task.cancel()

    def prepare(
        self, order: DispatchOrder, event_id: str, inputs: bytes, now_ms: int
    ) -> tuple[bytes, dict[str, str], Callable[..., asyncio.Task[None]]]:
        """Return the body and headers of an order's publish, and a function that sends the order.

        The function has the signature of `HttpClient.send`.

        Args:
            event_id: the `eventId` of the attempt.
            inputs: the inputs in canonical form.
            now_ms: Unix milliseconds. The time left until the workflow's end shortens the order's
                timeout, because the order may have waited here.
        """
        terms = order.peer
        assert terms is not None and self._signer is not None, "an order to an agent"
        span = span_id(order.workflow_id, order.node, order.attempt)
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "Idempotency-Key": event_id,
            "traceparent": trace_of(order.workflow_id, order.traceparent).traceparent(span),
        }
        left_ms = min(order.timeout_ms, (order.ends_ms or TIME_MS_MAX) - now_ms)
        body = order_body(terms, event_id, order.capability_id, left_ms, inputs)
        return body, headers, partial(self._send, event_id, (order.workflow_id, order.node), terms)

    def give_up(self, event_id: str) -> None:
        """Cancel an order at its peer; the order is still followed to its end."""
        order = self._open.get(event_id)
        if order is not None and order.is_open:
            self._cancel(order)

    def _send(
        self,
        event_id: str,
        node: tuple[str, str],
        terms: OrderTerms,
        request: HttpRequest,
        answered: Answered,
        taken: Callable[[], None] | None = None,
    ) -> asyncio.Task[None]:
        """Send an order and follow it to its end; cancelling the task cancels the order."""
        url = request.url.removesuffix("/publish")
        request = replace(request, reply_bytes_max=RECORD_BYTES_MAX)
        order = _Order(event_id, node, terms, url, request)
        return asyncio.get_running_loop().create_task(self._run(order, answered, taken))

    async def _run(
        self, order: _Order, answered: Answered, taken: Callable[[], None] | None
    ) -> None:
        self._open[order.event_id] = order
        try:
            outcome = await self._follow(order, taken)
        except Exception:  # the edge of one order: its attempt fails
            log.exception("order failed peer=%s event=%s", order.terms.peer_id, order.event_id)
            message = "the order failed inside the service"
            outcome = HttpFailure(HttpFailureKind.NOT_TRIED, message)
        finally:
            del self._open[order.event_id]
            if order.is_open:
                self._cancel(order)
        answered(outcome)

    async def _follow(self, order: _Order, taken: Callable[[], None] | None) -> Ended:
        """Follow an order until it ends or the attempt's timeout is over; return the outcome.

        1. Wait at most `EARLIER_S` for the cancellation of the node's earlier order, which holds
        credits at the peer. If that takes longer, another candidate gets the node. 2. Publish or
        read the order; the peer may delay its reply until the order ends. 3. No reply: if no
        request of the order was ever sent, return the failure. 4. A success: the reply has the
        order's end or its id. 5. A refusal. After the first 401, sign again with keys read anew. If
        the peer refuses another waiting request (429), poll the order. 6. Pause, then repeat 2.
        """
        loop, timeout_s = asyncio.get_running_loop(), order.request.timeout_s
        ends_s = loop.time() + timeout_s
        pause_s, has_renewed, may_wait = PAUSE_S_MIN, False, True
        may_be_away = taken is None  # the upload of a large request alone may reach the timeout
        earlier = [task for one, task in self._cancelling.items() if one.node == order.node]
        if earlier:  # 1
            _, open_ones = await asyncio.wait(earlier, timeout=EARLIER_S)
            if open_ones:
                return Failed(busy_failure(order.terms))
        while (left_s := ends_s - loop.time()) > 0:
            was_open, order.is_open = order.is_open, True
            is_waiting = may_wait and taken is None
            reply = await self._ask(order, left_s, is_waiting=is_waiting)  # 2
            may_be_away &= isinstance(reply, HttpFailure)
            if isinstance(reply, HttpFailure):  # 3
                if reply.kind is HttpFailureKind.TOO_LARGE:
                    return _too_large(order.terms)
                if reply.kind in _UNSENT and not was_open:
                    order.is_open = False
                    return reply
            elif reply.status < 300:  # 4
                read = read_order(reply.body, order.terms, order.event_id, order.workflow_id)
                if isinstance(read, Placed):
                    order.workflow_id = read.workflow_id
                    order.request = order.ask(f"/{read.workflow_id}")
                    if taken is not None:
                        taken()
                        taken = None
                        continue
                elif isinstance(read, Failed):
                    order.is_open = _is_invalid_reply(read)
                    return read
                elif (accepted := await self._accept(read, order)) is not None:
                    order.is_open = isinstance(accepted, Failed) and _is_invalid_reply(accepted)
                    return accepted
            elif reply.status == 401 and not has_renewed:  # 5
                assert self._signer is not None
                self._signer.forget()
                order.is_open, has_renewed = was_open, True
                continue
            elif reply.status == 429 and is_waiting:
                order.is_open, may_wait = was_open, False
                continue
            else:
                after_ms = retry_after_ms(reply.header(b"retry-after"), 0)
                refused = judge_refusal(
                    reply.status, reply.body, after_ms, order.terms, is_stored=was_open
                )
                if refused is not None:
                    order.is_open = was_open
                    return refused
            last_s = ends_s - loop.time() - REPLY_TIME_MS / 2_000  # by then it has ended there
            await asyncio.sleep(min(pause_s, max(PAUSE_S_MIN, last_s)))  # 6
            pause_s = min(
                2 * pause_s, max(PAUSE_S_MAX, 0.0 if may_wait else (timeout_s - left_s) / 8)
            )
        # A timeout shorter than the connect timeout does not show that the peer is unreachable.
        is_away = may_be_away and timeout_s >= order.request.connect_timeout_s
        kind = HttpFailureKind.UNREACHABLE if is_away else HttpFailureKind.TIMEOUT
        return HttpFailure(kind, f"no answer from the peer within {timeout_s:g} s")

    async def _accept(self, done: Done, order: _Order) -> HttpReply | Failed | None:
        """Return the reply for an order that succeeded, or a failure if its result is not accepted.

        The result is not accepted if it is invalid, or if the agent at the peer is revoked.

        Returns:
            None while the ledger is unavailable, or while the peer does not return the result.
        """
        assert self._signer is not None
        terms = order.terms
        if not done.result:
            request = order.ask(f"/{done.workflow_id}/nodes/{NODE}/result")
            request = replace(request, reply_bytes_max=RESULT_BYTES_MAX)
            reply = await self._request(request, {}, REPLY_S)
            if not isinstance(reply, HttpReply) or reply.status != 200:
                return None
            read = read_result(reply.body, done, terms)
            if isinstance(read, Failed):
                return read
            done = read
        try:
            if done.agent_did and await self._signer.is_revoked(terms.peer_id, done.agent_did):
                return refuse_revoked(terms, done)
        except ServiceError:
            return None
        return _reply_of(done, terms)

    async def _ask(self, order: _Order, left_s: float, *, is_waiting: bool) -> Outcome:
        """Publish the order or read it, with the order's next request.

        Args:
            is_waiting: ask the peer to reply when the order ends. False for the publish of a large
                order: its body stays in memory until the reply.
        """
        wait_s = min(WAIT_S_MAX, left_s) if is_waiting else 0.0
        prefer = {"Prefer": f"wait={wait_s:.3f}"} if is_waiting else {}
        return await self._request(order.request, prefer, min(left_s, wait_s + REPLY_S))

    async def _request(
        self, request: HttpRequest, headers: dict[str, str], timeout_s: float
    ) -> Outcome:
        assert self._signer is not None
        try:
            signed = await self._signer.headers(request.method, request.url, request.body or b"")
        except ServiceError as error:  # the ledger is unavailable
            return HttpFailure(HttpFailureKind.NOT_TRIED, str(error))
        headers = {**request.headers, **headers, **signed}
        asked = replace(request, headers=headers, timeout_s=timeout_s)
        return await self._client.request(asked)

    # -- cancelling -------------------------------------------------------------------------------

    def _cancel(self, order: _Order) -> None:
        """Start to cancel an order at its peer, unless too many orders are being cancelled."""
        if self._is_closed or order in self._cancelling:
            return
        if len(self._cancelling) >= CANCELLED_MAX:
            log.warning(
                "too many orders to cancel peer=%s event=%s", order.terms.peer_id, order.event_id
            )
            return
        task = asyncio.get_running_loop().create_task(self._cancel_now(order))
        self._cancelling[order] = task
        task.add_done_callback(lambda _: self._cancelling.pop(order))

    async def _cancel_now(self, order: _Order) -> None:
        find = order.ask(f"?idempotencyKey={quote(order.event_id, safe='')}")
        for pause_s in CANCEL_PAUSES_S:
            await asyncio.sleep(pause_s)
            if order.workflow_id is None:
                reply = await self._request(find, {}, REPLY_S)
                if isinstance(reply, HttpReply) and reply.status < 300:
                    order.workflow_id = find_order(reply.body, order.event_id) or order.workflow_id
                if order.workflow_id is None:
                    continue  # the publish may still arrive
            request = replace(
                find,
                method="POST",
                url=f"{order.url}/{order.workflow_id}/cancel",
                headers={"Content-Type": "application/json"},
                body=write_json({"reason": "user_request", "details": "given up by the payer"}),
            )
            reply = await self._request(request, {}, REPLY_S)
            if isinstance(reply, HttpReply) and reply.status in (200, 404, 409):
                order.is_open = False
                return
            if isinstance(reply, HttpReply) and reply.status == 401:
                assert self._signer is not None
                self._signer.forget()
        if order.workflow_id is not None:
            log.warning(
                "order not cancelled peer=%s event=%s workflow=%s",
                order.terms.peer_id,
                order.event_id,
                order.workflow_id,
            )


def build_peer_failure(order: DispatchOrder, failed: Failed, started_ms: int, at_ms: int) -> Event:
    """Return the event of an order that failed at its peer.

    Args:
        started_ms: when the order was sent, Unix milliseconds.
        at_ms: when the order failed, Unix milliseconds.
    """
    event = build_failed_event(order, failed.failure, started_ms, at_ms)
    if failed.charged_micro and isinstance(event, AttemptFailed):
        assert order.peer is not None
        return replace(event, charged_micro=gross_of(failed.charged_micro, order.peer.fee_bps))
    return event


def _reply_of(done: Done, terms: OrderTerms) -> HttpReply:
    """Return the HTTP reply that an agent would have sent for this result."""
    charged = credits_number(done.charged_micro)
    place = {"peerId": terms.peer_id, "workflowId": done.workflow_id, "chargedCredits": charged}
    metrics = {"peer": place}
    body = {"status": "success", "result": Raw(done.result), "metrics": metrics}
    return HttpReply(200, {b"content-type": b"application/json"}, write_json(body))


def _is_invalid_reply(failed: Failed) -> bool:
    return failed.failure.code is NodeErrorCode.INVALID_REPLY


def _too_large(terms: OrderTerms) -> Failed:
    message = f"the record at the peer {terms.peer_id} is larger than {RECORD_BYTES_MAX} bytes"
    return Failed(Failure(NodeErrorCode.RESULT_TOO_LARGE, message))
