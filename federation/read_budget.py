"""Bounds the time that all connections of a client take in one turn (iteration) of the event loop.

In one turn the loop reads every connection that has data. Hundreds of replies can arrive at once:
to handle 512 replies of 16 KB each in one turn took 2.2 s. So replies have a limited time per turn.
If this time is used up when a reply is complete, a later turn handles the reply, round robin over
payers. Decrypting TLS uses the same time. New connections have a separate time per turn, in the
order of their requests. This module knows no sockets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from core.market.sharing.fair_queue import FairQueue

# The time per turn. A turn can take three times as long: it may contain the rest of the previous
# time, and its last piece of work may exceed the time. So this is less than a third of the longest
# allowed turn.
TURN_S: Final = 0.003


class Reading(Protocol):
    """A connection with postponed work.

    Args:
        payer: the payer for whom the work is done.
    """

    payer: str

    def __hash__(self) -> int: ...

    def go_on(self) -> bool:
        """Do a piece of the postponed work; return whether there is more work."""


class ReadBudget:
    """The time per turn for one client's connections; must be created inside the event loop.

    Args:
        now_s: returns the time of a monotonic clock, seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_s = now_s
        # When the time of the current turn ends. Until then a connection only compares the clock
        # with it.
        self.ends_s = 0.0
        self._waiting: FairQueue[Reading, Reading] = FairQueue()
        # The call of `_go_on` in the loop's next turn; None if it is not scheduled.
        self._next: asyncio.Handle | None = None

    def is_used_up(self) -> bool:
        """Return whether this turn has no time left. The first call in a turn starts the time of
        the turn."""
        if self.now_s() < self.ends_s:
            return False
        if self._next is not None:
            return True
        self._begin()
        return False

    async def wait(self, cost_s: float) -> None:
        """Wait for a turn that has time left, and deduct the cost of later work from this time.

        Waiting callers return in the order of their calls.

        Args:
            cost_s: the time that a later callback will need, seconds.
        """
        while self.is_used_up():  # noqa: ASYNC110, there is no event for the end of a turn
            await asyncio.sleep(0)
        self.ends_s -= cost_s

    def put(self, connection: Reading) -> None:
        """Postpone the work of a connection to a later turn; the connection must not be waiting."""
        self._waiting.put(connection.payer, connection, connection)
        if self._next is None:
            self._next = self._loop.call_soon(self._go_on)

    def drop(self, connection: Reading) -> None:
        """Remove a waiting connection; does nothing if it does not wait."""
        self._waiting.drop(connection)

    def _begin(self, lasts_s: float = TURN_S) -> None:
        self.ends_s = self.now_s() + lasts_s
        self._next = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._next = None
        if not self._waiting:
            self.ends_s = min(self.ends_s, self.now_s() + TURN_S)
            return
        # This call must come first. If a connection raises an error below, the next turn is then
        # already scheduled. The time is doubled: otherwise the waiting work could use all of it in
        # every turn, and all new replies would be postponed.
        self._begin(2 * TURN_S)
        while (connection := self._waiting.take()) is not None:
            if connection.go_on():
                self._waiting.put(connection.payer, connection, connection)
            if self.now_s() >= self.ends_s:
                break
