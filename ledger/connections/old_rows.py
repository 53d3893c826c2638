"""Rows whose time is over, removed by the processes that write new ones.

Beside their calls, so that no caller waits for it or fails with it; a bounded number with each
statement, because the next call may wait that long. Which rows are old the statement says.
"""

from __future__ import annotations

import time
from typing import Final

import sqlalchemy as sql

from ledger.connections.pools import OperationalPool
from ledger.merged_runs import MergedRuns

# How long they are left between two removals.
PAUSE_S: Final = 60.0


class OldRows:
    """The old rows of one table.

    Args:
        name: of the rows, for messages.
        pool: by which they are removed.
        statement: removes some of them, the oldest first, and returns one row: `rows`, how many.
    """

    def __init__(self, name: str, pool: OperationalPool, statement: sql.TextClause) -> None:
        self._pool = pool
        self._statement = statement
        self._removed_at = time.monotonic()
        self._runs = MergedRuns(f"removing old {name}", self.remove)

    async def close(self) -> None:
        """End the removal that is under way; the pool stays open."""
        await self._runs.close()

    def remove_soon(self) -> None:
        """Begin to remove them, unless that was done less than the pause ago."""
        if time.monotonic() - self._removed_at > PAUSE_S:
            self._removed_at = time.monotonic()
            self._runs.soon()

    async def remove(self) -> None:
        """Remove them all, some with each statement.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        while await self.remove_some():
            pass

    async def remove_some(self) -> int:
        """Remove some of them; return how many it were.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        (row,) = await self._pool.rows(self._statement)
        return int(row["rows"])
