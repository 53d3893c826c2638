"""Replies whose body is made while they are sent: paced, and ended early where nobody takes them.

Reference: http.md (Request limits). Decision audit-chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest

from core.errors import ErrorCode, ServiceError
from serve_app.http.bodies import Pace
from serve_app.http.calls import Reply
from serve_app.http.endpoint import send_stream
from tests.platform.waiting import until

PAGE = b"x" * 100_000
USUAL = Pace()


class Client:
    """Takes a reply: some messages at once, and those after never."""

    def __init__(self, taken: int = 10**9) -> None:
        self.messages: list[dict[str, Any]] = []
        self._taken = taken

    async def send(self, message: Any) -> None:
        if len(self.messages) >= self._taken:
            await asyncio.Event().wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def is_complete(self) -> bool:
        return self.messages[-1].get("more_body") is False or "more_body" not in self.messages[-1]


class Pages:
    """Pages that are read; `error` is raised after them, or the next one never comes."""

    def __init__(
        self, count: int, error: Exception | None = None, *, is_lasting: bool = False
    ) -> None:
        self.read = 0
        self.is_closed = False
        self._count, self._error, self._is_lasting = count, error, is_lasting

    async def iterate(self) -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(self._count):
                self.read += 1
                yield PAGE
            if self._error is not None:
                raise self._error
            if self._is_lasting:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


async def sent(client: Client, pages: Pages, pace: Pace = USUAL) -> None:
    reply = Reply(pages.iterate(), is_stream=True, content_type=b"application/jsonl")
    await send_stream(client.send, reply, [(b"a", b"b")], pace=pace)


async def test_a_stream_is_sent_whole_in_parts() -> None:
    client, pages = Client(), Pages(3)
    await sent(client, pages)
    start = client.messages[0]
    assert (start["status"], (b"a", b"b") in start["headers"]) == (200, True)
    assert not [name for name, _ in start["headers"] if name == b"content-length"]
    assert client.body == 3 * PAGE
    assert client.is_complete
    assert max(len(message.get("body", b"")) for message in client.messages) == 64 * 1024


@pytest.mark.parametrize("count", [1, 10**6])
async def test_a_reader_that_goes_away_ends_the_reading(count: int) -> None:
    """Serve cancels the request, while a part is taken or the next page is waited for."""
    client, pages = Client(taken=3), Pages(count, is_lasting=True)
    sending = asyncio.create_task(sent(client, pages))
    await until(lambda: len(client.messages) >= 3)
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending
    assert pages.read <= 2
    assert pages.is_closed


async def test_a_reader_that_takes_nothing_more_is_cut_off() -> None:
    client, pages = Client(taken=4), Pages(10**6)
    await sent(client, pages, Pace(timeout_s=0.05, rate_min=10**9))
    assert (pages.read, pages.is_closed, client.is_complete) == (2, True, False)


async def test_a_page_that_cannot_be_read_cuts_the_reply() -> None:
    away = ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "the database cannot be reached")
    client, pages = Client(), Pages(2, away)
    await sent(client, pages)
    assert client.body == 2 * PAGE
    assert not client.is_complete
