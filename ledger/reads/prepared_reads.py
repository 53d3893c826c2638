"""Prepared reads on a separate connection, for reads that nearly every request needs.

psycopg prepares each statement. A read through SQLAlchemy takes three times as much processor time.
The rows are the same as those of `LedgerReader.rows`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from core.errors import ErrorCode, ServiceError
from ledger.connections.connect import CONNECT_TIMEOUT_S, connect
from ledger.connections.timeouts import cut_after
from ledger.reads.stored import RowDict
from ledger.schema import READER_ROLE, driver_url, session_options, unreachable

# Maximum statements that a connection keeps prepared, by text and parameter types.
KEPT_MAX: Final = 200


class PreparedReads:
    """Reads over one connection, opened on first use and reopened after it was lost.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
        timeout_s: how long a read waits for earlier reads. After that it waits as long for the
            connection and the reply together.
        statement_timeout_ms: after how long the server cancels a read; 0: never.
    """

    def __init__(self, url: str, *, timeout_s: float, statement_timeout_ms: int = 0) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._statement_timeout_ms = statement_timeout_ms
        self._connection: psycopg.AsyncConnection[RowDict] | None = None
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"PreparedReads(is_open={self._connection is not None})"

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def rows(self, statement: str, values: Mapping[str, Any]) -> list[RowDict]:
        """Return the rows of a statement.

        Args:
            values: values of the parameters, `%(name)s` in the statement.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; OVERLOADED, the server cancelled the read.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._turn.acquire()
        except TimeoutError as error:
            raise unreachable(error) from None
        try:
            ends_s = loop.time() + self._timeout_s
            return await self._read(statement, values, ends_s)
        except psycopg.errors.QueryCanceled:
            detail = "the search took too long: narrow it, or repeat it later"
            raise ServiceError(ErrorCode.OVERLOADED, detail, retry_after_s=5) from None
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise unreachable(error) from None
        finally:
            self._turn.release()

    async def _read(
        self, statement: str, values: Mapping[str, Any], ends_s: float
    ) -> list[RowDict]:
        was_open, time_s = self._connection is not None, asyncio.get_running_loop().time
        try:
            if self._connection is None:
                self._connection = await self._open()
            with cut_after(self._connection, ends_s - time_s()):
                cursor = await self._connection.execute(statement, values)
                return await cursor.fetchall()
        except psycopg.errors.QueryCanceled:
            raise  # the server cancelled the statement; the connection remains usable
        except (psycopg.OperationalError, psycopg.InterfaceError):
            await self.close()
            if not was_open or time_s() >= ends_s:
                raise
        except psycopg.DataError:
            raise  # the server refused a value; the connection remains usable
        except BaseException:
            # Cancelled by the caller: psycopg has cancelled the statement at the server.
            await self.close()
            raise
        # The connection was lost since the previous read (Postgres was restarted): repeat once.
        return await self._read(statement, values, ends_s)

    async def _open(self) -> psycopg.AsyncConnection[RowDict]:
        connection = await connect(
            driver_url(self._url),
            timeout_s=min(CONNECT_TIMEOUT_S, math.ceil(self._timeout_s)),
            # Statements are planned once, and must use indexes even if tables were small then.
            options=session_options(
                READER_ROLE,
                plan_cache_mode="force_generic_plan",
                enable_seqscan="off",
                statement_timeout=str(self._statement_timeout_ms),
            ),
            application_name="callboard-records",
            prepare_threshold=0,
            row_factory=dict_row,
        )
        connection.prepared_max = KEPT_MAX
        return connection
