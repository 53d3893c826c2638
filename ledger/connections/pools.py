"""Pools of connections that act as one role: how reads and the operational writes reach Postgres.

The one writer of the audited tables has a connection of its own (`ledger/writer/store.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from core.errors import ErrorCode, ServiceError
from ledger.connections.connecting import connect
from ledger.connections.timeouts import cut_after, driver_connection_of
from ledger.schema import (
    OPERATIONAL_ROLE,
    UNREACHABLE,
    driver_url,
    engine_url,
    session_options,
    unreachable,
    was_ended,
)

OPERATIONAL_TIMEOUT_S: Final = 5.0


class Pool:
    """Connections that act as one role, opened when first needed.

    Args:
        url: `postgresql://…` of a login that is a member of `role`.
        name: how the server lists the connections.
        size: connections, 1 or more.
        timeout_s: how long a statement waits for a connection, and then for the server.
        too_slow: what a caller is told when the server has ended a statement at its timeout, and
            after how many seconds it may ask again.
        settings: of the server, for these sessions.
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
        self.engine = pool_of(url, role, name, size=size, timeout_s=timeout_s, **settings)

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()

    async def rows(
        self, statement: sql.Executable, values: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Run one statement as a transaction and return its rows, if it has any.

        Args:
            values: of the statement's named parameters.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE, whether it was carried out is not known; OVERLOADED,
                the server ended it at its timeout.
        """
        try:
            async with self.engine.connect() as connection:
                with cut_after(await driver_connection_of(connection), self._timeout_s):
                    result = await connection.execute(statement, values)
                    found = result.mappings() if result.returns_rows else ()
                    return [dict(row) for row in found]
        except UNREACHABLE as error:
            if was_ended(error):
                detail, retry_after_s = self._too_slow
                raise ServiceError(
                    ErrorCode.OVERLOADED, detail, retry_after_s=retry_after_s
                ) from None
            raise unreachable(error) from None

    async def row(
        self, statement: sql.Executable, values: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the first row of a statement, None without one; otherwise as `rows`."""
        rows = await self.rows(statement, values)
        return rows[0] if rows else None


class OperationalPool(Pool):
    """Connections of the role `ops_writer`, which has no right on audited tables.

    The stores of operational rows are such pools, each with its own statements.

    Attributes:
        name, size, timeout_s: as of `Pool`.
        is_durable: whether a statement waits for the disk; otherwise a crash may forget the last.
        statement_timeout_ms: how long the server works on a statement; 0: as long as it takes.

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


def pool_of(
    url: str, role: str, name: str, *, size: int, timeout_s: float, **settings: str
) -> AsyncEngine:
    """Make a pool; its connections are opened when first needed.

    A statement is a transaction: no BEGIN and COMMIT round trips, no snapshot held open.

    Args:
        url: `postgresql://…` of a login that is a member of `role`.
        name: how the server lists the connections.
        size: connections, 1 or more.
        timeout_s: how long a caller waits for one.
        settings: of the server, for these sessions.
    """
    return create_async_engine(
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
