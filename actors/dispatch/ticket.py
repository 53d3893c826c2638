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
        inflight_large: large dispatches whose bodies are built or being sent.
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
    """An order that is queued, open, or, with a timer `until`, held by its agent.

    Compared by identity: an order may be here twice, for two owners. `is_over`: the order was
    released while its request was open, so a later acceptance is not held. `step`: what an open
    order waits for. `is_large`: its inputs are built beside the loop. `is_counted`: it is large and
    open, and the agent's socket has not taken its body; `untaken`: the timer of that.
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
