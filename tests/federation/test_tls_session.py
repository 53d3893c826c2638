"""Requests by TLS are written, and their replies read, as those without it: none is cut."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

import pytest
from msgspec.structs import replace

from federation.http_client import LATE_BYTES_MAX, READ_BYTES_MAX, HttpClient, tls_context
from federation.http_connection import (
    IDLE_BYTES_MAX,
    SESSION_BYTES_MAX,
    SESSION_STEP_BYTES,
    WRITTEN_BYTES_MAX,
    Connection,
    Exchange,
    HttpFailure,
    HttpFailureKind,
    HttpReply,
    Outcome,
)
from federation.read_turns import ReadTurns
from federation.tls_session import TlsSession
from tests.federation.conftest import LoggedContext
from tests.federation.key_updates import KEY_UPDATE_BYTES, key_updates
from tests.federation.test_http_client import (
    BYTES_MAX,
    CLOSE,
    PATIENCE_S,
    REPLY,
    Serve,
    Site,
    Wire,
    client,
    post,
    site,
    take_turns,
    url_of,
    used_up,
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
            (sending,) = mine._connections
            assert sending._transport is not None
            assert sending._transport.get_write_buffer_size() < 4 * WRITTEN_BYTES_MAX
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


async def test_a_session_reads_what_came_before_bytes_that_are_no_tls(
    trusted: ssl.SSLContext,
) -> None:
    theirs = TlsPair(trusted)
    theirs.server.write(b"whole")
    mine = theirs.session
    mine.receive(memoryview(theirs.to_client.read() + b"\x17\x03\x03\x00\x05wrong"))
    into = memoryview(bytearray(100))
    assert mine.has_unread
    assert bytes(into[: mine.read_into(into)]) == b"whole"
    assert mine.is_ended
    assert isinstance(mine.error, ssl.SSLError)
    assert not mine.has_unread


async def test_a_full_buffer_leaves_the_rest_for_the_next_read(trusted: ssl.SSLContext) -> None:
    theirs = TlsPair(trusted)
    sent = bytes(range(256)) * 200
    for start in range(0, len(sent), 1_000):
        theirs.server.write(sent[start : start + 1_000])
    theirs.server.unwrap_soon()
    mine = theirs.session
    mine.receive(memoryview(theirs.to_client.read()))
    into, got = memoryview(bytearray(700)), b""
    while mine.has_unread:
        size = mine.read_into(into)
        assert size == 700 or not mine.has_unread
        got += bytes(into[:size])
    assert got == sent
    assert mine.is_ended
    assert mine.error is None


async def test_a_session_whose_end_was_read_is_not_used_again(trusted: ssl.SSLContext) -> None:
    """What sent the next request when it had the reply wrote it to this session: BROKEN."""
    idle: list[int] = []
    async with client() as mine:
        pair, wire = TlsPair(trusted), Wire()
        connection = asking(mine, pair, wire, lambda _: idle.append(len(mine._idle)))
        pair.server.write(REPLY)
        pair.server.unwrap_soon()
        feed(connection, pair.to_client.read())
        assert idle == [0]
        assert wire.is_closed
        assert not mine._connections


async def test_what_comes_late_on_an_idle_connection_is_read_in_a_later_turn(
    logged: LoggedContext,
) -> None:
    """KeyUpdates on 60 of them were one turn of 1.6 s."""
    async with client() as mine:
        pair, wire, turns = TlsPair(logged.context), Wire(), mine.read_turns
        connection = idle(mine, pair, wire)
        mine.read_turns = used_up()
        feed(connection, key_updates(logged.file, 10, sent=1))
        assert not wire.written, "read in a turn that has no time left"
        assert not connection.is_free
        take_turns(mine)
        assert wire.written
        assert connection.is_free
        mine.read_turns = turns
        assert mine._take_idle(connection.server) is connection


async def test_a_session_that_has_much_to_say_of_itself_is_not_kept_idle(
    logged: LoggedContext,
) -> None:
    few = IDLE_BYTES_MAX // 2 // KEY_UPDATE_BYTES
    async with client() as mine:
        pair, wire = TlsPair(logged.context), Wire()
        connection = idle(mine, pair, wire)
        updates = key_updates(logged.file, 3 * few, sent=1)
        for number in range(3):
            assert not wire.is_closed
            assert mine._idle
            third = len(updates) // 3
            feed(connection, updates[number * third : (number + 1) * third])
            take_turns(mine)
        assert wire.is_closed
        assert not mine._connections


async def test_a_session_reads_in_steps_within_the_time_of_turns(logged: LoggedContext) -> None:
    """A read of 32 KiB that only changes keys took 23 ms."""
    count = READ_BYTES_MAX // KEY_UPDATE_BYTES
    outcomes: list[Outcome] = []
    async with client() as mine:
        pair, wire = TlsPair(logged.context), Wire()
        mine.read_turns = ReadTurns(itertools.count(1.0).__next__)  # a step takes longer than one
        connection = asking(mine, pair, wire, outcomes.append)
        wire.written.clear()
        feed(connection, key_updates(logged.file, count, sent=0))
        written = [len(wire.written)]
        while mine.read_turns._waiting:
            mine.read_turns._go_on()
            written.append(len(wire.written))
        assert written[-1] > READ_BYTES_MAX - 100
        steps = [after - before for before, after in itertools.pairwise([0, *written])]
        assert max(steps) <= SESSION_STEP_BYTES + KEY_UPDATE_BYTES
        assert not outcomes
        connection.cancel()


async def test_a_session_that_has_much_to_say_of_itself_ends_its_request(
    logged: LoggedContext,
) -> None:
    """A server that never answered kept its connection at work for as long as it may last."""
    outcomes: list[Outcome] = []
    for bytes_sent in (SESSION_BYTES_MAX * 9 // 10, SESSION_BYTES_MAX * 11 // 10):
        async with client() as mine:
            pair, wire = TlsPair(logged.context), Wire()
            connection = asking(mine, pair, wire, outcomes.append)
            updates = key_updates(logged.file, bytes_sent // KEY_UPDATE_BYTES, sent=0)
            for start in range(0, len(updates), LATE_BYTES_MAX):
                if not wire.is_closed:
                    feed(connection, updates[start : start + LATE_BYTES_MAX])
                    take_turns(mine)
            assert wire.is_closed is (bytes_sent > SESSION_BYTES_MAX)
            connection.cancel()
    (outcome,) = outcomes
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.BROKEN


async def test_a_server_that_takes_nothing_is_not_read_while_its_session_is_answered(
    logged: LoggedContext,
) -> None:
    """Each message that asked for an answer made the answers that wait to be written longer."""
    async with client() as mine:
        pair, wire = TlsPair(logged.context), Wire()
        connection = asking(mine, pair, wire, lambda _: None)
        connection.pause_writing()
        wire.written.clear()
        feed(connection, key_updates(logged.file, 1_000, sent=0))
        take_turns(mine)
        assert wire.is_paused
        assert len(wire.written) <= SESSION_STEP_BYTES
        connection.resume_writing()
        take_turns(mine)
        assert not wire.is_paused
        assert len(wire.written) > 900 * KEY_UPDATE_BYTES
        connection.cancel()


@pytest.mark.parametrize("is_tls", [False, True])
async def test_what_came_late_before_a_request_is_not_its_reply(
    trusted: ssl.SSLContext, *, is_tls: bool
) -> None:
    async with client() as mine:
        pair, wire = TlsPair(trusted), Wire()
        connection = idle(mine, pair, wire) if is_tls else Connection(mine, ("localhost", 1, False))
        if is_tls:
            pair.server.write(REPLY)
        else:
            connection.connection_made(wire)
            mine.keep(connection)
        mine.read_turns = used_up()
        feed(connection, pair.to_client.read() if is_tls else REPLY)
        assert mine._take_idle(connection.server) is None
        assert wire.is_closed
        assert not mine._connections
        assert not mine.read_turns._waiting


def idle(mine: HttpClient, pair: TlsPair, wire: Wire) -> Connection:
    """Return a connection with this session that is kept for its server's next request."""
    connection = asking(mine, pair, wire, lambda _: None)
    pair.server.write(REPLY)
    feed(connection, pair.to_client.read())
    assert mine._idle
    wire.written.clear()
    return connection


