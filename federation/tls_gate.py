"""Bounds the cost of TLS with a server: the bytes of a session, and the time per turn of the loop.

The event loop's TLS protocol reads up to 256 KiB of a connection at once and decrypts it. A server
can send any number of TLS messages without payload, and each message of 27 bytes costs 20 us. So a
gate stands between the TCP connection and the loop's TLS protocol. The gate reads a few kilobytes
at a time and counts them. It passes them on in a turn of the loop that has time left
(`read_budget.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from federation.read_budget import ReadBudget

# The most bytes that are read and decrypted at once.
SESSION_STEP_BYTES: Final = 4 * 1024
# The maximum of a session's bytes that are not payload (handshake, tickets, key updates): a fixed
# number plus a number per payload byte. Each record has at least 22 bytes besides its payload.
SESSION_BYTES_MAX: Final = 32 * 1024
SESSION_BYTES_PER_BYTE: Final = 8


class Above(Protocol):
    """The protocol above TLS, which gets the decrypted bytes.

    `carried_bytes`: the decrypted bytes that it has received.
    """

    payer: str
    carried_bytes: int

    def pause_writing(self) -> None:
        """Stop writing."""

    def resume_writing(self) -> None:
        """Continue writing."""


class TlsGate(asyncio.BufferedProtocol):
    """Passes the bytes of a TCP connection to the loop's TLS protocol.

    Args:
        transport: the transport of the TCP connection.
        tls: the loop's TLS protocol. It has the methods of `asyncio.BufferedProtocol`, but uvloop's
            class does not inherit from it.
        above: the protocol above TLS.
        turns: limits the time of all connections in a turn of the loop.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        tls: Any,
        above: Above,
        turns: ReadBudget,
    ) -> None:
        self.payer = above.payer
        self._transport = transport
        self._tls = tls
        self._above = above
        self._turns = turns
        self._session_bytes = 0
        # Bytes in the TLS protocol's buffer that were not passed on yet.
        self._waiting_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the first `SESSION_STEP_BYTES` of the TLS protocol's buffer."""
        return memoryview(self._tls.get_buffer(sizehint))[:SESSION_STEP_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the bytes on, now or in a later turn; end a session with too little payload."""
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
        """Pass on the waiting bytes, and continue reading."""
        waiting, self._waiting_bytes = self._waiting_bytes, 0
        self._tls.buffer_updated(waiting)
        if not self._transport.is_closing():
            self._transport.resume_reading()
        return False

    def eof_received(self) -> bool | None:
        """Tell the TLS protocol that the server sends nothing more."""
        is_kept: bool | None = self._tls.eof_received()
        return is_kept

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the TLS protocol that the connection has ended."""
        self._turns.drop(self)
        self._tls.connection_lost(error)

    def pause_writing(self) -> None:
        """Pause writing in both protocols: uvloop's TLS protocol does not pause the one above."""
        self._tls.pause_writing()
        self._above.pause_writing()

    def resume_writing(self) -> None:
        """Resume writing in both protocols."""
        self._tls.resume_writing()
        self._above.resume_writing()
