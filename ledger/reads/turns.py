"""Reads that add much up take turns, so that they leave the database to the others.

One at a time per process; a bounded number waits, the rest is refused. design.md section 3
(Bounds); decision 0117.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from core.errors import ErrorCode, ServiceError

WAITING_MAX: Final = 20


class ReadTurns:
    """The turns of one process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<ReadTurns waiting={self._waiting}>"

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn and hold it for the length of the block.

        Raises:
            ServiceError: OVERLOADED; too many wait.
        """
        if self._waiting >= WAITING_MAX:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{self._waiting} such reads wait, at most {WAITING_MAX} may",
                retry_after_s=1,
            )
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()
