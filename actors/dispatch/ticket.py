"""An order on its way through the dispatcher: where it is, what it holds there, and the limits."""

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
        inflight_start: dispatches in flight whose reply is not late.
        inflight_max: dispatches in flight.
        inflight_share: a payer has at most 1/n of the dispatches that others leave.
        inflight_bytes_max: bytes of dispatch bodies that are being sent.
        body_bytes_max: of a dispatch body.
        result_inline_bytes_max: larger results go by reference.
        connect_timeout_ms: of opening a connection to an agent.
        cancel_notice_timeout_ms: of the one try of a cancel notice.
        transfer_timeout_s: an agent takes a body within this time plus its size by the rate.
        transfer_rate_min: bytes a second.
    """

    inflight_start: int = 64
    inflight_max: int = 2_048
    inflight_share: int = 4
    inflight_bytes_max: int = 256 * _MIB
    body_bytes_max: int = 8 * _MIB
    result_inline_bytes_max: int = RESULT_INLINE_BYTES_MAX
    connect_timeout_ms: int = 5_000
    cancel_notice_timeout_ms: int = 2_000
    transfer_timeout_s: float = 10.0
    transfer_rate_min: int = 64 * 1024


DEFAULT_LIMITS: Final = DispatchLimits()

Receive = Callable[[str, Event], None]


class Ticket(Struct, eq=False):
    """An order that is queued, open, or, with a timer `until`, held by its agent.

    Compared by identity: an order may be here twice, for two owners. `is_over`: the order was
    released while its request was open, so a later acceptance is not held. `step`: what an open
    order waits for. `bytes_max`: the most that its body has, 0 where that does not count.
    `bytes_held`: of its body, until the agent's socket has taken it; `untaken`: the timer of that.
    """

    order: DispatchOrder
    receive: Receive
    until: asyncio.TimerHandle | None = None
    is_over: bool = False
    step: asyncio.Task[None] | Exchange | None = None
    bytes_max: int = 0
    bytes_held: int = 0
    untaken: asyncio.TimerHandle | None = None
    is_sent: bool = False
    started_ms: int = 0
    started_s: float = 0.0
