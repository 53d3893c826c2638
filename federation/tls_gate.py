"""Bounds what a server can cost by TLS: the bytes of its session, and the time in each loop turn.

The event loop's own TLS reads up to 256 KiB of a connection at once and decrypts it, although a
server can send any number of messages that carry nothing and cost 20 us for 27 bytes. A gate stands
between the TCP connection and the loop's TLS protocol: it reads a few kilobytes at a time, hands
them on in a turn of the loop that has time left, payers in turn, and counts them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from federation.read_turns import ReadTurns

# Read and decrypted at once. A message without payload has 27 bytes and costs 20 us.
SESSION_STEP_BYTES: Final = 4 * 1024
# Bytes of a session that carry nothing (handshake, tickets, changes of keys): so many, and so many
# more per byte that is carried, because a record has 22 bytes or more besides its payload.
SESSION_BYTES_MAX: Final = 32 * 1024
SESSION_BYTES_PER_BYTE: Final = 8


class Above(Protocol):
    """The protocol that gets the decrypted bytes."""

    payer: str
    carried_bytes: int

    def pause_writing(self) -> None:
        """Write no more."""

    def resume_writing(self) -> None:
        """Write on."""


class TlsGate(asyncio.BufferedProtocol):
    """Hands what comes on a TCP connection to the loop's TLS protocol.

    Args:
        transport: of the TCP connection.
        tls: the loop's TLS protocol, a buffered one; uvloop's is no `asyncio.BufferedProtocol`.
        above: the protocol above TLS.
        turns: the time of all connections in a turn of the loop.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        tls: Any,
        above: Above,
        turns: ReadTurns,
    ) -> None:
        self.payer = above.payer
        self._transport = transport
        self._tls = tls
        self._above = above
        self._turns = turns
        self._session_bytes = 0
        # Bytes in the TLS protocol's buffer that it has not been told of.
        self._waiting_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the first bytes of the TLS protocol's buffer."""
        return memoryview(self._tls.get_buffer(sizehint))[:SESSION_STEP_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand the bytes on now or in a later turn; end a session that carries too little."""
        self._session_bytes += nbytes
        carried = self._above.carried_bytes
        if self._session_bytes - carried > SESSION_BYTES_MAX + SESSION_BYTES_PER_BYTE * carried:
            self._transport.abort()
        elif self._turns.is_used_up():
            self._waiting_bytes = nbytes
            self._transport.pause_reading()
            self.payer = self._above.payer
            self._turns.put(self)
        else:
            self._tls.buffer_updated(nbytes)

    def go_on(self) -> bool:
        """Hand on what waits, and read on."""
        waiting, self._waiting_bytes = self._waiting_bytes, 0
        self._tls.buffer_updated(waiting)
        if not self._transport.is_closing():
            self._transport.resume_reading()
        return False

    def eof_received(self) -> bool | None:
        """Hand on that the server sends nothing more."""
        is_kept: bool | None = self._tls.eof_received()
        return is_kept

    def connection_lost(self, error: Exception | None) -> None:
        """Hand on that the connection has ended."""
        self._turns.drop(self)
        self._tls.connection_lost(error)

    def pause_writing(self) -> None:
        """Pause both protocols: uvloop's TLS never pauses the one above it."""
        self._tls.pause_writing()
        self._above.pause_writing()

    def resume_writing(self) -> None:
        """Let both protocols write on."""
        self._tls.resume_writing()
        self._above.resume_writing()
