"""Dispatches over the machines of the cluster: own loop first, batches to other machines above it.

An order that leaves goes as part of a batched actor task to another machine's `WorkflowActor`,
which sends it from its own loop; the reply comes back the same way. No call per node, ever.
A message that may be lost is either repeated until it is known (replies, harmless twice) or its
orders count as lost with the process that had them. One that its agent has accepted is not lost
with it, and holds its place where it was sent until its own machine says that it has ended.
design.md section 3; decision 0055.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from actors.dispatch.dispatcher import Dispatcher
from actors.engine.ports import DispatchOrder
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

Receive = Callable[[str, Event], None]
# (workflow id, node, attempt, verify attempt): what an event of a remote order refers to.
OrderId = tuple[str, str, int, int]
Item = TypeVar("Item")
# (an order or, of one that has ended, its id; who asks).
RemoteOrder = tuple[DispatchOrder | OrderId, str]
# (which order, what became of it, who sent it).
RemoteEvent = tuple[OrderId, Event, str]

QUEUE_MAX = 100_000
BATCH_SIZE = 512
REPEAT_S = 0.2
# A peer that an order did not reach gets none for this long: a lost attempt is repeated at once.
AVOIDED_MS = 1_000


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """Another owner's process: its epoch, how to send it orders, how to return it events."""

    epoch: int
    send: Callable[[list[RemoteOrder]], Awaitable[Sequence[None]]]
    give_back: Callable[[list[RemoteEvent]], Awaitable[Sequence[None]]]


