"""Reads that look at much take turns, so that they leave the database to the others.

One at a time per process; callers that wait are served round robin. A bounded number waits, of one
caller and of all, the rest is refused. Decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from core.errors import ErrorCode, ServiceError
from core.market.sharing.fair_queue import FairQueue

WAITING_MAX: Final = 20
WAITING_OF_ONE_MAX: Final = 5


class ReadTurns:
    """The turns of one process."""

    def __init__(self) -> None:
        self._is_held = False
        self._queue: FairQueue[int, asyncio.Future[None]] = FairQueue()

    def __repr__(self) -> str:
        return f"<ReadTurns waiting={len(self._queue)}>"

    @asynccontextmanager
    async def turn(self, caller: str = "") -> AsyncIterator[None]:
        """Wait for the turn and hold it for the length of the block.

        Args:
            caller: on whose behalf; "" for the service's own.

        Raises:
            ServiceError: OVERLOADED; too many wait.
        """
        if self._is_held:
            await self._wait(caller)
        self._is_held = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, caller: str) -> None:
        waiting, own = len(self._queue), self._queue.waiting_of(caller)
        if waiting >= WAITING_MAX or own >= WAITING_OF_ONE_MAX:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"the queue of such reads is full: {waiting} wait (limit {WAITING_MAX}), {own} of"
                f" this caller (limit {WAITING_OF_ONE_MAX})",
                retry_after_s=1,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(caller, id(turn), turn)
        try:
            await turn
        except asyncio.CancelledError:
            if self._queue.drop(id(turn)) is None and not turn.cancelled():
                self._pass_on()  # it was this one's already
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next that waits; it stays held meanwhile."""
        turn = self._queue.take()
        while turn is not None and turn.done():
            turn = self._queue.take()
        self._is_held = turn is not None
        if turn is not None:
            turn.set_result(None)
