"""The state of an order in the dispatcher, and the limits of a dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from actors.ports import DispatchOrder
from core.records.bounds import RESULT_INLINE_BYTES_MAX
from core.workflow.events import Event
from federation.http_connection import Exchange

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """The limits of one dispatcher.

    Attributes:
        inflight_start: initial limit of the fresh orders (`AgentQueues`).
        inflight_max: limit of the dispatches in flight.
        inflight_share: a payer may use 1/`inflight_share` of the sockets that no other payer uses.
        inflight_large: capacity for large dispatches whose bodies are being built or sent.
        body_bytes_max: the largest dispatch body.
        result_inline_bytes_max: larger results are stored apart, and events refer to them.
        connect_timeout_ms: timeout of a connection to an agent.
        cancel_notice_timeout_ms: timeout of a cancel notice, which is sent once.
        transfer_timeout_s: the constant part of the time limit for sending a large body. The body's
            size divided by `transfer_rate_min` is added.
        transfer_rate_min: bytes per second.
    """

    inflight_start: int = 64
    inflight_max: int = 2_048
    inflight_share: int = 4
    inflight_large: int = 32
    body_bytes_max: int = 8 * _MIB
    result_inline_bytes_max: int = RESULT_INLINE_BYTES_MAX
    connect_timeout_ms: int = 5_000
    cancel_notice_timeout_ms: int = 2_000
    transfer_timeout_s: float = 10.0
    transfer_rate_min: int = 64 * 1024


DEFAULT_LIMITS: Final = DispatchLimits()

Receive = Callable[[str, Event], None]


class Ticket(Struct, eq=False):
    """An order that is queued, open, or held.

    Tickets are compared by identity, because two owners may send equal orders through this process.

    Attributes:
        until: the timer that releases a held order; None if the order is not held.
        is_over: the order was released while its request was open. If the agent then accepts the
            order, the order is not held.
        step: the task or the request that an open order waits for.
        is_large: the inputs are large, so the value process builds them.
        is_counted: the order counts as large: it is open and its body is not sent completely.
        untaken: the timer that limits the time for sending the body.
        started_ms, started_s: when the order was begun, in Unix milliseconds and loop seconds.
    """

    order: DispatchOrder
    receive: Receive
    until: asyncio.TimerHandle | None = None
    is_over: bool = False
    step: asyncio.Task[None] | Exchange | None = None
    is_large: bool = False
    is_counted: bool = False
    untaken: asyncio.TimerHandle | None = None
    is_sent: bool = False
    started_ms: int = 0
    started_s: float = 0.0
