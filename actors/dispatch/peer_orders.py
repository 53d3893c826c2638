"""Orders to peers: publishes them, waits for their ends, and cancels those that are given up.

An order has the `eventId` of its attempt as its idempotency key. While its outcome is unknown, the
same request is sent again with the same key, until the attempt's time is over; so no order is
stored twice. An order whose attempt has ended here is cancelled at the peer; if its id is not
known, it is looked up by the key. What a process that ends leaves open ends there by its own
`maxRuntimeMs`. Reference: features.md (Nodes at peers), money.md (Work of peers).
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

# The largest record that a peer shows with its result.
RECORD_BYTES_MAX: Final = 4 * 1024 * 1024 + 256 * 1024
# Of a result for which a record has no room, because its inputs or the result are too large.
RESULT_BYTES_MAX: Final = 8 * 1024 * 1024
# How long one request waits for the end of an order, and how much longer for its reply.
WAIT_S_MAX, REPLY_S = 50.0, 5.0
# Between two requests of an order that were answered at once, or not at all.
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 2.0
# How long an order waits for the end of an earlier one; less than `REPLY_TIME_MS`, as it ends there
# later by that time.
EARLIER_S: Final = 0.5
# Before each try to cancel an order.
CANCEL_PAUSES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
# Orders that are being cancelled: a bound for memory.
CANCELLED_MAX: Final = 2_000
# Nothing of such a request has been sent.
_UNSENT: Final = frozenset(
    {
        HttpFailureKind.DENIED, HttpFailureKind.NOT_TRIED, HttpFailureKind.WITHHELD,
        HttpFailureKind.UNREACHABLE, HttpFailureKind.CONNECT_TIMEOUT,
    }
)  # fmt: skip

# How an order has ended: as one to an agent, or as its peer says.
Ended = Outcome | Failed
Answered = Callable[[Ended], None]


class _Order(Struct, eq=False):
    """An order on its way.

    `node`: the workflow and the node here. `url`: of the peer's workflows. `request`: the next one,
    which publishes the order, or waits for its end. `is_open`: the peer may hold the order
    unfinished, so it must be cancelled when the attempt ends.
    """

    event_id: str
    node: tuple[str, str]
    terms: OrderTerms
    url: str
    request: HttpRequest
    workflow_id: str | None = None
    is_open: bool = False

    def ask(self, path: str) -> HttpRequest:
        """Return a GET of a path below the peer's workflows."""
        return replace(self.request, method="GET", url=self.url + path, headers={}, body=None)


class PeerOrders:
    """The orders of one dispatcher.

    Args:
        client: sends the requests.
        signer: signs them; None: there are no orders.
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
        """Return the body and headers of an order's publish, and what sends it as a client does.

        Args:
            event_id: the attempt's.
            inputs: in canonical form.
            now_ms: Unix milliseconds. An order that has waited here has less than its timeout left,
                if its workflow ends before.
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
        """Cancel an order at its peer, and go on waiting for its end."""
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
        """Return the outcome of an order: of its reply when it has ended, else why there is none.

        1. An earlier order of the node that is being cancelled ends first: it holds credits there.
        If that takes longer than a moment, another candidate gets the node. 2. Ask, and wait for
        the order's end. 3. No reply: if nothing was ever sent, the peer is out of reach; else ask
        again. 4. The order's end, or its id. 5. A refusal. The peer lets few requests wait: if one
        more may not, this order is polled. 6. After a pause the next request, until the attempt's
        time is over.
        """
        loop, timeout_s = asyncio.get_running_loop(), order.request.timeout_s
        ends_s = loop.time() + timeout_s
        pause_s, has_renewed, may_wait = PAUSE_S_MIN, False, True
        may_be_away = taken is None  # a large request may take its time
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
                    order.is_open = _is_lie(read)
                    return read
                elif (accepted := await self._accept(read, order)) is not None:
                    order.is_open = isinstance(accepted, Failed) and _is_lie(accepted)
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
            last_s = ends_s - loop.time() - REPLY_TIME_MS / 2_000  # the order has ended there
            await asyncio.sleep(min(pause_s, max(PAUSE_S_MIN, last_s)))  # 6
            pause_s = min(
                2 * pause_s, max(PAUSE_S_MAX, 0.0 if may_wait else (timeout_s - left_s) / 8)
            )
        # A shorter timeout says nothing of the peer.
        is_away = may_be_away and timeout_s >= order.request.connect_timeout_s
        kind = HttpFailureKind.UNREACHABLE if is_away else HttpFailureKind.TIMEOUT
        return HttpFailure(kind, f"no answer from the peer within {timeout_s:g} s")

    async def _accept(self, done: Done, order: _Order) -> HttpReply | Failed | None:
        """Return what an agent would have replied, or a failure: the peer's agent is revoked.

        Returns: None while the ledger is unavailable, or the peer does not give the result.
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
        """Publish the order, or read it.

        Args:
            is_waiting: the reply may come as late as the order's end. A large order's publish is
                answered at once, because the request stays in memory until then.
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
        """Cancel an order at its peer, in the background, as far as there is room."""
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
        started_ms: when it was sent.
        at_ms: when it failed.
    """
    event = build_failed_event(order, failed.failure, started_ms, at_ms)
    if failed.charged_micro and isinstance(event, AttemptFailed):
        assert order.peer is not None
        return replace(event, charged_micro=gross_of(failed.charged_micro, order.peer.fee_bps))
    return event


def _reply_of(done: Done, terms: OrderTerms) -> HttpReply:
    """Return what an agent would have replied."""
    charged = credits_number(done.charged_micro)
    place = {"peerId": terms.peer_id, "workflowId": done.workflow_id, "chargedCredits": charged}
    metrics = {"peer": place}
    body = {"status": "success", "result": Raw(done.result), "metrics": metrics}
    return HttpReply(200, {b"content-type": b"application/json"}, write_json(body))


def _is_lie(failed: Failed) -> bool:
    return failed.failure.code is NodeErrorCode.INVALID_REPLY


def _too_large(terms: OrderTerms) -> Failed:
    message = f"the record at the peer {terms.peer_id} is larger than {RECORD_BYTES_MAX} bytes"
    return Failed(Failure(NodeErrorCode.RESULT_TOO_LARGE, message))
