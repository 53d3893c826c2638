"""Removes expired rows, in the processes that write new rows.

A removal runs in the background. The call that starts a removal does not wait for its end, and does
not fail if the removal fails. Each statement removes a bounded number of rows, because another call
may have to wait until the statement ends.
"""

from __future__ import annotations

import time
from typing import Final

import sqlalchemy as sql

from ledger.connections.pools import OperationalPool
from ledger.merged_runs import MergedRuns

# The pause between two removals.
PAUSE_S: Final = 60.0


class OldRows:
    """Removes the expired rows of one table.

    Args:
        name: the name of the rows in log messages.
        pool: runs the statement.
        statement: removes some expired rows, oldest first, and returns one row whose column `rows`
            is their number.
    """

    def __init__(self, name: str, pool: OperationalPool, statement: sql.TextClause) -> None:
        self._pool = pool
        self._statement = statement
        self._removed_at = time.monotonic()
        self._runs = MergedRuns(f"removing old {name}", self.remove)

    async def close(self) -> None:
        """Cancel the current removal; the pool stays open."""
        await self._runs.close()

    def remove_soon(self) -> None:
        """Start a removal in the background, unless one began less than `PAUSE_S` ago."""
        if time.monotonic() - self._removed_at > PAUSE_S:
            self._removed_at = time.monotonic()
            self._runs.soon()

    async def remove(self) -> None:
        """Remove all expired rows, some with each statement.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        while await self.remove_some():
            pass

    async def remove_some(self) -> int:
        """Remove some expired rows; return their number.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        (row,) = await self._pool.rows(self._statement)
        return int(row["rows"])
