"""Searches: reads whose cost depends on what callers have stored, separated from all other reads.

Searches have their own connections and run one at a time, so that no other read waits for them. The
server cancels a search that takes too long. This timeout is shorter than the timeout of the caller,
so no search continues after its caller has given up. Decision registry-and-discovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sql

from ledger.connections.pools import Pool
from ledger.reads.expensive_reads import ExpensiveReads
from ledger.reads.prepared_reads import PreparedReads
from ledger.reads.stored import RowDict
from ledger.schema import READER_ROLE


class SearchReads:
    """Runs the searches of one process.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
        timeout_s: how long a search waits for the connection, and then for a silent server.
    """

    # After this time the server cancels a search.
    search_timeout_ms = 2_000

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._turns = ExpensiveReads()
        self._pool = Pool(
            url,
            READER_ROLE,
            "callboard-searches",
            size=1,
            timeout_s=timeout_s,
            too_slow=("the search took too long: narrow it, or repeat it later", 5),
            statement_timeout=str(self.search_timeout_ms),
        )
        self._prepared = PreparedReads(
            url, timeout_s=timeout_s, statement_timeout_ms=self.search_timeout_ms
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._prepared.close()
        await self._pool.close()

    async def prepared_rows(
        self, statement: str, values: Mapping[str, Any], *, caller: str
    ) -> list[RowDict]:
        """Return the rows of a search with a prepared statement, for searches with few different
        SQL texts.

        Args:
            caller: the DID that searches; callers take turns.

        Raises:
            ServiceError: as for `rows`.
        """
        async with self._turns.turn(caller):
            return await self._prepared.rows(statement, values)

    async def rows(
        self,
        query: sql.Executable,
        values: Mapping[str, Any] | None = None,
        *,
        caller: str,
    ) -> list[RowDict]:
        """Return the rows of a search.

        Args:
            values: values of the query's named parameters.
            caller: the DID that searches; callers take turns.

        Raises:
            ServiceError: OVERLOADED, too many searches wait or this one took too long;
                LEDGER_UNAVAILABLE.
        """
        async with self._turns.turn(caller):
            return await self._pool.rows(query, values)
