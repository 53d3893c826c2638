"""Whose request a replica goes on with: a few of each caller in one turn of the event loop.

Requests that arrive together are recognised together, and would be answered together: eighty cheap
refusals of one caller held another caller's publish for 40 ms. A request that finds so many of its
holder's before it in this turn of the loop waits for a later one; other holders' requests, and what
arrives meanwhile, come between. Alone a request never waits. Decision 0191.
"""

from __future__ import annotations

import asyncio
from typing import Final

from core.market.sharing.fair_queue import FairQueue

# Of one holder in a turn of the loop, and of all that wait: each may take half a millisecond.
AT_ONCE: Final = 4


class RequestTurns:
    """The turns of one replica's requests; what waits is bounded by the places of open requests."""

    def __init__(self) -> None:
        self._waiting: FairQueue[int, asyncio.Future[None]] = FairQueue()
        self._begun: dict[str, int] = {}  # in this turn of the loop, by holder
        self._next: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<RequestTurns waiting={len(self._waiting)}>"

    async def take(self, holder: str) -> None:
        """Return when a request of this holder may go on.

        Args:
            holder: a DID, or an address.
        """
        loop = asyncio.get_running_loop()
        if self._begun.get(holder, 0) >= AT_ONCE or self._waiting.waiting_of(holder):
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.put(holder, id(turn), turn)
            try:
                await turn
            finally:
                self._waiting.drop(id(turn))  # still there when its client has left
        self._begun[holder] = self._begun.get(holder, 0) + 1
        if self._next is None:
            self._next = loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._begun.clear()
        # First, so that what goes on here counts in the next turn, in which it runs.
        loop = asyncio.get_running_loop()
        self._next = loop.call_soon(self._begin_turn) if len(self._waiting) else None
        for _ in range(AT_ONCE):
            turn = self._waiting.take()
            if turn is None:
                break
            if not turn.done():
                turn.set_result(None)
