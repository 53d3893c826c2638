"""Dispatches over the machines of the cluster: this event loop first, then other machines.

An order for another machine travels in a batched actor call to that machine's `WorkflowActor`,
which sends it from its own loop; its events come back the same way. There is no call per node.
Events are sent repeatedly until they are acknowledged, because duplicates are harmless; the orders
of a process that ends are lost, except those that their agents have accepted. An accepted order is
held at the machine that sent it until the owner's machine releases it. An abort travels, too: the
other machine closes the request, which frees its socket and the agent's place.
design.md section 3; decision 0055.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from actors.dispatch.dispatcher import Dispatcher
from actors.ports import DispatchOrder
from actors.transport.channel import Channel
from core.errors import NodeErrorCode, ServiceError
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    Event,
    Failure,
    Verdict,
    VerificationFinished,
    WorkStarted,
)

log = logging.getLogger("callboard.dispatch")

Receive = Callable[[str, Event], None]
# (workflow id, node, attempt, verify attempt): identifies a remote order.
OrderId = tuple[str, str, int, int]
Item = TypeVar("Item")
# The id of an order whose request is to be closed; a process of an older version ignores it.
AbortedId = tuple[str, str, int, int, bool]
# (an order, the id of one that has ended, or of one that is aborted; the owner that sends it).
RemoteOrder = tuple[DispatchOrder | OrderId | AbortedId, str]
# (the order's id, its event, the machine that returns it).
RemoteEvent = tuple[OrderId, Event, str]

QUEUE_MAX = 100_000
BATCH_SIZE = 512
REPEAT_S = 0.2
# A peer that could not be reached gets no order for this long, because a lost attempt is repeated
# at once.
AVOIDED_MS = 1_000
# Aborted orders that are remembered, because an abort may overtake its order.
ABORTED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """The calls to another owner's process: `send` takes orders, `return_events` takes events."""

    epoch: int
    send: Callable[[list[RemoteOrder]], Awaitable[Sequence[None]]]
    return_events: Callable[[list[RemoteEvent]], Awaitable[Sequence[None]]]


@dataclass(frozen=True, slots=True)
class _Peer:
    epoch: int
    orders: Channel[RemoteOrder, None]
    ends: Channel[RemoteOrder, None]
    replies: Channel[RemoteEvent, None]

    def close(self) -> None:
        """Stop sending; waiting requests fail with a ConnectionError."""
        self.orders.close()
        self.ends.close()
        self.replies.close()


def order_id(order: DispatchOrder) -> OrderId:
    """Return what identifies an order within the cluster."""
    return order.workflow_id, order.node, order.attempt, order.verify_attempt


