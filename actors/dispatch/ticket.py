"""An order on its way through the dispatcher: where it is, and what it holds there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from actors.ports import DispatchOrder
from core.workflow.events import Event
from federation.http_connection import Exchange

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