def asking(
    mine: HttpClient, pair: TlsPair, wire: Wire, done: Callable[[Outcome], None]
) -> Connection:
    """Return a connection with this session, on which a request was sent."""
    connection = Connection(mine, ("localhost", 1, True))
    connection.connection_made(wire)
    connection._tls = pair.session
    connection.begin(Exchange(connection.server, BYTES_MAX, done), b"GET", None)
    return connection


def feed(connection: Connection, read: bytes) -> None:
    """Let a connection read these bytes at once."""
    connection.get_buffer(-1)[: len(read)] = read
    connection.buffer_updated(len(read))


class TlsServer:
    """The other side of a session."""

    def __init__(self, inner: ssl.SSLObject) -> None:
        self._inner = inner

    def write(self, data: bytes) -> None:
        """Encrypt."""
        self._inner.write(data)

    def unwrap_soon(self) -> None:
        """Say that nothing more comes."""
        with pytest.raises(ssl.SSLWantReadError):
            self._inner.unwrap()


class TlsPair:
    """A session and its server, after the handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.session = TlsSession(tls_context(), "localhost")
        to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        inner = context.wrap_bio(to_server, self.to_client, server_side=True)
        is_done = False
        while not is_done:
            is_done = self.session.shake_hands()
            to_server.write(self.session.take_outgoing())
            try:
                inner.do_handshake()
            except ssl.SSLWantReadError:
                is_done = False
            self.session.receive(memoryview(self.to_client.read()))
        self.server = TlsServer(inner)
