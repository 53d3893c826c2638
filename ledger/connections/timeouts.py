"""Cuts the connection to Postgres when a block of statements exceeds its time limit.

A frozen server never replies, nor does a lost machine that did not close its connections. The
socket is shut down, and the current statement fails as if the server had died. Every caller handles
this error anyway, so no task needs to be cancelled.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import psycopg


class cut_after:
    """Limits the time of a `with` block with statements; after that its statements fail.

    It is a class, because `@contextmanager` takes three times as long, and every read uses it.

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


def _cut(connection: psycopg.AsyncConnection[Any]) -> None:
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # the connection is closed already