@dataclass(frozen=True, slots=True)
class _Peer:
    epoch: int
    orders: Channel[RemoteOrder, None]
    ends: Channel[RemoteOrder, None]
    replies: Channel[RemoteEvent, None]

    def close(self) -> None:
        """Stop sending; what waits is answered with a ConnectionError."""
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
        name: this owner's name, under which replies come back.
        now_ms: wall time, of orders that were lost.
        is_always: spread even while there is room here (`CALLBOARD_DISPATCH=spread`).
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
        self._avoided: dict[str, int] = {}
        self._turn = itertools.count()

    @property
    def owner_count(self) -> int:
        """How many owners share what an agent takes at once."""
        return len(self._peers) + 1

    @property
    def waiting(self) -> int:
        """How many orders wait, here or on their way to another machine."""
        return self._local.waiting + sum(
            peer.orders.statistics().queued for peer in self._peers.values()
        )

    def waiting_of(self, payer: str) -> int:
        """Return how many orders of a payer wait here."""
        return self._local.waiting_of(payer)

    def set_peers(self, calls: dict[str, PeerCalls]) -> None:
        """Know the other machines' owners by name.

        Orders at one that is gone, or that was started anew, are lost: their attempts are answered
        as such, at once.
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
                        partial(_until_known, peer.send),
                        capacity=QUEUE_MAX,
                        batch_size=BATCH_SIZE,
                    ),
                    Channel(
                        f"replies to {name}",
                        partial(_until_known, peer.give_back),
                        capacity=QUEUE_MAX,
                        batch_size=BATCH_SIZE,
                    ),
                )

    def send(self, order: DispatchOrder, receive: Receive) -> None:
        """Send here while there is room, else, or always when asked to, to the next machine."""
        if not self._peers or (self._local.has_room and not self._is_always):
            self._local.send(order, receive)
            return
        now_ms = self._now_ms()
        # This machine takes its turn too, so that `spread` over n machines gives each 1/n.
        names = ["", *(peer for peer in self._peers if self._avoided.get(peer, 0) <= now_ms)]
        name = names[next(self._turn) % len(names)]
        if name == "":
            self._local.send(order, receive)
            return
        key = order_id(order)

        def sent(outcome: BaseException | None) -> None:
            if not isinstance(outcome, BaseException):
                return
            self._avoided[name] = self._now_ms() + AVOIDED_MS
            if self._remote.pop(key, None) is not None:
                receive(order.workflow_id, _lost(order, name, self._now_ms()))

        try:
            self._peers[name].orders.submit((order, self._name), sent)
        except ServiceError:  # its queue is full; ours has a bound too, but no other way is left
            self._local.send(order, receive)
        else:
            self._remote[key] = (name, order, receive)

    def hold(self, order: DispatchOrder) -> None:
        """Take an accepted order's place here, wherever it was sent before."""
        self._local.hold(order)

    def ended(self, order: DispatchOrder) -> None:
        """Free what the order holds, here or at the machine that sent it."""
        if not self._end_remote(order):
            self._local.ended(order)

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Forget a remote order (its late reply is dropped) or stop a local one; tell the agent."""
        if self._end_remote(order):
            self._local.notify(order, reason)
        else:
            self._local.abort(order, reason)

    def accept(self, batch: Sequence[RemoteOrder]) -> list[None]:
        """Take orders of another machine; their events go back through its channel.

        An order that is here already came twice: it is sent to its agent once.
        """
        for item, origin in batch:
            if not isinstance(item, DispatchOrder):
                self._end_foreign(origin, item)
                continue
            key = order_id(item)
            if (origin, key) not in self._foreign:
                self._foreign[origin, key] = item
                self._local.send(item, partial(self._give_back, origin, key))
        return [None] * len(batch)

    def deliver(self, batch: Sequence[RemoteEvent]) -> list[None]:
        """Hear events of orders that this owner had sent away."""
        for key, event, sender in batch:
            known = self._remote.get(key)
            if known is None:
                if isinstance(event, AttemptAccepted) and key not in self._held_away:
                    self._tell_end(sender, key)  # it ended before, or an earlier process sent it
                continue
            holder, order, receive = known
            if not isinstance(event, WorkStarted):
                del self._remote[key]
            if isinstance(event, AttemptAccepted):
                self._held_away[key] = (holder, order)
            receive(order.workflow_id, event)
        return [None] * len(batch)

    def _give_back(self, origin: str, key: OrderId, _: str, event: Event) -> None:
        order = None
        if not isinstance(event, WorkStarted):
            order = self._foreign.pop((origin, key), None)
        if order is not None and isinstance(event, AttemptAccepted):
            self._end_foreign(origin, key)  # one under the same id, of an earlier process
            self._held_foreign[origin, key] = order
        peer = self._peers.get(origin)
        if peer is not None:
            peer.replies.submit((key, event, self._name), lambda _: None)
        else:  # the origin is gone and so is whoever waits for the reply
            self._end_foreign(origin, key)

    def _end_foreign(self, origin: str, key: OrderId) -> None:
        for orders in (self._foreign, self._held_foreign):
            order = orders.pop((origin, key), None)
            if order is not None:
                self._local.ended(order)

    def _end_remote(self, order: DispatchOrder) -> bool:
        """Forget an order that another machine has and tell that; False when it is not there."""
        key = order_id(order)
        known = self._remote.pop(key, None) or self._held_away.pop(key, None)
        if known is None:
            return False
        self._tell_end(known[0], key)
        return True

    def _tell_end(self, name: str, key: OrderId) -> None:
        peer = self._peers.get(name)
        if peer is None:
            return
        # Its place is free at the attempt's own time-out even if this is not heard.
        with contextlib.suppress(ServiceError):
            peer.ends.submit((key, self._name), lambda _: None)

    def _forget(self, name: str) -> None:
        """Know a machine's process no more: its orders are lost, its accepted ones are not."""
        self._peers.pop(name).close()
        self._avoided.pop(name, None)
        # Not what it still waits for: that may be of its new process, which was heard of first.
        for origin, key in [known for known in self._held_foreign if known[0] == name]:
            self._end_foreign(origin, key)
        for key, (holder, order) in list(self._held_away.items()):
            if holder == name:
                del self._held_away[key]
                self._local.hold(order)
        for key, (holder, order, receive) in list(self._remote.items()):
            if holder == name:
                del self._remote[key]
                receive(order.workflow_id, _lost(order, name, self._now_ms()))


async def _until_known(
    call: Callable[[list[Item]], Awaitable[Sequence[None]]], batch: list[Item]
) -> Sequence[None]:
    """Repeat a call until the other machine has answered: it waits without a clock of its own.

    Ends by being cancelled when that machine is forgotten.
    """
    while True:
        try:
            return await call(batch)
        except Exception:  # the edge to another process: whatever it was, the batch may be lost
            await asyncio.sleep(REPEAT_S)


def _lost(order: DispatchOrder, machine: str, at_ms: int) -> Event:
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
