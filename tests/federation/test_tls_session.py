"""Requests by TLS are written, and their replies read, as those without it: none is cut."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from federation.http_client import tls_context
from federation.http_connection import (
    Connection,
    HttpFailure,
    HttpFailureKind,
    HttpReply,
    Outcome,
)
from federation.tls_gate import SESSION_BYTES_MAX
from tests.federation.conftest import LoggedContext
from tests.federation.key_updates import KEY_UPDATE_BYTES, key_updates
from tests.federation.test_http_client import (
    CLOSE,
    PATIENCE_S,
    REPLY,
    Serve,
    Site,
    Wire,
    client,
    post,
    replying,
    site,
    url_of,
)

BOTH_LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]
BODY_BYTES = 16_000_000
pytestmark = pytest.mark.parametrize("anyio_backend", BOTH_LOOPS)


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_body_is_not_written_before_the_server_takes_it(
    trusted: ssl.SSLContext, *, is_tls: bool
) -> None:
    reads, heads = asyncio.Event(), asyncio.Event()

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            heads.set()
            transport = cast(asyncio.ReadTransport, writer.transport)
            transport.pause_reading()
            await reads.wait()
            transport.resume_reading()
            await reader.readexactly(BODY_BYTES)
            writer.write(REPLY)

        return connection

    written = asyncio.Event()
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    async with site(serve, ssl=trusted if is_tls else None) as here, client() as mine:
        asked = post(url_of(here, is_tls=is_tls), bytes(BODY_BYTES))
        async with asyncio.timeout(PATIENCE_S):
            mine.send(asked, outcome.set_result, written.set)
            await heads.wait()
            for _ in range(100):
                await asyncio.sleep(0.001)
            assert not written.is_set()
            reads.set()
            await written.wait()
            assert isinstance(await outcome, HttpReply)


@contextmanager
def closing_server(
    reply: bytes, context: ssl.SSLContext | None
) -> Iterator[tuple[int, threading.Event]]:
    """Run a server that answers each request and closes, as small servers do.

    Returns: its port, and what is set when a connection is closed.
    """
    closed = threading.Event()

    def serve(one: socket.socket) -> None:
        connection = one if context is None else context.wrap_socket(one, server_side=True)
        with connection:
            while b"\r\n\r\n" not in connection.recv(65_536):
                pass
            connection.sendall(reply)
        closed.set()

    def listen() -> None:
        with suppress(OSError):
            while True:
                one, _ = listening.accept()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(reply))
                serve(one)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield listening.getsockname()[1], closed
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _wait(closed: threading.Event) -> None:
    assert closed.wait(PATIENCE_S)


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("size", [30_000, 60_000, 100_000, 150_000])
@pytest.mark.parametrize("has_length", [True, False])
async def test_a_reply_is_whole_when_its_server_closes(
    trusted: ssl.SSLContext, size: int, *, is_tls: bool, has_length: bool
) -> None:
    """What was read beyond 32 KiB of it was dropped, by TLS."""
    length = b"Content-Length: %d\r\n" % size if has_length else b""
    reply = b"HTTP/1.1 200 OK\r\nConnection: close\r\n%b\r\n" % length + b"x" * size
    got: list[int] = []
    with closing_server(reply, trusted if is_tls else None) as (port, closed):
        async with client() as mine:
            scheme = "https" if is_tls else "http"
            asked = replace(post(f"{scheme}://localhost:{port}"), reply_bytes_max=size)
            for _ in range(3):
                closed.clear()
                outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
                # All of the reply, and the end, is there when the loop goes on.
                mine.send(asked, outcome.set_result, lambda: _wait(closed))
                reply_or_not = await outcome
                got.append(len(reply_or_not.body) if isinstance(reply_or_not, HttpReply) else 0)
    assert got == [size] * 3


async def test_a_server_that_ends_in_the_handshake_or_speaks_no_tls_is_unreachable(
    trusted: ssl.SSLContext,
) -> None:
    def ending(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read(1)

        return connection

    def plain(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(REPLY)
            await reader.read()

        return connection

    details = []
    for serve in (ending, plain):
        async with site(serve) as here, client() as mine:
            outcome = await mine.request(post(url_of(here, is_tls=True)))
        assert isinstance(outcome, HttpFailure)
        assert outcome.kind is HttpFailureKind.UNREACHABLE
        details.append(outcome.detail)
    assert details == ["ConnectionResetError", "SSLError"]


async def test_a_server_that_ends_before_the_handshake_is_unreachable() -> None:
    async with client() as mine:
        connection = Connection(mine, ("localhost", 443, True))
        wire = Wire()
        connection.connection_made(wire)
        wire.is_closed = True
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(connection.secure(tls_context(), "localhost"), PATIENCE_S)

    def closing(_: Site) -> Serve:
        async def connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        return connection

    async with site(closing) as here, client() as mine:
        for _ in range(20):
            asked = post(url_of(here, is_tls=True))
            outcome = await asyncio.wait_for(mine.request(asked), PATIENCE_S / 2)
            assert isinstance(outcome, HttpFailure)
            assert outcome.kind is HttpFailureKind.UNREACHABLE


async def test_a_handshake_that_does_not_end_is_given_up_with_its_connection() -> None:
    gone = asyncio.Event()

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read(-1)
            gone.set()

        return connection

    async with site(serve) as here, client() as mine:
        outcome = await mine.request(post(url_of(here, is_tls=True), connect_timeout_s=0.1))
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
        assert not mine._connections
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.CONNECT_TIMEOUT


@pytest.mark.parametrize("is_tls", [False, True])
async def test_bytes_before_the_request_end_the_connection(
    trusted: ssl.SSLContext, *, is_tls: bool
) -> None:
    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(CLOSE)
            await reader.read()

        return connection

    async with site(serve, ssl=trusted if is_tls else None) as here, client() as mine:
        asked = post(url_of(here, is_tls=is_tls))
        for _ in range(20):
            outcome = await asyncio.wait_for(mine.request(asked), PATIENCE_S / 2)
            # Or they come after it, as a reply.
            assert isinstance(outcome, HttpReply) or outcome.kind is HttpFailureKind.BROKEN
        assert here.connections == 20


async def test_the_client_offers_p_256_alone(trusted: ssl.SSLContext) -> None:
    """A server's choice of a large group took the loop for 130 ms."""
    async with site(replying(REPLY), ssl=trusted) as here, client() as mine:
        assert isinstance(await mine.request(post(url_of(here, is_tls=True))), HttpReply)
    trusted.set_ecdh_curve("secp384r1")
    async with site(replying(REPLY), ssl=trusted) as here, client() as mine:
        outcome = await mine.request(post(url_of(here, is_tls=True)))
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.UNREACHABLE


