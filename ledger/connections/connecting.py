"""Opens connections so that one whose caller leaves half way is closed at once.

A task that was cancelled keeps its error, the error keeps the frames, and those keep a half-open
connection for as long as anything refers to the task. The server waits for the password of such a
client for `authentication_timeout`, and nothing that all processes of the server must take note of
(DROP DATABASE) ends before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import psycopg

# Opens connections so that one whose caller leaves half way is closed at once. A task that was
# cancelled keeps its error, the error keeps the frames, and those keep a half-open connection for
# as long as anything refers to the task. The server waits for the password of such a client for
# `authentication_timeout`, and nothing that all processes of the server must take note of (DROP
# DATABASE) ends before.

CONNECT_TIMEOUT_S = 5


async def fetch(
    connection: psycopg.AsyncConnection[Any],
    query: str,
    values: Mapping[str, Any] | Sequence[Any] = (),
) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows.

    Args:
        query: our own text, never a caller's.
    """
    cursor = await connection.execute(query.encode(), values)
    return await cursor.fetchall()


def columns_of(rows: Collection[tuple[Any, ...]]) -> list[list[Any]]:
    """Return the columns of rows of which there is one at least: arrays for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)]


async def connect(
    url: str, *, timeout_s: int = CONNECT_TIMEOUT_S, **options: Any
) -> psycopg.AsyncConnection[Any]:
    """Open a connection; each statement is a transaction by itself.

    Args:
        url: `postgresql://…`.
        timeout_s: how long to wait for the server.
        options: psycopg's, and libpq's.

    Raises:
        psycopg.Error: the server cannot be reached or refuses.
    """
    # A task of its own, to which nothing refers any longer when this returns.
    opening = asyncio.ensure_future(
        psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=timeout_s, **options)
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()
        raise
    finally:
        del opening


# What the URL of a server that only its own machine reaches contains.
EMBEDDED_HOSTS: Final = ("127.0.0.1", "localhost", "%2F", "host=/")


def why_unreachable(url: str, *, timeout_s: float) -> str | None:
    """Return why a server does not take a login, in one line without secrets; None if it does.

    Args:
        url: `postgresql://…`, of the login.
        timeout_s: seconds for the connection, 2 or more.
    """
    try:
        psycopg.connect(url, connect_timeout=round(timeout_s)).close()
    except psycopg.Error as error:
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None
