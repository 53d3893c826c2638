"""Searches: reads whose cost depends on what callers have stored, apart from all other reads.

Connections of their own and one search at a time, in turns by caller, so that they never hold a
connection that another read waits for. The server ends a search that takes too long: it is shorter
than any caller waits, and ends the work, not only the waiting.
Decision registry-and-discovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncEngine

from core.errors import ErrorCode, ServiceError
from ledger.connections.pools import pool_of
from ledger.connections.timeouts import cut_after, driver_connection_of
from ledger.reads.prepared import PreparedReads, PreparedStatement
from ledger.reads.stored import RowDict
from ledger.reads.turns import ReadTurns
from ledger.schema import READER_ROLE, UNREACHABLE, unreachable, was_ended

SEARCH_TIMEOUT_MS: Final = 2_000


class SearchReads:
    """The connections of one process's searches.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
        timeout_s: how long a search waits for the connection, and then for a silent server.
        search_timeout_ms: how long the server works on one search.
    """

    def __init__(
        self, url: str, *, timeout_s: float, search_timeout_ms: int = SEARCH_TIMEOUT_MS
    ) -> None:
        self._timeout_s = timeout_s
        self._turns = ReadTurns()
        self._engine: AsyncEngine = pool_of(
            url,
            READER_ROLE,
            "callboard-searches",
            size=1,
            timeout_s=timeout_s,
            statement_timeout=str(search_timeout_ms),
        )
        self._prepared = PreparedReads(
            url, timeout_s=timeout_s, statement_timeout_ms=search_timeout_ms
        )

    def __repr__(self) -> str:
        return f"SearchReads({self._turns!r})"

    async def close(self) -> None:
        """Close the connections."""
        await self._prepared.close()
        await self._engine.dispose()

    async def prepared_rows(
        self, statement: PreparedStatement, values: Mapping[str, Any], *, caller: str
    ) -> list[RowDict]:
        """Return the rows of a search whose statement is nearly always one of a few.

        Args:
            caller: who asks, by DID.

        Raises:
            ServiceError: as `rows`.
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
            values: of the query's named parameters.
            caller: who asks, by DID.

        Raises:
            ServiceError: OVERLOADED, too many searches wait or this one took too long;
                LEDGER_UNAVAILABLE.
        """
        async with self._turns.turn(caller):
            try:
                async with self._engine.connect() as connection:
                    with cut_after(await driver_connection_of(connection), self._timeout_s):
                        result = await connection.execute(query, values)
                    return [dict(row) for row in result.mappings()]
            except UNREACHABLE as error:
                if was_ended(error):
                    detail = "the search took too long: narrow it, or repeat it later"
                    raise ServiceError(ErrorCode.OVERLOADED, detail, retry_after_s=5) from None
                raise unreachable(error) from None
