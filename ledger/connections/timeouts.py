"""Cuts the connection to a server that sends nothing for too long.

A frozen server, or a lost machine that did not close its connections, never replies. The socket is
shut down, not closed, and no task is cancelled. So the current statement fails as if the server had
died, an error that every caller must handle anyway.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection


class cut_after:
    """Limits how long a `with` block waits for the server; after that its statements fail.

    It is a class, because a generator takes three times as long, and every read uses it.

    Args:
        connection: the connection of the block's statements.
        seconds: for the whole block.
    """

    __slots__ = ("_connection", "_seconds", "_timer")

    def __init__(self, connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, _cut, self._connection)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


async def driver_connection_of(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """Return the driver's connection under a pooled connection."""
    line = (await connection.get_raw_connection()).driver_connection
    assert isinstance(line, psycopg.AsyncConnection)
    return line


def _cut(connection: psycopg.AsyncConnection[Any]) -> None:
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # the connection is closed already
