"""Dispatches over the machines of the cluster: own loop first, batches to other machines above it.

An order that leaves goes as part of a batched actor task to another machine's `WorkflowActor`,
which sends it from its own loop; the reply comes back the same way. No call per node, ever.
A message that may be lost is either repeated until it is known (replies, harmless twice) or its
orders count as lost with the process that had them. design.md section 3.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from actors.channel import Channel
from actors.dispatch import Dispatcher
from actors.ports import DispatchOrder
from core.errors import NodeErrorCode, ServiceError
from core.workflow.events import (
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
RemoteOrder = tuple[DispatchOrder, str]
RemoteEvent = tuple[OrderId, Event]

QUEUE_MAX = 100_000
BATCH_SIZE = 512
RETURN_RETRY_S = 0.2
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
    replies: Channel[RemoteEvent, None]


def order_id(order: DispatchOrder) -> OrderId:
    """Return what identifies an order within the cluster."""
    return order.workflow_id, order.node, order.attempt, order.verify_attempt


class Spread:
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
        self._accepted: set[tuple[str, OrderId]] = set()
        self._avoided: dict[str, int] = {}
        self._turn = itertools.count()

    @property
    def owner_count(self) -> int:
        """How many owners share what an agent takes at once."""
        return len(self._peers) + 1

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

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Forget a remote order (its late reply is dropped) or stop a local one; tell the agent."""
        if self._remote.pop(order_id(order), None) is None:
            self._local.abort(order, reason)
        else:
            self._local.notify(order, reason)

    def accept(self, batch: Sequence[RemoteOrder]) -> list[None]:
        """Take orders of another machine; their events go back through its channel.

        An order that is here already came twice: it is sent to its agent once.
        """
        for order, origin in batch:
            key = order_id(order)
            if (origin, key) not in self._accepted:
                self._accepted.add((origin, key))
                self._local.send(order, partial(self._give_back, origin, key))
        return [None] * len(batch)

    def deliver(self, batch: Sequence[RemoteEvent]) -> list[None]:
        """Hear events of orders that this owner had sent away."""
        for key, event in batch:
            known = self._remote.get(key)
            if known is None:
                continue
            _, order, receive = known
            if not isinstance(event, WorkStarted):
                del self._remote[key]
            receive(order.workflow_id, event)
        return [None] * len(batch)

    def _give_back(self, origin: str, key: OrderId, _: str, event: Event) -> None:
        if not isinstance(event, WorkStarted):
            self._accepted.discard((origin, key))
        peer = self._peers.get(origin)
        if peer is not None:  # else the origin is gone and so is whoever waits for the reply
            peer.replies.submit((key, event), lambda _: None)

    def _forget(self, name: str) -> None:
        peer = self._peers.pop(name)
        self._avoided.pop(name, None)
        peer.orders.close()
        peer.replies.close()
        for key, (holder, order, receive) in list(self._remote.items()):
            if holder == name:
                del self._remote[key]
                receive(order.workflow_id, _lost(order, name, self._now_ms()))


async def _until_known(
    give_back: Callable[[list[RemoteEvent]], Awaitable[Sequence[None]]], batch: list[RemoteEvent]
) -> Sequence[None]:
    """Return events until the origin has answered: it waits for them without a clock of its own.

    Ends by being cancelled when the origin is forgotten.
    """
    while True:
        try:
            return await give_back(batch)
        except Exception:  # the edge to another process: whatever it was, the events may be lost
            await asyncio.sleep(RETURN_RETRY_S)


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