async def test_the_client_offers_no_group_that_the_server_makes_up() -> None:
    """Nor what is weak, whatever this Python was built to offer by default."""
    assert tls_context().minimum_version is ssl.TLSVersion.TLSv1_2
    kinds = {cipher["kea"] for cipher in tls_context().get_ciphers()}
    assert kinds == {"kx-ecdhe", "kx-any"}  # any: of TLS 1.3, where groups have names


@pytest.mark.parametrize(
    ("size", "is_taken"), [(SESSION_BYTES_MAX // 2, True), (SESSION_BYTES_MAX * 5 // 4, False)]
)
async def test_a_handshake_has_a_bound(
    trusted: ssl.SSLContext, tmp_path: Path, size: int, *, is_taken: bool
) -> None:
    pem = (tmp_path / "server.pem").read_text()
    certificate = pem[pem.index("-----BEGIN CERTIFICATE") :]
    count = size // len(ssl.PEM_cert_to_DER_cert(certificate))
    chain = tmp_path / "chain.pem"
    chain.write_text(pem + count * certificate)
    trusted.load_cert_chain(chain)
    async with site(replying(REPLY, REPLY), ssl=trusted) as here, client() as mine:
        for _ in range(2):
            outcome = await mine.request(post(url_of(here, is_tls=True)))
            assert isinstance(outcome, HttpReply) is is_taken
            if isinstance(outcome, HttpFailure):
                assert outcome.kind is HttpFailureKind.UNREACHABLE
                assert not mine._connections
        assert here.connections == is_taken  # without a handshake none is counted


@pytest.mark.parametrize(
    ("size", "is_taken"), [(SESSION_BYTES_MAX // 2, True), (SESSION_BYTES_MAX * 5 // 4, False)]
)
async def test_a_session_that_carries_nothing_has_a_bound(
    logged: LoggedContext, size: int, *, is_taken: bool
) -> None:
    """A server that only changes its keys kept the loop at work: 20 us for 27 bytes."""

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_us, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = logged.context.wrap_bio(to_us, to_client, server_side=True)
            while True:
                with suppress(ssl.SSLWantReadError):
                    session.do_handshake()
                    if session.read(65_536):
                        break
                writer.write(to_client.read())
                to_us.write(await reader.read(65_536))
            writer.write(key_updates(logged.file, size // KEY_UPDATE_BYTES, sent=0))
            await writer.drain()
            await reader.read()

        return connection

    async with site(serve) as here, client() as mine:
        asked = post(url_of(here, is_tls=True), timeout_s=1.0 if is_taken else PATIENCE_S)
        outcome = await mine.request(asked)
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is (HttpFailureKind.TIMEOUT if is_taken else HttpFailureKind.BROKEN)
