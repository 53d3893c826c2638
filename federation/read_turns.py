"""Bounds the time that all connections of a client take in one turn of the loop.

A loop reads every connection that has something in one turn, and hundreds of replies can be there
at once: judging 512 of 16 KB each took 2.2 s. So replies use up the time of a turn; a reply that is
complete after it is decoded and judged in a later turn, payers in turn. What comes by TLS is
decrypted like this. New connections use up a time of their own, in the order in which they come.
Knows no sockets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from core.market.sharing.fair_queue import FairQueue

# Less than a third of the longest turn allowed: the last piece of work may take as long, and so may
# the rest of an earlier turn's time, which ends in this one.
TURN_S: Final = 0.003


class Reading(Protocol):
    """A connection with work that was put off.

    Args:
        payer: whose work it is.
    """

    payer: str

    def __hash__(self) -> int: ...

    def go_on(self) -> bool:
        """Do a piece of the work; return whether there is more."""


class ReadTurns:
    """The time of one client's connections in a turn; made inside its event loop.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_s = now_s
        # Until then reads cost no more than looking at the clock.
        self.ends_s = 0.0
        self._waiting: FairQueue[Reading, Reading] = FairQueue()
        # Runs in the loop's next turn.
        self._next: asyncio.Handle | None = None

    def is_used_up(self) -> bool:
        """Say whether the turn has no time left; if `ends_s` was in another, a new one begins."""
        if self.now_s() < self.ends_s:
            return False
        if self._next is not None:
            return True
        self._begin()
        return False

    async def wait(self, cost_s: float) -> None:
        """Return in a turn that has time left, and use up some of it: work of a later callback.

        Callers go on in the order of their calls.
        """
        while self.is_used_up():  # noqa: ASYNC110, no event: the turn ends by itself
            await asyncio.sleep(0)
        self.ends_s -= cost_s

    def put(self, connection: Reading) -> None:
        """Let a connection that does not wait go on in a later turn."""
        self._waiting.put(connection.payer, connection, connection)
        if self._next is None:
            self._next = self._loop.call_soon(self._go_on)

    def drop(self, connection: Reading) -> None:
        """Forget a connection, if it waits."""
        self._waiting.drop(connection)

    def _begin(self, lasts_s: float = TURN_S) -> None:
        self.ends_s = self.now_s() + lasts_s
        self._next = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._next = None
        if not self._waiting:
            self.ends_s = min(self.ends_s, self.now_s() + TURN_S)
            return
        # First: what one connection raises ends this turn, not the ones after it. Twice, as for a
        # turn that begins in the time of another: with the time of one, what waits may take all of
        # it and what comes be late, turn after turn.
        self._begin(2 * TURN_S)
        while (connection := self._waiting.take()) is not None:
            if connection.go_on():
                self._waiting.put(connection.payer, connection, connection)
            if self.now_s() >= self.ends_s:
                break