class RemoteDispatch:
    """Implements `DispatchPort` over this machine's dispatcher and the other machines' actors.

    Args:
        local: the dispatcher of this loop.
        name: this owner's name, to which events are returned.
        now_ms: wall time.
        is_always: use all machines in turn even with capacity here (`CALLBOARD_DISPATCH=spread`).
    """

    def __init__(
        self, local: Dispatcher, name: str, *, now_ms: Callable[[], int], is_always: bool
    ) -> None:
        self._local = local
        self._name = name
        self._now_ms = now_ms
        self._is_always = is_always
        self._peers: dict[str, _Peer] = {}
        self._remote: dict[OrderId, tuple[str, DispatchOrder, Receive]] = {}
        self._held_away: dict[OrderId, tuple[str, DispatchOrder]] = {}
        self._foreign: dict[tuple[str, OrderId], DispatchOrder] = {}
        self._held_foreign: dict[tuple[str, OrderId], DispatchOrder] = {}
        self._aborted: OrderedDict[tuple[str, OrderId], None] = OrderedDict()
        self._avoided: dict[str, int] = {}
        self._next_peer = itertools.count()

    @property
    def owner_count(self) -> int:
        """How many owners share an agent's concurrency."""
        return len(self._peers) + 1

    @property
    def waiting(self) -> int:
        """How many orders wait, here or in a channel to another machine."""
        return self._local.waiting + sum(
            peer.orders.statistics().queued for peer in self._peers.values()
        )

    def waiting_of(self, payer: str) -> int:
        """Return how many orders of a payer wait here."""
        return self._local.waiting_of(payer)

    def set_peers(self, calls: dict[str, PeerCalls]) -> None:
        """Replace the known owners of other machines, by name.

        Orders at an owner that is gone or was restarted are lost: their attempts fail at once.
        """
        for name in list(self._peers):
            if name not in calls or calls[name].epoch != self._peers[name].epoch:
                self._forget(name)
        for name, peer in calls.items():
            if name not in self._peers:
                self._peers[name] = _Peer(
                    peer.epoch,
                    Channel(
                        f"dispatch to {name}", peer.send, capacity=QUEUE_MAX, batch_size=BATCH_SIZE
                    ),
                    Channel(
                        f"ended orders to {name}",
                        partial(_repeat_until_answered, f"ended orders to {name}", peer.send),
                        capacity=QUEUE_MAX,
                        batch_size=BATCH_SIZE,
                    ),
                    Channel(
                        f"replies to {name}",
                        partial(_repeat_until_answered, f"replies to {name}", peer.return_events),
                        capacity=QUEUE_MAX,
                        batch_size=BATCH_SIZE,
                    ),
                )

    def send(self, order: DispatchOrder, receive: Receive) -> None:
        """Send the order here while there is capacity, else from the next machine."""
        if not self._peers or (self._local.has_room and not self._is_always):
            self._local.send(order, receive)
            return
        now_ms = self._now_ms()
        # This machine takes its turn too, so that `spread` over n machines sends 1/n from each.
        names = ["", *(peer for peer in self._peers if self._avoided.get(peer, 0) <= now_ms)]
        name = names[next(self._next_peer) % len(names)]
        if name == "":
            self._local.send(order, receive)
            return
        key = order_id(order)

        def sent(outcome: BaseException | None) -> None:
            if not isinstance(outcome, BaseException):
                return
            self._avoided[name] = self._now_ms() + AVOIDED_MS
            if self._remote.pop(key, None) is not None:
                receive(order.workflow_id, _build_lost_event(order, name, self._now_ms()))

        try:
            self._peers[name].orders.submit((order, self._name), sent)
        except ServiceError:  # the peer's queue is full; the bound at publish limits the local one
            self._local.send(order, receive)
        else:
            self._remote[key] = (name, order, receive)

    def hold(self, order: DispatchOrder) -> None:
        """Hold an accepted order here, wherever it was sent before."""
        self._local.hold(order)

    def release(self, order: DispatchOrder) -> None:
        """Free the order's capacity, here or at the machine that sent it."""
        if not self._end_remote(order):
            self._local.release(order)

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Abort an order, here or at the machine that sends it; notify the agent."""
        if self._end_remote(order, is_aborted=True):
            self._local.notify(order, reason)
        else:
            self._local.abort(order, reason)

    def accept(self, batch: Sequence[RemoteOrder]) -> list[None]:
        """Send orders of another machine; their events return through its channel.

        An order that arrives twice is sent to its agent once.
        """
        for item, origin in batch:
            if not isinstance(item, DispatchOrder):
                self._end_or_abort_foreign(origin, item)
                continue
            key = order_id(item)
            if (origin, key) not in self._foreign and (origin, key) not in self._aborted:
                self._foreign[origin, key] = item
                self._local.send(item, partial(self._return_event, origin, key))
        return [None] * len(batch)

    def deliver(self, batch: Sequence[RemoteEvent]) -> list[None]:
        """Receive the events of orders that this owner sent to other machines."""
        for key, event, sender in batch:
            known = self._remote.get(key)
            if known is None:
                if isinstance(event, AttemptAccepted) and key not in self._held_away:
                    self._send_end(
                        sender, key
                    )  # the order has ended, or an earlier process sent it
                continue
            holder, order, receive = known
            if not isinstance(event, WorkStarted):
                del self._remote[key]
            if isinstance(event, AttemptAccepted):
                self._held_away[key] = (holder, order)
            try:
                receive(order.workflow_id, event)
            except Exception:  # the edge of one workflow: its machine would repeat the batch
                log.exception(
                    "event not received workflow=%s node=%s", order.workflow_id, order.node
                )
        return [None] * len(batch)

    def _return_event(self, origin: str, key: OrderId, _: str, event: Event) -> None:
        order = None
        if not isinstance(event, WorkStarted):
            order = self._foreign.pop((origin, key), None)
        if order is not None and isinstance(event, AttemptAccepted):
            self._end_foreign(origin, key)  # an order of the same id, of an earlier process
            self._held_foreign[origin, key] = order
        peer = self._peers.get(origin)
        if peer is not None:
            peer.replies.submit_always((key, event, self._name), lambda _: None)
        else:  # the origin is gone, and with it the owner that waits for the event
            self._end_foreign(origin, key)

    def _end_or_abort_foreign(self, origin: str, ended: OrderId | AbortedId) -> None:
        key = ended[:4]
        if len(ended) > len(key):
            self._aborted[origin, key] = None
            if len(self._aborted) > ABORTED_MAX:
                self._aborted.popitem(last=False)
            order = self._foreign.pop((origin, key), None)
            if order is not None:
                self._local.cancel(order)
        self._end_foreign(origin, key)

    def _end_foreign(self, origin: str, key: OrderId) -> None:
        for orders in (self._foreign, self._held_foreign):
            order = orders.pop((origin, key), None)
            if order is not None:
                self._local.release(order)

    def _end_remote(self, order: DispatchOrder, *, is_aborted: bool = False) -> bool:
        """Drop an order at another machine and end it there; False when none has it."""
        key = order_id(order)
        known = self._remote.pop(key, None) or self._held_away.pop(key, None)
        if known is None:
            return False
        self._send_end(known[0], (*key, True) if is_aborted else key)
        return True

    def _send_end(self, name: str, key: OrderId | AbortedId) -> None:
        peer = self._peers.get(name)
        if peer is None:
            return
        # If this message is lost, the attempt's timeout releases the order.
        with contextlib.suppress(ServiceError):
            peer.ends.submit((key, self._name), lambda _: None)

    def _forget(self, name: str) -> None:
        """Remove a peer: its open orders are lost, its accepted ones are held here."""
        self._peers.pop(name).close()
        self._avoided.pop(name, None)
        # Not its open orders: they may belong to its new process, whose orders arrived first.
        for origin, key in [known for known in self._held_foreign if known[0] == name]:
            self._end_foreign(origin, key)
        for key, (holder, order) in list(self._held_away.items()):
            if holder == name:
                del self._held_away[key]
                self._local.hold(order)
        for key, (holder, order, receive) in list(self._remote.items()):
            if holder == name:
                del self._remote[key]
                receive(order.workflow_id, _build_lost_event(order, name, self._now_ms()))


async def _repeat_until_answered(
    name: str, call: Callable[[list[Item]], Awaitable[Sequence[None]]], batch: list[Item]
) -> Sequence[None]:
    """Repeat a call until the other machine answers; removing the peer cancels it."""
    for failures in itertools.count():
        try:
            replies = await call(batch)
        except Exception as error:  # the edge to another process: after any the batch may be lost
            if failures == 0:
                log.warning("%s fail and are repeated count=%d", name, len(batch), exc_info=error)
            await asyncio.sleep(REPEAT_S)
        else:
            if failures:
                log.info("%s go on after %d failures", name, failures)
            break
    return replies


def _build_lost_event(order: DispatchOrder, machine: str, at_ms: int) -> Event:
    failure = Failure(
        NodeErrorCode.AGENT_ERROR,
        f"the dispatching process {machine} ended before the reply",
        Verdict.LOST,
    )
    if order.is_verification:
        return VerificationFinished(
            order.node, order.attempt, False, failure, at_ms, at_ms, order.verify_attempt
        )
    return AttemptFailed(order.node, order.attempt, failure, at_ms, at_ms)
