"""Timeouts of a server that says nothing: its connection is shut down.

A frozen server, and a machine that vanished without closing its connections, never answer. The
socket is shut down, not closed, and nothing is cancelled: the statement under way fails just as if
the server had died, which every caller survives anyway.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection


class cut_after:
    """Lets a `with` block wait for the server so long; afterwards its statements fail.

    A class, since a generator takes three times as long, and every read has one.

    Args:
        connection: what the block's statements run on.
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
    """Return what a pooled connection talks over."""
    line = (await connection.get_raw_connection()).driver_connection
    assert isinstance(line, psycopg.AsyncConnection)
    return line


def _cut(connection: psycopg.AsyncConnection[Any]) -> None:
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # it has broken by itself
