"""Runs expensive reads one at a time in each process, so that the database has capacity for other
reads.

At any time only one read of each caller competes to run, so callers take turns. The number of reads
that wait or run is bounded, for each caller and in total. Further reads are refused. If other
callers fill the total, a caller without a read still gets a place, up to twice the total. Decision
refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from core.errors import ErrorCode, ServiceError
from core.market.sharing.fair_share import Held

# Maximum reads that wait or run, in total and of one caller.
READS_MAX: Final = 20
READS_OF_ONE_MAX: Final = 5


class ExpensiveReads:
    """The queue of expensive reads of one process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._of_caller: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reads = Held()

    def __repr__(self) -> str:
        return f"<ExpensiveReads reads={self._reads.total}>"

    @asynccontextmanager
    async def turn(self, caller: str = "") -> AsyncIterator[None]:
        """Wait until no other read runs, and run the block as the only read.

        Args:
            caller: the DID of the caller; "" for the service itself.

        Raises:
            ServiceError: OVERLOADED; too many reads wait.
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
