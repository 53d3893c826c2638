"""Pools of connections with one role, for reads and for operational writes.

The writer of the audited tables has its own connection (`ledger/writer/store.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import psycopg
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import create_async_engine

from core.errors import ErrorCode, ServiceError
from ledger.connections.connect import connect
from ledger.connections.timeouts import cut_after
from ledger.schema import (
    OPERATIONAL_ROLE,
    UNREACHABLE,
    driver_url,
    engine_url,
    is_statement_timeout,
    session_options,
    unreachable,
)

OPERATIONAL_TIMEOUT_S: Final = 5.0


class Pool:
    """Connections with one role, opened when first needed.

    Each statement is a transaction. This saves the round trips of BEGIN and COMMIT, and keeps no
    snapshot open.

    Args:
        url: `postgresql://…` of a login that is a member of `role`.
        name: the name of the connections in the server's lists.
        size: number of connections, 1 or more.
        timeout_s: how long a statement waits for a connection, and then for the server.
        too_slow: (error message, seconds until a retry) for a statement that the server has
            cancelled at its timeout.
        settings: the server's settings in these sessions.
    """

    def __init__(
        self,
        url: str,
        role: str,
        name: str,
        *,
        size: int,
        timeout_s: float,
        too_slow: tuple[str, int] = ("a statement took too long", 1),
        **settings: str,
    ) -> None:
        self._timeout_s = timeout_s
        self._too_slow = too_slow
        self.engine = create_async_engine(
            engine_url(url),
            pool_size=size,
            max_overflow=0,
            pool_timeout=timeout_s,
            isolation_level="AUTOCOMMIT",
            async_creator=partial(
                connect,
                driver_url(url),
                options=session_options(role, **settings),
                application_name=name,
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()

    async def rows(
        self, statement: sql.Executable, values: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Run one statement as a transaction and return its rows, if it has any.

        Args:
            values: values of the statement's named parameters.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE: it is unknown whether the statement was executed;
                OVERLOADED: the server cancelled the statement at its timeout.
        """
        try:
            async with self.engine.connect() as connection:
                driver = (await connection.get_raw_connection()).driver_connection
                assert isinstance(driver, psycopg.AsyncConnection)
                with cut_after(driver, self._timeout_s):
                    result = await connection.execute(statement, values)
                    found = result.mappings() if result.returns_rows else ()
                    return [dict(row) for row in found]
        except UNREACHABLE as error:
            if is_statement_timeout(error):
                detail, retry_after_s = self._too_slow
                raise ServiceError(
                    ErrorCode.OVERLOADED, detail, retry_after_s=retry_after_s
                ) from None
            raise unreachable(error) from None

    async def row(
        self, statement: sql.Executable, values: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the first row of a statement, or None; otherwise like `rows`."""
        rows = await self.rows(statement, values)
        return rows[0] if rows else None


class OperationalPool(Pool):
    """Connections with the role `ops_writer`, which has no right on audited tables.

    Each store of operational rows is a subclass with its own statements.

    Attributes:
        name, size, timeout_s: as for `Pool`.
        is_durable: whether commits wait for the disk. If False, a crash may lose the newest
            commits.
        statement_timeout_ms: after how long the server cancels a statement; 0: never.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
    """

    name: str
    is_durable: bool
    size = 1
    timeout_s = OPERATIONAL_TIMEOUT_S
    statement_timeout_ms = 0

    def __init__(self, url: str) -> None:
        super().__init__(
            url,
            OPERATIONAL_ROLE,
            self.name,
            size=self.size,
            timeout_s=self.timeout_s,
            too_slow=(f"a statement of {self.name} took too long", 1),
            synchronous_commit="on" if self.is_durable else "off",
            statement_timeout=str(self.statement_timeout_ms),
        )
