"""uvicorn's HTTP protocol, changed to write the head and the body of a reply in one system call.

uvicorn writes the head of a reply when the application sends it, and the body separately. That
costs two system calls here and two reads in HAProxy. This module delays the head until the next
write, or until the next iteration of the event loop, whichever is first. So a late body does not
delay the head.

The module relies on uvicorn writing a head as one piece. Decision messages-and-large-values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, cast

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class WholeReplies(HttpToolsProtocol):
    """uvicorn's HTTP protocol over a transport that holds heads back.

    `on_stop`: called when the server begins to stop. The server then waits until all replies end,
    so `on_stop` must end the event streams.
    """

    on_stop: ClassVar[Callable[[], object]] = lambda: None

    def shutdown(self) -> None:
        """End the event streams. Then close the connection when its current reply is complete."""
        type(self).on_stop()
        super().shutdown()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection and wrap its transport."""
        holding = _HoldingTransport(transport, self.loop)
        # The wrapper forwards every attribute that it does not define to the real transport.
        super().connection_made(cast(asyncio.Transport, holding))


class _HoldingTransport:
    """A transport that joins a head with the next write of the same event loop iteration."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, written: bytes) -> None:
        """Hold a head back. Write any other bytes at once, after the held head."""
        if self._head:
            written, self._head = self._head + written, b""
        elif written.startswith(_HEAD):
            # The reply 100 Continue and a part of a body may begin with `_HEAD` too. Delaying them
            # is harmless, because the order of all bytes stays the same.
            self._head = written
            self._loop.call_soon(self._write_head)
            return
        self._transport.write(written)

    def close(self) -> None:
        """Write the held head, and close the transport."""
        self._write_head()
        self._transport.close()

    def _write_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


def serve_whole_replies(on_stop: Callable[[], object]) -> None:
    """Make `WholeReplies` the default HTTP protocol of uvicorn in this process.

    Args:
        on_stop: called for each connection when a server begins to stop.
    """
    WholeReplies.on_stop = on_stop
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{WholeReplies.__name__}"
