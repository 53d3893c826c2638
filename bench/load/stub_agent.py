"""A stub agent with one constant reply, as cheap as an asyncio process can be.

A benchmark should measure the service, not the agent: minimal HTTP/1.1, one constant reply, keep-
alive. Run as `python -m bench.load.stub_agent [answer|accept|hold]`; it prints its port. `answer`
replies with a result at once, `accept` with 202, `hold` never replies. For each line on
standard input it prints a line of JSON: the number of dispatches since the previous line, and the
time of the first of them (seconds of the monotonic clock).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import cast

import uvloop


def _reply(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


ANSWER = _reply(b"200 OK", b'{"status":"success","result":{"text":"ok"}}')
ACCEPT = _reply(b"202 Accepted", b'{"ok":true}')
HOLD = b""
REPLIES = {"answer": ANSWER, "accept": ACCEPT, "hold": HOLD}


@dataclass(slots=True)
class Tally:
    """The number of dispatches since the last line, and the time of the first."""

    received: int = 0
    first_s: float | None = None


class StubAgent(asyncio.BufferedProtocol):
    """Counts whole requests in the bytes it gets and gives each the same reply.

    Args:
        reply: the bytes of the reply; empty: no reply.
        tally: counts the requests of all connections.
    """

    def __init__(self, reply: bytes, tally: Tally) -> None:
        self._reply = reply
        self._tally = tally

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        # Not checked with isinstance: uvloop's transports are no asyncio classes.
        self._transport = cast(asyncio.Transport, transport)
        self._incoming = bytearray(65_536)
        self._buffer = b""

    def get_buffer(self, sizehint: int) -> bytearray:
        """Provide the buffer for received bytes."""
        return self._incoming

    def buffer_updated(self, nbytes: int) -> None:
        """Reply to every complete request in the buffer."""
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
            if self._tally.received == 0:
                self._tally.first_s = time.monotonic()
            self._tally.received += 1
            if self._reply:
                self._transport.write(self._reply)


async def serve_stub(reply: bytes, tally: Tally) -> tuple[asyncio.Server, int]:
    """Serve in this loop; return the server and its port of loopback."""
    loop = asyncio.get_running_loop()
    factory = partial(StubAgent, reply, tally)
    server = await loop.create_server(factory, "127.0.0.1", 0, backlog=4096)
    return server, int(server.sockets[0].getsockname()[1])


async def main(behaviour: str) -> None:
    """Serve until standard input closes, so that a stub ends with the process that started it."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    _, port = await serve_stub(REPLIES[behaviour], tally)
    print(port, flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps({"received": tally.received, "firstS": tally.first_s}), flush=True)
        tally.received, tally.first_s = 0, None


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else "answer"))
