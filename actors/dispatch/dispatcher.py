"""Sends dispatch orders to agents over HTTP, from the event loop of this process.

An order (`DispatchOrder`) is one complete request to one agent. The dispatcher reads no workflow
state, and `core/workflow/verdict.py` judges the replies. Every order gets exactly one final event,
unless it is ended first. Callbacks move an order from step to step. Only steps that read, validate
or store large values run in a task. Reference: features.md (Dispatch, Dispatch signatures).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from actors.dispatch.agent_queue import AGED_MS, AgentQueues
from actors.dispatch.cancel_notices import CancelNotices
from actors.dispatch.envelope import dispatch_body, dispatch_headers, sent_event_id
from actors.dispatch.http_failures import judge_failure, unavailable_failure
from actors.dispatch.large_results import Blobs, large_body, store_large_result
from actors.dispatch.order_inputs import (
    UNTIMED_BYTES_MAX,
    OrderInputs,
    build_in_child,
    build_in_loop,
    is_small,
)
from actors.dispatch.peer_orders import Ended, PeerOrders, build_peer_failure
from actors.dispatch.ticket import DEFAULT_LIMITS, DispatchLimits, Receive, Ticket
from actors.ports import Clock, Contact, DispatchOrder, InputSources
from actors.process.at_work import AtWork
from actors.process.slices import SLICE_MS, run_in_slices
from actors.values.agent_schemas import AgentSchemas
from actors.values.reply_events import (
    ReceivedReply,
    build_failed_event,
)
from actors.values.schema_checks import SchemaChecks
from actors.values.value_process import ValueProcess
from core.errors import NodeErrorCode
from core.market.no_candidates import UNHEALTHY
from core.market.sharing.fair_queue import parse_weights
from core.market.sharing.fair_share import HARD, Held, has_room
from core.records.bounds import AGENT_REPLY_BYTES_MAX
from core.settings import Settings
from core.workflow.events import (
    AttemptAccepted,
    BlobRef,
    Event,
    Failure,
    Verdict,
    WorkStarted,
)
from core.workflow.peer_orders import Failed
from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import Exchange, HttpFailure, HttpFailureKind
from federation.name_resolver import NameResolver
from ledger.features.own_state import RequestSigner

log = logging.getLogger("callboard.dispatch")


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    """Counters of a dispatcher; `judged_in_child`: replies that the value process judged."""

    sent: int
    in_flight: int
    queued: int
    accepted: int
    judged_in_child: int


class Dispatcher:
    """Queues orders in `AgentQueues` and sends them.

    Args:
        settings: service name, deployment keys, egress allow-list and bounds.
        clock: wall time.
        blobs: the store of large results; None: events contain results of any size.
        names: resolves the host names of agents; `close` closes it.
        begin: receives an agent's DID when an order for the agent arrives.
        note: receives an order and its `Contact`, once for each call of `begin`.
        at_work: records the workflow whose order is being processed.
        concurrency_of: returns how many orders of this process an agent may have open or held.
        valid_keys: returns an agent's valid public keys; empty for an agent unknown here.
        may_send: says whether this process may send now; if not, open orders wait for `resume`.
        schemas: the agents' schemas; orders contain the names of schemas.
        signer: signs orders to peers; None: there are no orders to peers.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        begin: Callable[[str], None],
        note: Callable[[DispatchOrder, Contact], None],
        names: NameResolver,
        at_work: AtWork,
        concurrency_of: Callable[[str], int] | None = None,
        blobs: Blobs | None = None,
        valid_keys: Callable[[str], tuple[str, ...]] = lambda _: (),
        may_send: Callable[[], bool] = lambda: True,
        schemas: AgentSchemas | None = None,
        limits: DispatchLimits = DEFAULT_LIMITS,
        signer: RequestSigner | None = None,
    ) -> None:
        self._limits = limits
        self._service = settings.service
        self._keys = settings.deployment_keys
        self._clock = clock
        self._begin = begin
        self._note = note
        self._blobs = blobs
        self._valid_keys = valid_keys
        self._may_send = may_send
        self._at_work = at_work
        # Receives the DID of an agent when an order for it is queued.
        self.on_waiting: Callable[[str], None] = lambda _: None
        weights = parse_weights(settings.payer_weights)
        self._large = Held()  # large orders, by payer

        def weight_of(payer: str) -> int:
            return weights.get(payer, 1)

        self._queues: AgentQueues[Ticket] = AgentQueues(
            limits.inflight_start,
            limits.inflight_max,
            concurrency_of or (lambda _: settings.agent_concurrency),
            weight_of,
            limits.inflight_share,
            self._may_open,
        )
        self._value_process = ValueProcess(weight_of)
        self.checks = SchemaChecks(schemas or AgentSchemas(), self._value_process, self._load)
        self._tickets: dict[int, Ticket] = {}  # by `id()` of the order
        self._open: set[Ticket] = set()
        # Open orders whose request is not built yet.
        self._beginning: OrderedDict[Ticket, None] = OrderedDict()
        self._begins: asyncio.Handle | None = None
        self._large_turn = asyncio.Lock()
        self._resumed = asyncio.Event()
        self._starved_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._refusing: dict[tuple[str, str | None], asyncio.Task[None]] = {}
        self._sent = 0
        self._client = HttpClient(settings.egress_allow, names, may_write=may_send)
        self._notices = CancelNotices(self._service, self._client, limits)
        self._peer_orders = PeerOrders(self._client, signer)

    def statistics(self) -> DispatchStatistics:
        """Return the dispatcher's counters."""
        queues, judged = self._queues, self._value_process.judged
        return DispatchStatistics(
            self._sent, queues.open_count, queues.waiting, queues.held_count, judged
        )

    @property
    def waiting(self) -> int:
        """Return the number of queued orders."""
        return self._queues.waiting

    @property
    def open_calls(self) -> int:
        """Return the number of open and queued orders, without accepted ones."""
        return self._queues.open_count + self._queues.waiting

    def waiting_of(self, payer: str) -> int:
        """Return the number of queued orders of a payer."""
        return self._queues.waiting_of(payer)

    def waiting_agents(self) -> list[str]:
        """Return the DIDs of the agents that have queued orders."""
        return self._queues.waiting_agents()

    def wake(self) -> None:
        """Send queued orders after the owner's shares of agents have changed."""
        for did in self._queues.waiting_agents():
            self._queues.wake(did)
        self._start_waiting()

    def has_waiting(self, did: str) -> bool:
        """Say whether an agent has queued orders."""
        return self._queues.waiting_for(did) > 0

    def may_hand_out(self, did: str) -> bool:
        """Say whether an agent has queued orders for which capacity or a socket is missing here."""
        return self._queues.is_full(did) or (not self.has_room and self.has_waiting(did))

    def hand_out(self, did: str) -> tuple[DispatchOrder, Receive] | None:
        """Remove and return an agent's next queued order; None if its queue is empty."""
        ticket = self._queues.take_waiting(did)
        if ticket is None:
            return None
        self._forget(ticket, Contact.UNKNOWN)
        return ticket.order, ticket.receive

    @property
    def has_room(self) -> bool:
        """Say whether fewer orders are open than a single payer may open."""
        limits = self._limits
        return self._queues.open_count < limits.inflight_max // limits.inflight_share

    def send(self, order: DispatchOrder, receive: Receive) -> None:
        """Send an order when its agent and the limits permit; `receive` gets the order's events."""
        ticket = self._make_ticket(order, receive)
        did = order.agent_did
        self._tickets[id(order)] = ticket
        self._begin(did)
        if self._queues.put(did, order.payer_did, ticket, self._clock.now_ms()):
            self._start(ticket)
        else:
            self.on_waiting(did)
            self._schedule_starved_retry()

    def send_now(self, order: DispatchOrder, receive: Receive) -> bool:
        """Send the order if it need not wait; otherwise change nothing and return False."""
        ticket = self._make_ticket(order, receive)
        did, now_ms = order.agent_did, self._clock.now_ms()
        if not self._queues.open(did, order.payer_did, ticket, now_ms):
            return False
        self._tickets[id(order)] = ticket
        self._begin(did)
        self._start(ticket)
        return True

    def _make_ticket(self, order: DispatchOrder, receive: Receive) -> Ticket:
        assert order.sources is not None, "an order that is held elsewhere was sent"
        return Ticket(order, receive, is_large=not is_small(order.sources))

    def hold(self, order: DispatchOrder) -> None:
        """Hold an order that another process has sent and the agent has accepted (202)."""
        ticket = self._tickets[id(order)] = Ticket(order, _receive_unexpected)
        self._begin(order.agent_did)
        self._queues.hold(order.agent_did, ticket)
        self._release_in(ticket, order.timeout_ms)

    def release(self, order: DispatchOrder) -> None:
        """Free the capacity of a held order, or remove a queued one.

        An open request goes on, and its reply is delivered. If the agent then accepts the order
        (202), the order is closed instead of held.
        """
        ticket = self._tickets.get(id(order))
        if ticket is None:
            return
        if ticket.until is not None:
            ticket.until.cancel()
            self._queues.release(ticket)
            self._forget(ticket, Contact.UNKNOWN)
            self._start_waiting()
        elif self._queues.drop(order.agent_did, ticket):
            self._forget(ticket, Contact.UNKNOWN)
        else:
            ticket.is_over = True

    def withdraw(self, order: DispatchOrder) -> bool:
        """Drop an order that is not sent yet; return False if it was sent or has ended."""
        ticket = self._tickets.get(id(order))
        if ticket is None or ticket.is_sent or ticket.until is not None:
            return False
        self.cancel(order)
        return True

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Cancel the order; send the agent a cancel notice if the order may have reached it."""
        if self.cancel(order):
            self.notify(order, reason)

    def cancel(self, order: DispatchOrder) -> bool:
        """Close the order's request, or drop the order before it is sent.

        Returns: whether the agent may have received the order, and so may need a cancel notice.
        """
        ticket = self._tickets.get(id(order))
        self.release(order)
        if ticket is None or ticket.until is not None:
            return True
        if ticket not in self._open:
            return False  # it was queued and never sent
        self._stop(ticket)
        self._close(ticket, Contact.UNKNOWN)
        return ticket.is_sent

    def refuse_waiting(self, did: str, payer_did: str | None = None) -> None:
        """Fail all queued orders for an agent whose circuit has opened.

        This runs in slices: each failure is a step of a workflow, and 100,000 orders may wait.

        Args:
            payer_did: the payer whose orders fail, if the circuit opened for one payer; None: all.
        """
        refused = (did, payer_did)
        if refused in self._refusing:
            return
        task = asyncio.get_running_loop().create_task(run_in_slices(self._refusals(*refused)))
        self._refusing[refused] = task
        task.add_done_callback(lambda _: self._refusing.pop(refused, None))

    def _refusals(self, did: str, payer_did: str | None) -> Iterator[None]:
        # Orders that arrive later do not fail: their agent was selected after the circuit opened.
        for _ in range(self._queues.waiting_for(did, payer_did)):
            ticket = self._queues.take_waiting(did, payer_did)
            if ticket is not None:
                self._forget(ticket, Contact.UNKNOWN)
                order, now_ms = ticket.order, self._clock.now_ms()
                message = "the agent's circuit opened while this dispatch was queued"
                failure = unavailable_failure(order, message, UNHEALTHY, is_declined=True)
                event = build_failed_event(order, failure, now_ms, now_ms)
                deliver_event(order, ticket.receive, event)
            yield

    def resume(self) -> None:
        """Begin the open orders that waited until this process may send."""
        self._resumed.set()
        if self._beginning and self._begins is None:
            self._begins = asyncio.get_running_loop().call_soon(self._begin_orders)

    def give_up(self, order: DispatchOrder) -> None:
        """Cancel an order at its peer; the order's final event is still delivered."""
        self._peer_orders.give_up(sent_event_id(order))

    def notify(self, order: DispatchOrder, reason: str) -> None:
        """Send the agent one cancel notice, best effort (spec: Events 3)."""
        if order.peer is None:  # `PeerOrders` cancels an order at a peer when its task is cancelled
            self._notices.add(order, reason)

    async def close(self) -> None:
        """Cancel everything in flight and close the connections."""
        self._is_closed = True
        if self._starved_timer is not None:
            self._starved_timer.cancel()
        for ticket in self._tickets.values():
            for timer in (ticket.until, ticket.untaken):
                if timer is not None:
                    timer.cancel()
        for ticket in self._open:
            self._stop(ticket)
        if self._begins is not None:
            self._begins.cancel()
        for task in self._refusing.values():
            task.cancel()
        self._notices.close()
        self._peer_orders.close()
        self._value_process.close()
        await self._client.close()

    # -- one order --------------------------------------------------------------------------------

    def _start(self, ticket: Ticket) -> None:
        # The order begins in a later turn of the event loop, so `send` returns before any event.
        self._open.add(ticket)
        if ticket.is_large:
            ticket.is_counted = True
            self._large.add(ticket.order.payer_did)
        self._beginning[ticket] = None
        self.resume()
        self._sent += 1

    def _begin_orders(self) -> None:
        """Begin open orders for one slice of time, because each may write megabytes."""
        if not self._may_send():
            self._begins = None
            return
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + SLICE_MS / 1_000
        try:
            while self._beginning:
                ticket, _ = self._beginning.popitem(last=False)
                self._take_step(ticket, self._begin_order)
                if loop.time() >= ends_s:
                    break
        finally:  # after an exception outside `_take_step`, the next slice still runs
            self._begins = loop.call_soon(self._begin_orders) if self._beginning else None

    def _stop(self, ticket: Ticket) -> None:
        """Cancel the current step of an open order."""
        self._beginning.pop(ticket, None)
        if ticket.step is not None:
            ticket.step.cancel()

    def _may_open(self, payer: str, ticket: Ticket) -> bool:
        """Say whether the limit of large orders permits this order; small ones always pass."""
        if not ticket.is_large:
            return True
        own, total, limit = self._large.of(payer), self._large.total, self._limits.inflight_large
        return has_room(own, total, limit) or (not own and total < HARD * limit)

    def _note_taken(self, ticket: Ticket) -> None:
        """Stop counting a large order when its body was sent, or when the order ends unsent.

        The payer may open another large order at once. A timer retries the orders of other payers.
        """
        if ticket.untaken is not None:
            ticket.untaken.cancel()
        if ticket.is_counted:
            ticket.is_counted = False
            self._large.remove(ticket.order.payer_did)
            self._queues.retry_starved(ticket.order.payer_did)
            self._start_waiting()

    def _start_waiting(self) -> None:
        if self._is_closed:
            return
        now_ms = self._clock.now_ms()
        while (ticket := self._queues.take(now_ms)) is not None:
            self._start(ticket)
        self._schedule_starved_retry()

    def _schedule_starved_retry(self) -> None:
        """Retry after `AGED_MS`: orders without a reply then no longer count as fresh."""
        if self._queues.is_blocked and self._starved_timer is None:
            loop = asyncio.get_running_loop()
            self._starved_timer = loop.call_later(AGED_MS / 1000, self._retry_starved)

    def _retry_starved(self) -> None:
        self._starved_timer = None
        self._queues.retry_starved()
        self._start_waiting()

    def _forget(self, ticket: Ticket, contact: Contact) -> None:
        del self._tickets[id(ticket.order)]
        self._note(ticket.order, contact)

    def _park(self, ticket: Ticket, contact: Contact, remaining_ms: int) -> None:
        """Hold an accepted order: the agent still works on it, although no request is open."""
        self._begin(ticket.order.agent_did)  # before `_note`, so the agent never counts as idle
        self._note(ticket.order, contact)
        self._queues.park(ticket, self._clock.now_ms())
        self._release_in(ticket, remaining_ms)

    def _release_in(self, ticket: Ticket, delay_ms: int) -> None:
        # The timer is needed if the release from the workflow's owner is lost.
        loop = asyncio.get_running_loop()
        ticket.until = loop.call_later(max(0, delay_ms) / 1000, self.release, ticket.order)

    def _take_step(self, ticket: Ticket, step: Callable[..., None], *arguments: Any) -> None:
        """Run one step of an open order; an exception ends this order only."""
        before = self._at_work.begin(ticket.order.workflow_id)
        try:
            step(ticket, *arguments)
        except Exception:  # the edge of one order: other orders go on
            self._end_broken(ticket)
        finally:
            self._at_work.end(before)

    def _take_task(
        self, ticket: Ticket, step: Callable[..., Awaitable[None]], *arguments: Any
    ) -> None:
        """Run a step that waits (for storage or validation), at most until the workflow's end."""
        order = ticket.order
        ends_ms = order.ends_ms or ticket.started_ms + order.timeout_ms
        left_s = max(0, ends_ms - self._clock.now_ms()) / 1_000

        async def guarded() -> None:
            try:
                async with asyncio.timeout(left_s):
                    await step(ticket, *arguments)
            except Exception:  # as in `_take_step`
                self._end_broken(ticket)

        async def named() -> None:
            await self._at_work.run(order.workflow_id, guarded())

        ticket.step = asyncio.get_running_loop().create_task(named())

    def _end_broken(self, ticket: Ticket) -> None:
        order = ticket.order
        log.exception("dispatch failed workflow=%s node=%s", order.workflow_id, order.node)
        if ticket not in self._open:
            return  # its final event was delivered
        message = "the dispatch failed inside the service"
        broken = Failure(NodeErrorCode.AGENT_ERROR, message, is_spared=True)
        at_ms = self._clock.now_ms()
        event = build_failed_event(order, broken, ticket.started_ms or at_ms, at_ms)
        self._close(ticket, Contact.UNKNOWN)
        deliver_event(order, ticket.receive, event)

    def _begin_order(self, ticket: Ticket) -> None:
        order = ticket.order
        ticket.started_ms = self._clock.now_ms()
        ticket.started_s = asyncio.get_running_loop().time()
        if not order.is_verification:
            began = WorkStarted(order.node, order.attempt, ticket.started_ms)
            deliver_event(order, ticket.receive, began)
            if ticket not in self._open:
                return  # the receiver has aborted the order
        sources, bytes_max = order.sources, self._limits.body_bytes_max
        assert sources is not None
        if ticket.is_large:
            self._take_task(ticket, self._build_in_child_and_post, sources, bytes_max)
        else:  # small inputs; `_begin_orders` bounds the time of one slice
            self._post_or_fail(ticket, build_in_loop(sources, bytes_max))

    async def _build_in_child_and_post(
        self, ticket: Ticket, sources: InputSources, bytes_max: int
    ) -> None:
        payer_did = ticket.order.payer_did
        await self._wait_large_turn()
        built = await build_in_child(payer_did, sources, self._load, self._value_process, bytes_max)
        await self._wait_large_turn()
        await self._wait_until_sending()
        self._post_or_fail(ticket, built)

    async def _wait_until_sending(self) -> None:
        """Return when this process may send; the caller bounds the wait (`_take_task`)."""
        while not self._may_send():
            self._resumed.clear()
            await self._resumed.wait()

    async def _wait_large_turn(self) -> None:
        """Return in a turn of the event loop in which no other large order is processed."""
        async with self._large_turn:
            await asyncio.sleep(0)

    def _post_or_fail(self, ticket: Ticket, built: OrderInputs | Failure) -> None:
        order = ticket.order
        if order.input_schema and not isinstance(built, Failure):
            if not self.checks.is_little(order.input_schema, len(built.inputs.inputs)):
                self._take_task(ticket, self._judge_inputs_and_post, built)
                return
            built = self.checks.judge_inputs(order, built.inputs.inputs) or built
        self._post_judged(ticket, built)

    async def _judge_inputs_and_post(self, ticket: Ticket, built: OrderInputs) -> None:
        refused = await self.checks.judge_inputs_beside(ticket.order, built.inputs.inputs)
        await self._wait_until_sending()
        self._post_judged(ticket, refused or built)

    def _post_judged(self, ticket: Ticket, built: OrderInputs | Failure) -> None:
        if isinstance(built, Failure):
            self._fail(ticket, built, Contact.UNKNOWN)
        else:
            self._post(ticket, built)

    async def _load(self, refs: Collection[BlobRef]) -> Mapping[str, bytes]:
        assert self._blobs is not None, "a large result was stored without a store"
        return await self._blobs.load(refs)

    def _post(self, ticket: Ticket, built: OrderInputs) -> None:
        """Send the request of an order whose inputs are complete."""
        order, input_hash = ticket.order, built.inputs.hash
        event, inputs = sent_event_id(order), built.inputs.inputs
        send: Callable[..., asyncio.Task[None] | Exchange] = self._client.send
        if order.peer is None:
            body = dispatch_body(order, event, inputs, built.parents, ticket.started_ms, self._keys)
            headers = dispatch_headers(order, event, body, self._service)
        else:
            body, headers, send = self._peer_orders.prepare(order, event, inputs, ticket.started_ms)
        if len(body) > (bytes_max := self._limits.body_bytes_max):
            message = f"the dispatch has {len(body)} bytes, limit {bytes_max}"
            too_large = Failure(NodeErrorCode.INPUT_TOO_LARGE, message, Verdict.FINAL)
            self._fail(ticket, too_large, Contact.UNKNOWN)
            return
        request = HttpRequest(
            "POST",
            order.url,
            headers,
            body,
            connect_timeout_s=self._limits.connect_timeout_ms / 1000,
            timeout_s=order.timeout_ms / 1000,
            reply_bytes_max=AGENT_REPLY_BYTES_MAX,
            payer=order.payer_did,
        )

        def taken() -> None:
            self._note_taken(ticket)

        def answered(outcome: Ended) -> None:
            taken()  # the reply may arrive before the agent's socket has taken the whole body
            self._take_step(ticket, self._answer, event, input_hash, outcome)

        is_timed = len(body) > UNTIMED_BYTES_MAX
        if not is_timed:
            taken()
        else:
            limit_s = self._limits.transfer_timeout_s + len(body) / self._limits.transfer_rate_min

            def not_taken() -> None:
                self._stop(ticket)
                answered(HttpFailure(HttpFailureKind.BROKEN, f"not taken within {limit_s:.0f} s"))

            ticket.untaken = asyncio.get_running_loop().call_later(limit_s, not_taken)
        try:
            ticket.step = send(request, answered, taken if is_timed else None)
            ticket.is_sent = True
        except ValueError as error:  # an invalid URL or header, from a card older than its check
            answered(HttpFailure(HttpFailureKind.BROKEN, str(error)))

    def _answer(self, ticket: Ticket, event: str, input_hash: str, outcome: Ended) -> None:
        order = ticket.order
        if isinstance(outcome, Failed):
            failed = build_peer_failure(order, outcome, ticket.started_ms, _ended_ms(ticket))
            self._end(ticket, failed, Contact.REACHED)
            return
        if isinstance(outcome, HttpFailure):
            failure, contact = judge_failure(order, outcome, self._limits.connect_timeout_ms)
            self._fail(ticket, failure, contact)
            return
        received = ReceivedReply(
            event,
            outcome.status,
            outcome.header(b"content-type") or "",
            outcome.header(b"retry-after"),
            outcome.body,
            outcome.coding_problem,
            input_hash,
            ticket.started_ms,
            _ended_ms(ticket),
            self._valid_keys(order.agent_did),
            outcome.header(b"location"),
        )
        if not self.checks.is_little(order.output_schema, len(outcome.body)):
            # The order stays open until then, so the limit of open orders bounds the waiting bytes.
            self._take_task(ticket, self._judge_and_end, received)
        else:
            self._end(ticket, self.checks.judge(order, received), Contact.REACHED)

    async def _judge_and_end(self, ticket: Ticket, received: ReceivedReply) -> None:
        event = await self.checks.judge_beside(ticket.order, received)
        self._end(ticket, event, Contact.REACHED)

    def _fail(self, ticket: Ticket, failure: Failure, contact: Contact) -> None:
        """End an order that got no reply, with a failure."""
        event = build_failed_event(ticket.order, failure, ticket.started_ms, _ended_ms(ticket))
        self._end(ticket, event, contact)

    def _end(self, ticket: Ticket, event: Event, contact: Contact) -> None:
        """End an order with its event; store a large result first."""
        body = self._large_body(event)
        if body is None:
            self._close_and_deliver(ticket, event, contact)
        else:
            self._take_task(ticket, self._store_and_end, event, body, contact)

    def _large_body(self, event: Event) -> bytes | None:
        """Return the bytes of the event's result if it must be stored apart, else None."""
        if self._blobs is None:
            return None
        return large_body(event, self._limits.result_inline_bytes_max)

    async def _store_and_end(
        self, ticket: Ticket, event: Event, body: bytes, contact: Contact
    ) -> None:
        assert self._blobs is not None
        stored = await store_large_result(event, body, self._blobs)
        self._close_and_deliver(ticket, stored, contact)

    def _close_and_deliver(self, ticket: Ticket, event: Event, contact: Contact) -> None:
        """Close an order and deliver its event; hold the order if its agent has accepted it."""
        remaining_ms = None
        if isinstance(event, AttemptAccepted) and not ticket.is_over:
            remaining_ms = ticket.started_ms + ticket.order.timeout_ms - event.at_ms
        self._close(ticket, contact, remaining_ms)
        deliver_event(ticket.order, ticket.receive, event)

    def _close(self, ticket: Ticket, contact: Contact, accepted_ms: int | None = None) -> None:
        """Close an open order; `accepted_ms`: the longest time to hold it if it was accepted."""
        self._open.remove(ticket)
        ticket.step = None
        self._note_taken(ticket)
        if accepted_ms is not None:
            self._park(ticket, contact, accepted_ms)
        else:
            self._queues.close(ticket, self._clock.now_ms())
            self._forget(ticket, contact)
        self._start_waiting()


def deliver_event(order: DispatchOrder, receive: Receive, event: Event) -> None:
    """Pass an order's event to its receiver; log an exception of the receiver."""
    try:
        receive(order.workflow_id, event)
    except Exception:  # the edge to the receiver: its failure concerns this event only
        log.exception("event not received workflow=%s node=%s", order.workflow_id, order.node)


def _ended_ms(ticket: Ticket) -> int:
    """Return the current time as the end of an order, Unix milliseconds.

    The duration comes from the monotonic clock, because the wall clock may be set during the order.
    """
    span_s = asyncio.get_running_loop().time() - ticket.started_s
    return ticket.started_ms + int(span_s * 1_000)


def _receive_unexpected(_: str, event: Event) -> None:
    raise AssertionError(f"{event} of an order that was not sent from here")
