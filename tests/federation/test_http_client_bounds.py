"""What servers may cost: memory of requests, idle connections, descriptors, turns of the loop."""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import resource
import ssl
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NoReturn, cast

import pytest
from msgspec.structs import replace

from federation.http_client import READ_BYTES_MAX, HttpClient
from federation.http_connection import (
    IDLE_MAX,
    OVERHEAD_BYTES_MAX,
    Connection,
    Exchange,
    HttpFailure,
    HttpFailureKind,
    HttpReply,
    Outcome,
)
from federation.name_resolver import NameResolver
from federation.read_budget import ReadBudget
from tests.federation.name_servers import name_server
from tests.federation.test_http_client import (
    BYTES_MAX,
    LOOPBACK,
    REPLY,
    Serve,
    Site,
    Wire,
    client,
    post,
    replying,
    silent,
    site,
    url_of,
)
from tests.platform.waiting import until


# The product's loop: asyncio's own copies what a socket does not take at once.
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])
async def test_a_large_request_is_in_memory_once_and_told_of_when_it_is_written() -> None:
    size, reads = 8_000_000, asyncio.Event()

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            transport = cast(asyncio.ReadTransport, writer.transport)
            transport.pause_reading()
            await reads.wait()
            transport.resume_reading()
            assert len(await here.read(reader)) == size
            writer.write(REPLY)

        return connection

    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    written = asyncio.Event()
    async with site(serve) as here, client() as mine:
        tracemalloc.start()
        mine.send(post(here.url, bytes(size)), outcome.set_result, written.set)
        await until(lambda: here.connections)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert not written.is_set()
        reads.set()
        assert isinstance(await outcome, HttpReply)
    assert written.is_set()
    assert peak < size * 3 // 2


async def test_a_request_that_was_sent_keeps_no_body() -> None:
    body = bytes(100_000)
    alone = sys.getrefcount(body)
    async with site(silent) as here, client() as mine:
        sent = mine.send(post(here.url, body), lambda _: None)
        assert sys.getrefcount(body) > alone
        await until(lambda: sys.getrefcount(body) <= alone)
        assert sent.connection is not None


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_reply_before_all_is_written_ends_the_connection(
    trusted: ssl.SSLContext, *, is_tls: bool
) -> None:
    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            cast(asyncio.ReadTransport, writer.transport).pause_reading()
            writer.write(REPLY)
            if here.connections == 1:
                await asyncio.Event().wait()

        return connection

    async with site(serve, ssl=trusted if is_tls else None) as here, client() as mine:
        for body in (bytes(8_000_000), b"{}"):
            asked = post(url_of(here, is_tls=is_tls), body)
            assert isinstance(await mine.request(asked), HttpReply)
        assert here.connections == 2


async def test_idle_connections_above_the_bound_are_closed() -> None:
    async with client() as mine:
        wires = [Wire() for _ in range(IDLE_MAX + 1)]
        for number, wire in enumerate(wires):
            connection = Connection(mine, (f"host{number}", 80, False))
            connection.connection_made(wire)
            mine.keep(connection)
        assert [wire.is_closed for wire in wires] == [True] + [False] * IDLE_MAX
        assert len(mine._connections) == IDLE_MAX


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Let this process open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as taken:
        lowest = os.dup(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 64, hard))
        try:
            with suppress(OSError):
                while True:
                    taken.callback(os.close, os.dup(0))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(lowest)


@pytest.mark.parametrize("anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True})])
async def test_a_request_without_a_descriptor_counts_against_no_agent() -> None:
    """Agents that were never tried counted as unreachable, and their circuits opened."""
    async with site(replying(REPLY)) as here, client() as mine:
        with without_descriptors():
            outcome = await mine.request(post(here.url))
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.NOT_TRIED
    assert outcome.detail == os.strerror(errno.EMFILE), "no address is in it"


async def test_a_look_up_without_a_descriptor_counts_against_no_agent() -> None:
    """The resolver's failure ended the connecting task unseen: the agent counted as unreachable."""
    codecs.lookup("idna")  # loading it needs a descriptor, too
    async with name_server() as server:
        mine = HttpClient(LOOPBACK, NameResolver([server.address]))
        with without_descriptors():
            outcome = await mine.request(post("http://a.good.test:1", connect_timeout_s=5.0))
        await mine.close()
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.NOT_TRIED


async def test_a_defect_in_connecting_is_logged_and_counts_against_no_agent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(NameResolver):
        async def resolve(self, *_: object) -> NoReturn:
            raise ValueError("a defect")

    mine = HttpClient(LOOPBACK, Broken())
    outcome = await mine.request(post("http://a.good.test", connect_timeout_s=5.0))
    await mine.close()
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.NOT_TRIED
    assert "a defect" in caplog.text


async def test_an_idle_connection_holds_no_reply() -> None:
    async with site(replying(REPLY, REPLY)) as here, client() as mine:
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        (kept,) = mine._connections
        assert not kept._body


def in_chunks(body: bytes, size: int) -> bytes:
    """Return a reply whose chunks have this size."""
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    sent = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent + b"0\r\n\r\n"


async def test_chunks_of_one_byte_are_collected_in_one_buffer() -> None:
    async with client() as mine:
        mine.read_budget = ReadBudget(lambda: 0.0)  # none is used up
        connection = Connection(mine, ("127.0.0.1", 1, False))
        connection.connection_made(Wire())
        exchange = Exchange(connection.server, BYTES_MAX, lambda _: None)
        connection.begin(exchange, b"", b"")
        reads = in_chunks(b"x" * 3_000, 1)[:-5]
        for start in range(0, len(reads), 10_000):
            read = reads[start : start + 10_000]
            connection.get_buffer(-1)[: len(read)] = read
            connection.buffer_updated(len(read))
        assert connection._body == b"x" * 3_000
        assert len(connection.get_buffer(-1)) == READ_BYTES_MAX <= 32 * 1024
        exchange.cancel()


@pytest.mark.parametrize(("size", "is_whole"), [(1, False), (5, True)])
async def test_a_reply_in_dust_is_cut_off(size: int, is_whole: bool) -> None:
    body = b"x" * (OVERHEAD_BYTES_MAX // 2)
    async with site(replying(in_chunks(body, size))) as here, client() as mine:
        request = replace(post(here.url), reply_bytes_max=len(body))
        outcome = await mine.request(request)
    assert isinstance(outcome, HttpReply) is is_whole
    if isinstance(outcome, HttpFailure):
        assert outcome.kind is HttpFailureKind.BROKEN
