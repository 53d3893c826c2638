"""Runs expensive reads one at a time in each process, which leaves room for other reads.

Callers take turns: of each, one read at a time waits for the turn. A bounded number of reads waits,
of one caller and of all callers; further reads are refused. A caller without a read gets a place
when others have taken those for all, up to twice as many.
Decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from core.errors import ErrorCode, ServiceError
from core.market.sharing.fair_share import Held

# Reads that wait or run, of all callers and of one caller.
READS_MAX: Final = 20
READS_OF_ONE_MAX: Final = 5


class ReadTurns:
    """The turns of one process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._of_caller: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reads = Held()

    def __repr__(self) -> str:
        return f"<ReadTurns reads={self._reads.total}>"

    @asynccontextmanager
    async def turn(self, caller: str = "") -> AsyncIterator[None]:
        """Wait for the turn and hold it for the length of the block.

        Args:
            caller: on whose behalf; "" for the service's own.

        Raises:
            ServiceError: OVERLOADED; too many wait.
        """
        reads, own = self._reads.total, self._reads.of(caller)
        room = READS_MAX if own else 2 * READS_MAX
        if reads >= room or own >= READS_OF_ONE_MAX:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"the queue of such reads is full: {reads} wait (limit {room}), {own} of"
                f" this caller (limit {READS_OF_ONE_MAX})",
                retry_after_s=1,
            )
        own_lock = self._of_caller.setdefault(caller, asyncio.Lock())
        self._reads.add(caller)
        try:
            async with own_lock, self._lock:
                yield
        finally:
            self._reads.remove(caller)
