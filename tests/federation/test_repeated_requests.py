"""Requests that meet the end of a kept connection: which are sent once more, and which are not.

Decision dispatch.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable

import pytest

from federation.http_client import HttpClient
from federation.http_connection import (
    JOINED_BYTES_MAX,
    HttpFailure,
    HttpFailureKind,
    HttpReply,
    Outcome,
)
from federation.name_resolver import NameResolver
from tests.federation.test_http_client import (
    LOOPBACK,
    PATIENCE_S,
    REPLY,
    Serve,
    Site,
    client,
    post,
    replying,
    site,
    url_of,
)
from tests.platform.waiting import until

Ending = Callable[[asyncio.StreamWriter], None]


def end_politely(writer: asyncio.StreamWriter) -> None:
    """End a connection by FIN, by TLS with a word before it."""
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def ending(end: Ending, *replies: bytes, fresh: bytes = REPLY) -> Callable[[Site], Serve]:
    """Answer `replies` on the first connection, end it at the next request, then answer `fresh`."""

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            is_first = here.connections == 1
            for reply in replies if is_first else [fresh] * 3:
                await here.read(reader)
                writer.write(reply)
            if is_first:
                await here.read(reader)
                end(writer)

        return connection

    return serve


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("end", [end_politely, reset])
async def test_a_request_that_meets_a_closed_connection_is_sent_once_more(
    trusted: ssl.SSLContext, end: Ending, is_tls: bool
) -> None:
    """An agent's server that closes idle connections cost each of its nodes an attempt."""
    async with site(ending(end, REPLY), ssl=trusted if is_tls else None) as here, client() as mine:
        url = url_of(here, is_tls=is_tls)
        for _ in range(3):
            assert isinstance(await mine.request(post(url, b'{"n": 1}')), HttpReply)
        assert len(mine._connections) == 1
    assert here.connections == 2
    assert len(here.heads) == 4
    assert here.heads[1] == here.heads[2], "the same request"


async def test_a_large_request_is_not_sent_on_a_connection_that_may_be_closed() -> None:
    """It would have to be kept until its reply begins, and bodies are as large as a payer likes."""
    large = b"x" * (JOINED_BYTES_MAX + 1)
    async with site(ending(reset, REPLY)) as here, client() as mine:
        for body in (b"{}", large, large):
            assert isinstance(await mine.request(post(here.url, body)), HttpReply)
    assert here.connections == 3


@pytest.mark.parametrize("piece", [b"H", REPLY[:-1], b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_request_whose_reply_has_begun_is_not_repeated(piece: bytes) -> None:
    async with site(replying(REPLY, piece)) as here, client() as mine:
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        outcome = await mine.request(post(here.url))
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.BROKEN
    assert here.connections == 1


@pytest.mark.parametrize("end", [end_politely, reset])
async def test_a_request_is_repeated_once_and_never_after_a_new_connection(end: Ending) -> None:
    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await here.read(reader)
            if here.connections == 1:
                writer.write(REPLY)
                await here.read(reader)
            end(writer)

        return connection

    async with site(serve) as here, client() as mine:
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        for requests in (3, 4):
            outcome = await mine.request(post(here.url))
            assert isinstance(outcome, HttpFailure)
            assert outcome.kind is HttpFailureKind.BROKEN
            assert len(here.heads) == requests


async def test_a_repeated_request_has_the_time_that_is_left() -> None:
    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await here.read(reader)
            if here.connections == 1:
                writer.write(REPLY)
                await here.read(reader)
                writer.close()
            await reader.read()

        return connection

    async with site(serve) as here, client() as mine:
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        outcome = await mine.request(post(here.url, timeout_s=0.5))
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.TIMEOUT
    assert here.connections == 2


async def test_nothing_is_repeated_by_who_may_not_send_any_more() -> None:
    async with site(ending(end_politely, REPLY)) as here:
        mine = HttpClient(LOOPBACK, NameResolver(), may_write=lambda: not here.heads[1:])
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        outcome = await mine.request(post(here.url))
        await mine.close()
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.WITHHELD
    assert len(here.heads) == 2


async def test_a_cancelled_request_is_not_repeated() -> None:
    """It is cancelled while its server ends the connection, and while it is being repeated."""
    outcomes: list[Outcome] = []
    async with site(ending(end_politely, REPLY)) as here, client() as mine:
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        exchange = mine.send(post(here.url), outcomes.append)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: mine._connecting)
            exchange.cancel()
            await until(lambda: not mine._connecting)
    assert outcomes == []
    assert len(here.heads) == 2
