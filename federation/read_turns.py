"""Bounds what all connections of a client read in one turn of the loop.

A loop may read a connection's bytes until there are no more, and a hundred replies of a megabyte
can be there at once: parsing them took 270 ms. So a connection that reads when enough was read in a
turn pauses, and a few of those that have paused longest go on with each later turn. Small reads are
not counted, they end by themselves. Knows no sockets. Decision 0140.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

# Of bytes received or decoded; they cost 2 to 3 ms per MiB.
TURN_BYTES_MAX: Final = 2 * 1024 * 1024
# Reads of less are not counted.
COUNTED_BYTES_MIN: Final = 16 * 1024
# Paused connections that go on in a turn: each reads once at least.
RESUMED_MAX: Final = 32


class Reading(Protocol):
    """A connection that can stop reading for a while."""

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`; nothing of what has come is lost."""

    def resume_reading(self) -> None:
        """Read on, unless the connection has ended."""


class ReadTurns:
    """The reads of one client's connections; made inside its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._bytes = 0
        self._paused: deque[Reading] = deque()
        self._next: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<ReadTurns bytes={self._bytes} paused={len(self._paused)}>"

    def count(self, connection: Reading, size: int) -> None:
        """Count a read of a connection, which pauses when the turn has read enough.

        Args:
            size: bytes received or, if that is more, decoded.
        """
        if size < COUNTED_BYTES_MIN:
            return
        self._bytes += size
        if self._next is None:
            self._next = self._loop.call_soon(self._begin_turn)
        if self._bytes > TURN_BYTES_MAX:
            connection.pause_reading()
            self._paused.append(connection)

    def close(self) -> None:
        """Let no paused connection go on."""
        self._paused.clear()
        if self._next is not None:
            self._next.cancel()

    def _begin_turn(self) -> None:
        self._bytes = 0
        try:
            for _ in range(min(len(self._paused), RESUMED_MAX)):
                self._paused.popleft().resume_reading()
        finally:  # what one connection raises ends this turn, not the ones after it
            self._next = self._loop.call_soon(self._begin_turn) if self._paused else None
