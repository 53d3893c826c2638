"""A name server for tests: it answers, denies or ignores names by their ending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

# Longer than c-ares waits in the fourth try that begins with its least.
LATE_S = 2.2
_HEADER_BYTES = 12
_QUESTION_END_BYTES = 4  # type and class
_TYPE_A = 1
_ANSWERED = b"\x81\x80"
_NO_SUCH_NAME = b"\x81\x83"
_BROKEN = b"\x81\x82"
# Of the question's name, to be kept for an hour: type A, class IN, 4 bytes.
_ADDRESS_UNTIL_LATER = b"\xc0\x0c\0\1\0\1\0\0\x0e\x10\0\4"


class NameServer(asyncio.DatagramProtocol):
    """Says 127.0.0.1 of *.good.test, nothing of *.slow.test, fails for *.broken.test.

    *.late.test is answered as *.good.test, `LATE_S` later.
    *.many.test has 30 addresses. There are no other names. `asked`: the names of all questions,
    `is_silent`: it answers nothing, `is_broken`: it fails for all.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_silent = False
        self.is_broken = False
        self.address = ""
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.DatagramTransport, transport)
        host, port = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer one question."""
        assert self._transport is not None
        end, labels = _HEADER_BYTES, []
        while length := data[end]:
            labels.append(data[end + 1 : end + 1 + length].decode())
            end += 1 + length
        question = data[_HEADER_BYTES : end + 1 + _QUESTION_END_BYTES]
        name = ".".join(labels).lower()
        self.asked.append(name)
        if self.is_silent or name.endswith("slow.test"):
            return
        is_a = question[-3] == _TYPE_A
        flags, answers = _NO_SUCH_NAME, 0
        if self.is_broken or name.endswith("broken.test"):
            flags = _BROKEN
        elif name.endswith(("good.test", "many.test", "late.test")):
            flags, answers = _ANSWERED, (30 if name.endswith("many.test") else 1) * is_a
        counts = bytes((0, 1, 0, answers, 0, 0, 0, 0))
        reply = data[:2] + flags + counts + question
        for last in range(1, answers + 1):
            reply += _ADDRESS_UNTIL_LATER + bytes((127, 0, 0, last))
        wait_s = LATE_S if name.endswith("late.test") else 0.0
        asyncio.get_running_loop().call_later(wait_s, self._send, reply, addr)

    def _send(self, reply: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.sendto(reply, addr)


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    """Run a name server on a free port of this machine."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
