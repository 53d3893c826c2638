"""The caller of every system: a keep-alive connection, one request at a time, and cheap.

The same for all, so that what is compared is the systems. Replies are parsed by httptools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

import httptools

REPLY_WITHIN_S = 120.0


class _Replies(asyncio.BufferedProtocol):
    """Hands the reply to the request under way to who waits for it."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._incoming = bytearray(65_536)
        self._body: list[bytes] = []
        self.waiter: asyncio.Future[tuple[int, bytes]] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked with isinstance: uvloop's transports are no asyncio classes.
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        self._parser.feed_data(memoryview(self._incoming)[:nbytes])

    def connection_lost(self, error: Exception | None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(ConnectionError(f"closed without a reply: {error}"))

    def on_body(self, content: bytes) -> None:
        self._body.append(content)

    def on_message_complete(self) -> None:
        assert self.waiter is not None
        body, self._body = b"".join(self._body), []
        if not self.waiter.done():
            self.waiter.set_result((self._parser.get_status_code(), body))


class Caller:
    """Sends requests over one connection. Made by `connect`.

    Args:
        replies: the connection's protocol.
        headers: sent with every request.
    """

    def __init__(self, replies: _Replies, headers: Mapping[str, str]) -> None:
        self._replies = replies
        self._headers = dict(headers)
        self._heads: dict[tuple[str, str, str], bytes] = {}

    async def send(self, method: str, path: str, body: bytes = b"", prefer: str = "") -> bytes:
        """Return the body of the reply.

        Args:
            prefer: the header of that name; empty: none.

        Raises:
            SystemExit: its status is none of success.
            TimeoutError: there is no reply within 120 s.
        """
        key = (method, path, prefer)
        head = self._heads.get(key)
        if head is None:
            named = self._headers | ({"prefer": prefer} if prefer else {})
            lines = [f"{method} {path} HTTP/1.1", *(f"{one}: {named[one]}" for one in named)]
            head = self._heads[key] = "\r\n".join([*lines, "content-length: "]).encode()
        self._replies.waiter = asyncio.get_running_loop().create_future()
        self._replies.transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        status, reply = await asyncio.wait_for(self._replies.waiter, REPLY_WITHIN_S)
        if not 200 <= status < 300:
            raise SystemExit(f"{method} {path}: {status} {reply[:500]!r}")
        return reply


@asynccontextmanager
async def connect(url: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[Caller]:
    """Connect to a system.

    Args:
        url: scheme, host and port.
        headers: sent with every request, beside host and content type.
    """
    at = urlsplit(url)
    loop = asyncio.get_running_loop()
    assert at.hostname is not None
    assert at.port is not None
    _, replies = await loop.create_connection(_Replies, at.hostname, at.port)
    named = {"host": at.netloc, "content-type": "application/json", **(headers or {})}
    try:
        yield Caller(replies, named)
    finally:
        replies.transport.close()
