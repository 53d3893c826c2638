"""The HTTP server's protocol, with the head and the body of a reply in one write.

uvicorn writes a reply's head when the application gives it, and the body when that is given: two
system calls, and HAProxy reads twice. Here a head is held until the next write, and no longer than
to the end of the event loop's turn: a body that comes later does not keep its head.

It knows that uvicorn writes a head as one piece, nothing of what replies mean. Decision
messages-and-large-values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, cast

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class WholeReplies(HttpToolsProtocol):
    """uvicorn's protocol over a transport that holds heads back.

    `on_stop`: called when the server begins to stop, which then waits for all replies to end.
    """

    on_stop: ClassVar[Callable[[], object]] = lambda: None

    def shutdown(self) -> None:
        """End the event streams, then close the connection when its reply has ended."""
        type(self).on_stop()
        super().shutdown()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        holding = _HoldingTransport(transport, self.loop)
        # All that uvicorn calls of a transport is there, most of it the transport's own.
        super().connection_made(cast(asyncio.Transport, holding))


class _HoldingTransport:
    """A transport that writes a head together with what is written after it in the same turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, written: bytes) -> None:
        """Hold a head; write anything else, after the head that is held."""
        if self._head:
            written, self._head = self._head + written, b""
        elif written.startswith(_HEAD):
            # Also what a part of a body may begin with, and 100 Continue: they keep their places.
            self._head = written
            self._loop.call_soon(self._write_head)
            return
        self._transport.write(written)

    def close(self) -> None:
        """Write what is held, and close."""
        self._write_head()
        self._transport.close()

    def _write_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


def serve_whole_replies(on_stop: Callable[[], object]) -> None:
    """Let uvicorn servers of this process that name no protocol use this one.

    Args:
        on_stop: called for each connection when a server begins to stop.
    """
    WholeReplies.on_stop = on_stop
    HTTP_PROTOCOLS["auto"] = f"{__name__}:{WholeReplies.__name__}"
