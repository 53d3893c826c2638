"""One TLS session of a client over bytes that are moved by others.

Knows no sockets. The event loop's own TLS takes whatever is written at once, drops what it has not
handed on when the server closes, and reads 256 KiB of a connection whatever the turn has cost; a
session over a plain connection pauses, writes and ends as that does. Decision 0193.
"""

from __future__ import annotations

import ssl


class TlsSession:
    """A session that begins with a handshake.

    Args:
        server_name: of the server's certificate.

    Raises:
        ValueError: no certificate can have this name.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "error", "is_ended")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        # The server has said that nothing more comes, or its bytes are no TLS.
        self.is_ended = False
        self.error: ssl.SSLError | None = None

    def __repr__(self) -> str:
        return f"<TlsSession {self._object.version()} ended={self.is_ended}>"

    def shake_hands(self) -> bool:
        """Go on with the handshake; return whether it is complete.

        Raises:
            ssl.SSLError: it has failed; `take_outgoing` returns what the server is to be told.
        """
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def receive(self, encrypted: memoryview) -> None:
        """Take bytes of the server."""
        self._incoming.write(encrypted)

    @property
    def has_unread(self) -> bool:
        """Whether `read_into` may have something to read."""
        return bool(self._incoming.pending or self._object.pending()) and not self.is_ended

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt what has come until the buffer is full; return how many bytes are in it."""
        read, size, incoming, decrypting = 0, len(buffer), self._incoming, self._object
        try:
            while True:
                # One record at most.
                part = int(decrypting.read(size - read, buffer[read:] if read else buffer))
                read += part
                if not part:
                    self.is_ended = True
                    break
                if read == size or not (incoming.pending or decrypting.pending()):
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.is_ended, self.error = True, error
        return read

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt bytes for the server.

        Raises:
            ssl.SSLError: the session has failed.
        """
        while len(data) > (written := self._object.write(data)):
            data = memoryview(data)[written:]

    def take_outgoing(self) -> bytes:
        """Return what is to be sent to the server."""
        return self._outgoing.read()
