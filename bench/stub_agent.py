"""An agent that answers every dispatch at once, as cheaply as an asyncio process can.

So that a measurement shows what the service costs, not what an agent costs: HTTP/1.1 by hand, one
constant reply, keep-alive. Run as `python -m bench.stub_agent`; it prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

REPLY_BODY = b'{"status":"success","result":{"text":"ok"}}'
REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
    + str(len(REPLY_BODY)).encode()
    + b"\r\n\r\n"
    + REPLY_BODY
)


class StubAgent(asyncio.BufferedProtocol):
    """Counts whole requests in the bytes it gets and answers each with the same reply."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        # Not checked with isinstance: uvloop's transports are no asyncio classes.
        self._transport = cast(asyncio.Transport, transport)
        self._incoming = bytearray(65_536)
        self._buffer = b""

    def get_buffer(self, sizehint: int) -> bytearray:
        """Give the loop room for what arrives."""
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        """Answer every complete request in the buffer."""
        self._buffer += self._incoming[:nbytes]
        while True:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = self._buffer[:head_end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            end = head_end + 4 + length
            if len(self._buffer) < end:
                return
            self._buffer = self._buffer[end:]
            self._transport.write(REPLY)


async def main() -> None:
    """Serve until standard input closes, so that a stub ends with whoever started it."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(StubAgent, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
