"""Opens connections to Postgres. If the caller is cancelled meanwhile, the connection is closed at
once.

A cancelled task keeps its error, and the error keeps the stack frames. The frames would keep a
half-open connection as long as anything refers to the task. For such a connection the server waits
until `authentication_timeout` for a password. Until then a statement that needs all processes of
the server (DROP DATABASE) does not end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg.types.string import TextLoader

CONNECT_TIMEOUT_S = 5


async def fetch(
    connection: psycopg.AsyncConnection[Any],
    query: str,
    values: Mapping[str, Any] | Sequence[Any] = (),
) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows.

    Args:
        query: SQL that this code contains, never text from a caller.
        values: the parameters.
    """
    cursor = await connection.execute(query.encode(), values)
    return await cursor.fetchall()


def columns_of(rows: Collection[tuple[Any, ...]]) -> list[list[Any]]:
    """Return the columns of rows (at least one row), as arrays for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)]


async def connect(
    url: str, *, timeout_s: int = CONNECT_TIMEOUT_S, **options: Any
) -> psycopg.AsyncConnection[Any]:
    """Open a connection in which each statement is a transaction, and UUIDs are read as texts.

    Args:
        url: `postgresql://…`.
        timeout_s: how long to wait for the server.
        options: options of psycopg and libpq.

    Raises:
        psycopg.Error: the server cannot be reached or refuses.
    """
    # A separate task, to which nothing refers after this function has returned.
    opening = asyncio.ensure_future(
        psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=timeout_s, **options)
    )
    try:
        connection = await asyncio.shield(opening)
        connection.adapters.register_loader("uuid", TextLoader)
        return connection
    except asyncio.CancelledError:
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()
        raise
    finally:
        del opening


# Texts in database URLs. Only processes on the same machine can reach a server with such a URL.
EMBEDDED_HOSTS: Final = ("127.0.0.1", "localhost", "%2F", "host=/")


def why_unreachable(url: str, *, timeout_s: float) -> str | None:
    """Return why a server does not accept a login, in one line without secrets; None if it does.

    Args:
        url: `postgresql://…` with the login.
        timeout_s: seconds for the connection, 2 or more.
    """
    try:
        psycopg.connect(url, connect_timeout=round(timeout_s)).close()
    except psycopg.Error as error:
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None
