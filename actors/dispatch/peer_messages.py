"""What owners tell each other of orders that one of them sends for another, and how it travels.

Each message is encoded by itself, where it is submitted, so that its length is its weight in a
batch; one that its receiver cannot read is refused alone. Decision messages-and-large-values.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from actors.ports import DispatchOrder
from actors.transport.wire import Undecodable, Wire
from core.message import Message
from core.workflow.events import Event

log = logging.getLogger("callboard.dispatch")

Value = TypeVar("Value")


class Send(Message, frozen=True):
    """Send this order; `serial`: of its sending, among those of its `origin`, an owner.

    `is_offer`: refuse the order if it would have to wait.
    """

    serial: int
    origin: str
    order: DispatchOrder
    is_offer: bool = False


class End(Message, frozen=True):
    """The order has ended at its origin: its place at the agent is free.

    `is_abort`: close the order's request, or never send it.
    """

    serial: int
    origin: str
    is_abort: bool = False


class SentEvent(Message, frozen=True):
    """An event of the receiver's order, which the owner `origin` returns."""

    serial: int
    origin: str
    event: Event


OrderMessage = Send | End | SentEvent

ORDERS: Final = Wire[OrderMessage](OrderMessage)

# Encoded messages out; for each of them back, whether it was taken.
PeerCall = Callable[[list[bytes]], Awaitable[Sequence[bool]]]


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """The call to another owner's process; `close` ends its connection."""

    send: PeerCall
    close: Callable[[], None] = lambda: None


def take_each(
    wire: Wire[Value], bodies: Sequence[bytes], take: Callable[[Value], bool]
) -> list[bool]:
    """Pass on what can be read of a batch; return for each message whether it was taken.

    Args:
        wire: the kind of messages.
        bodies: encoded ones, of another process, perhaps of another version.
        take: gets each message; returns whether it takes it. What it raises is logged, and the
            message is not taken.
    """
    taken = []
    for body in bodies:
        try:
            message = wire.decode(body)
        except Undecodable as error:  # its sender hears of it; the others are carried out
            log.error("got what is no message between owners reason=%s", error)
            taken.append(False)
            continue
        try:
            taken.append(take(message))
        except Exception:  # the edge to another process, which would send the whole batch for ever
            log.exception("a message between owners was not taken kind=%s", type(message).__name__)
            taken.append(False)
    return taken
