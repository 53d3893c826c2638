"""Dispatches over the machines of the cluster: own loop first, batches to other machines above it.

An order that leaves goes as part of a batched actor task to another machine's `WorkflowActor`,
which sends it from its own loop; the reply comes back the same way. No call per node, ever.
design.md section 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from actors.channel import Channel
from actors.dispatch import Dispatcher
from actors.ports import DispatchOrder
from core.errors import NodeErrorCode
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


def order_id(order: DispatchOrder) -> OrderId:
    """Return what identifies an order within the cluster."""
    return order.workflow_id, order.node, order.attempt, order.verify_attempt


class Spread:
    """Implements `DispatchPort` over this machine's dispatcher and the other machines' actors.

    Args:
        local: the dispatcher of this loop.
        name: this owner's name, under which replies come back.
        is_always: spread even while there is room here (`CALLBOARD_DISPATCH=spread`).
    """

    def __init__(self, local: Dispatcher, name: str, *, is_always: bool) -> None:
        self._local = local
        self._name = name
        self._is_always = is_always
        self._peers: dict[str, Channel[RemoteOrder, None]] = {}
        self._returns: dict[str, Channel[RemoteEvent, None]] = {}
        self._remote: dict[OrderId, tuple[str, DispatchOrder, Receive]] = {}
        self._turn = itertools.count()

    def set_peers(
        self,
        calls: dict[
            str,
            tuple[
                Callable[[list[RemoteOrder]], Awaitable[Sequence[None]]],
                Callable[[list[RemoteEvent]], Awaitable[Sequence[None]]],
            ],
        ],
    ) -> None:
        """Know the other machines: by owner name, how to send it orders and how to return events.

        Orders at a machine that is gone are lost: their attempts are answered as such, at once.
        """
        for name in set(self._peers) - set(calls):
            del self._peers[name], self._returns[name]
            for key, (peer, order, receive) in list(self._remote.items()):
                if peer == name:
                    del self._remote[key]
                    receive(order.workflow_id, _lost(order, name))
        for name, (send, give_back) in calls.items():
            if name not in self._peers:
                self._peers[name] = Channel(
                    f"dispatch to {name}", send, capacity=QUEUE_MAX, batch_size=BATCH_SIZE
                )
                self._returns[name] = Channel(
                    f"replies to {name}", give_back, capacity=QUEUE_MAX, batch_size=BATCH_SIZE
                )

    def send(self, order: DispatchOrder, receive: Receive) -> None:
        """Send here while there is room, else, or always when asked to, to the next machine."""
        if not self._peers or (self._local.has_room and not self._is_always):
            self._local.send(order, receive)
            return
        # This machine takes its turn too, so that `spread` over n machines gives each 1/n.
        names = ["", *self._peers]
        name = names[next(self._turn) % len(names)]
        if name == "":
            self._local.send(order, receive)
            return
        key = order_id(order)
        self._remote[key] = (name, order, receive)

        def sent(outcome: BaseException | None) -> None:
            if isinstance(outcome, BaseException) and self._remote.pop(key, None) is not None:
                receive(order.workflow_id, _lost(order, name))

        self._peers[name].submit((order, self._name), sent)

    def abort(self, order: DispatchOrder, reason: str) -> None:
        """Forget a remote order (its late reply is dropped) or stop a local one; tell the agent."""
        if self._remote.pop(order_id(order), None) is None:
            self._local.abort(order, reason)
        else:
            self._local.notify(order, reason)

    def accept(self, batch: Sequence[RemoteOrder]) -> list[None]:
        """Take orders of another machine; their events go back through its channel."""
        for order, origin in batch:
            key = order_id(order)
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
        channel = self._returns.get(origin)
        if channel is not None:  # else the origin is gone and so is whoever waits for the reply
            channel.submit((key, event), lambda _: None)


def _lost(order: DispatchOrder, machine: str) -> Event:
    failure = Failure(
        NodeErrorCode.AGENT_ERROR,
        f"the dispatching process {machine} ended before the reply",
        Verdict.LOST,
    )
    if order.is_verification:
        return VerificationFinished(
            order.node, order.attempt, False, failure, 0, 0, order.verify_attempt
        )
    return AttemptFailed(order.node, order.attempt, failure, 0, 0)
