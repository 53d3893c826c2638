"""The HTTP client against servers that say anything, and beside aiohttp, which says what is right.

Thousands of generated replies, good and broken, are read by both over real connections; ours also
reads each cut at every byte.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import socket
import ssl
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import pytest

from federation.content_coding import BodyTooLarge, UndecodableBody, decode_body
from federation.http_client import HttpClient, HttpRequest, tls_context
from federation.http_connection import (
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
from tests.platform.waiting import until

LOOPBACK = ("127.0.0.0/8",)
BYTES_MAX = 4_096
# Of each generated test.
REPLIES = 1_000
# For a broken program, not for a slow machine.
PATIENCE_S = 60.0
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """A server: its address, and how many connections it has taken."""

    url: str = ""
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request, and return its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        lengths = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
        return await reader.readexactly(int(lengths[0][16:])) if lengths else b""


@asynccontextmanager
async def site(
    serve: Callable[[Site], Serve], *, ssl: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    """Run a server of connections."""
    here = Site()
    handle = serve(here)
    writers: list[asyncio.StreamWriter] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.connections += 1
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await handle(reader, writer)
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, ssl=ssl)
    here.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


def url_of(here: Site, *, is_tls: bool) -> str:
    """Return the address of a server by its name."""
    scheme = "https" if is_tls else "http"
    return f"{scheme}://localhost:{here.url.rpartition(':')[2]}"


def replying(*replies: bytes) -> Callable[[Site], Serve]:
    """Answer each request of a connection with the next of these, then close it."""

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for reply in replies:
                await here.read(reader)
                writer.write(reply)

        return connection

    return serve


def silent(here: Site) -> Serve:
    """Read a request and never answer."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await here.read(reader)
        await reader.read()

    return connection


def post(url: str, body: bytes | None = b"{}", **bounds: float) -> HttpRequest:
    """Return a request."""
    return HttpRequest(
        "POST",
        url,
        {"X-Test": "yes"},
        body,
        bounds.get("connect_timeout_s", PATIENCE_S),
        bounds.get("timeout_s", PATIENCE_S),
        BYTES_MAX,
    )


@asynccontextmanager
async def client(**options: float) -> AsyncIterator[HttpClient]:
    """Run a client that may call this machine."""
    made = HttpClient(LOOPBACK, NameResolver(), **options)
    try:
        yield made
    finally:
        await made.close()


async def test_a_request_says_what_it_is_and_its_reply_comes_back() -> None:
    async with site(replying(REPLY)) as here, client() as mine:
        outcome = await mine.request(post(f"{here.url}/a%20b/ü?q=1", b'{"n": 1}'))
    assert outcome == HttpReply(200, {b"content-length": b"2"}, b"ok")
    lines = here.heads[0].split(b"\r\n")
    assert lines[0] == b"POST /a%20b/%C3%BC?q=1 HTTP/1.1"
    assert b"Host: " + here.url.removeprefix("http://").encode() in lines
    assert b"Content-Length: 8" in lines
    assert b"X-Test: yes" in lines


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with site(replying(REPLY, REPLY, REPLY)) as here, client() as mine:
        for _ in range(3):
            assert isinstance(await mine.request(post(here.url)), HttpReply)
    assert here.connections == 1


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    gate = asyncio.Event()

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await here.read(reader)
            if here.connections == 3:
                gate.set()
            await gate.wait()
            writer.write(REPLY)

        return connection

    async with site(serve) as here, client() as mine:
        await asyncio.gather(*(mine.request(post(here.url)) for _ in range(3)))
    assert here.connections == 3


@pytest.mark.parametrize(
    "reply", [CLOSE, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", REPLY + b"more"]
)
async def test_a_connection_that_ends_or_says_too_much_is_not_used_again(reply: bytes) -> None:
    async with site(replying(reply, REPLY)) as here, client() as mine:
        for _ in range(2):
            assert isinstance(await mine.request(post(here.url)), HttpReply)
    assert here.connections == 2


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    ended = asyncio.Event()

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await here.read(reader)
            writer.write(REPLY)
            await reader.read()
            ended.set()

        return connection

    async with site(serve) as here, client(keep_alive_s=0.01) as mine:
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        await asyncio.wait_for(ended.wait(), PATIENCE_S)


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    more = asyncio.Event()

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await here.read(reader)
            writer.write(REPLY)
            if here.connections == 1:
                await more.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
                await reader.read()

        return connection

    async with site(serve) as here, client() as mine:
        assert isinstance(await mine.request(post(here.url)), HttpReply)
        (kept,) = mine._connections
        more.set()
        await until(lambda: kept not in mine._connections)
        outcome = await mine.request(post(here.url))
    assert isinstance(outcome, HttpReply)
    assert outcome.body == b"ok"


async def test_a_server_that_is_silent_absent_or_forbidden() -> None:
    async with site(silent) as here, client() as mine:
        late = await mine.request(post(here.url, timeout_s=0.02))
        absent = await mine.request(post("http://127.0.0.1:1/"))
        nameless = await mine.request(post("http://name.invalid/"))
    forbidding = HttpClient((), NameResolver())
    denied = await forbidding.request(post(here.url))
    await forbidding.close()
    kinds = [outcome.kind for outcome in (late, absent, nameless, denied) if is_failure(outcome)]
    assert kinds == [
        HttpFailureKind.TIMEOUT,
        HttpFailureKind.UNREACHABLE,
        HttpFailureKind.UNREACHABLE,
        HttpFailureKind.DENIED,
    ]
    assert here.connections == 1


async def test_a_name_without_an_answer_counts_against_it_only_if_others_are_answered() -> None:
    async with site(replying(REPLY)) as here, name_server() as server:
        port = here.url.rpartition(":")[2]
        names = NameResolver([server.address])
        mine = HttpClient(LOOPBACK, names)
        slow = post(f"http://a.slow.test:{port}", connect_timeout_s=0.05)
        server.is_silent = True
        before = await mine.request(slow)
        server.is_silent = False
        assert isinstance(await mine.request(post(f"http://a.good.test:{port}")), HttpReply)
        after = await mine.request(slow)
        await mine.close()
    assert isinstance(before, HttpFailure)
    assert isinstance(after, HttpFailure)
    assert (before.kind, after.kind) == (HttpFailureKind.NOT_TRIED, HttpFailureKind.CONNECT_TIMEOUT)


def is_failure(outcome: Outcome) -> bool:
    """Whether there is no reply."""
    return isinstance(outcome, HttpFailure)


async def test_a_connection_that_is_not_accepted_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as never_accepting:
        url = f"http://127.0.0.1:{never_accepting.getsockname()[1]}/"
        with socket.create_connection(never_accepting.getsockname()):  # the one that has room
            async with client() as mine:
                bounds = {"connect_timeout_s": 0.05, "timeout_s": PATIENCE_S}
                outcome = await mine.request(post(url, **bounds))
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.CONNECT_TIMEOUT


async def test_a_cancelled_exchange_says_nothing_and_closes_its_connection() -> None:
    gone = asyncio.Event()
    came = asyncio.Event()

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await here.read(reader)
            came.set()
            with suppress(ConnectionError):
                await reader.read()
            gone.set()

        return connection

    outcomes: list[Outcome] = []
    async with site(serve) as here, client() as mine:
        exchange = mine.send(post(here.url), outcomes.append)
        await asyncio.wait_for(came.wait(), PATIENCE_S)
        exchange.cancel()
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
        at_once = mine.send(post(here.url), outcomes.append)
        at_once.cancel()
    assert outcomes == []
    assert here.connections == 1


async def test_a_request_that_is_cancelled_as_its_time_ends_raises_nowhere() -> None:
    async with client() as mine:
        asked = asyncio.create_task(mine.request(post("http://127.0.0.1:1/")))
        await asyncio.sleep(0)
        (exchange,) = mine._connecting
        asked.cancel()
        exchange.fail(HttpFailureKind.TIMEOUT, "its timer runs in the same turn")
        await asyncio.wait([asked])
    assert asked.cancelled()


async def test_a_server_by_tls_is_who_it_says_it_is(trusted: ssl.SSLContext) -> None:
    async with site(replying(REPLY, REPLY), ssl=trusted) as here, client() as mine:
        port = here.url.rpartition(":")[2]
        for _ in range(2):
            assert isinstance(await mine.request(post(f"https://localhost:{port}")), HttpReply)
        assert here.connections == 1
        outcome = await mine.request(post(f"https://127.0.0.1:{port}"))
    assert isinstance(outcome, HttpFailure)
    assert (outcome.kind, outcome.detail) == (
        HttpFailureKind.UNREACHABLE,
        "SSLCertVerificationError",
    )


@pytest.mark.parametrize(
    "flood",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 200_000,
    ],
    ids=["headers", "interim replies", "trailers", "chunk extension"],
)
async def test_what_is_not_the_body_is_bounded_too(flood: bytes) -> None:
    async with site(replying(flood)) as here, client() as mine:
        outcome = await mine.request(post(here.url))
    assert isinstance(outcome, HttpFailure)
    assert outcome.kind is HttpFailureKind.BROKEN


@pytest.mark.parametrize("bad", ["X\r\nY", "X\nY", "é"])
async def test_a_header_that_is_no_line_is_never_sent(bad: str) -> None:
    async with client() as mine:
        with pytest.raises(ValueError, match="header"):
            mine.send(
                HttpRequest("GET", "http://127.0.0.1:1/", {"X": bad}, None, 1.0, 1.0, 10),
                lambda _: None,
            )


# -- beside aiohttp -------------------------------------------------------------------------------


def generated(draw: random.Random) -> tuple[bytes, bool]:
    """Return a reply's bytes, and whether the server closes the connection after them."""
    body = draw.choice([b"", b"ok", b'{"status": "success"}', b"\r\n\r\n", draw.randbytes(300)])
    if draw.random() < 0.05:
        body = b"x" * (BYTES_MAX + draw.choice([0, 1, 500]))
    coding = draw.choice([b""] * 6 + [b"gzip", b"deflate", b"identity", b"GZIP", b"br"])
    if coding.lower() in (b"gzip", b"deflate") and draw.random() < 0.9:
        body = gzip.compress(body) if coding.lower() == b"gzip" else zlib.compress(body)
    status = draw.choice([b"200 OK"] * 6 + [b"204 None", b"304 Same", b"404 No", b"503 x", b"200"])
    lines = [draw.choice([b"HTTP/1.1 ", b"HTTP/1.1 ", b"HTTP/1.0 "]) + status]
    lines.append(draw.choice([b"Content-Type: application/json", b"content-type:text/plain ;a=b"]))
    if coding:
        lines.append(b"Content-Encoding: " + coding)
    if draw.random() < 0.3:
        lines.append(draw.choice([b"Connection: close", b"Connection: keep-alive", b"X: \t y "]))
    if draw.random() < 0.1:
        lines.append(draw.choice([b"Retry-After: 7", b"Retry-After: 7\r\nRetry-After: 8"]))
    ends_with_connection = False
    framing = draw.random()
    if status[:3] in (b"204", b"304"):
        body = b""  # more would be unasked bytes: what those do is tested by itself
    elif framing < 0.45:
        length = len(body) + draw.choice([0] * 8 + [1])
        lines.append(b"Content-Length: %d" % length)
        ends_with_connection = length > len(body)
    elif framing < 0.85:
        lines.append(draw.choice([b"Transfer-Encoding: chunked", b"transfer-encoding:  Chunked"]))
        body = chunked(draw, body)
        ends_with_connection = draw.random() < 0.1
        if ends_with_connection:
            body = body[: draw.randrange(len(body) + 1)]
    else:
        ends_with_connection = True
    reply = b"\r\n".join(lines) + b"\r\n\r\n" + body
    if draw.random() < 0.1:
        reply = b"HTTP/1.1 100 Continue\r\n\r\n" + reply
    if draw.random() < 0.1:
        at = draw.randrange(len(reply))
        reply = reply[:at] + draw.randbytes(1) + reply[at + 1 :]
        ends_with_connection = True
    return reply, ends_with_connection


def chunked(draw: random.Random, body: bytes) -> bytes:
    """Return a body in chunks."""
    parts = []
    while body:
        size = draw.randrange(1, len(body) + 1)
        extension = draw.choice([b"", b"", b";name=value"])
        parts.append(b"%x" % size + extension + b"\r\n" + body[:size] + b"\r\n")
        body = body[size:]
    trailer = draw.choice([b"", b"", b"X-Sum: 1\r\n"])
    return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


Seen = tuple[object, ...]


def seen(outcome: Outcome) -> Seen:
    """Return what a caller can tell outcomes apart by."""
    if isinstance(outcome, HttpFailure):
        return (outcome.kind,)
    headers = (outcome.header(b"content-type"), outcome.header(b"retry-after"))
    return (outcome.status, *headers, outcome.body, outcome.coding_problem is not None)


def is_refused(outcome: Seen) -> bool:
    """Whether a body was too large or in no coding."""
    return outcome[0] is HttpFailureKind.TOO_LARGE or outcome[-1] is True


async def seen_by_aiohttp(session: aiohttp.ClientSession, url: str) -> Seen:
    """Do the same with aiohttp, decoding as this project does."""
    try:
        async with session.post(url, data=b"{}", allow_redirects=False) as response:
            coding = response.headers.get("Content-Encoding", "")
            body, is_undecodable = b"", False
            try:
                body = decode_body(await response.read(), coding, BYTES_MAX)
            except BodyTooLarge:
                return (HttpFailureKind.TOO_LARGE,)
            except UndecodableBody:
                is_undecodable = True
            named = (response.headers.get(name) for name in ("Content-Type", "Retry-After"))
            headers = (in_ascii(value) for value in named)
            return (response.status, *headers, body, is_undecodable)
    except (aiohttp.ClientError, ValueError):
        return (HttpFailureKind.BROKEN,)


def in_ascii(value: str | None) -> str | None:
    """Return a header's value as this project shows it."""
    if value is None:
        return None
    return value.encode("utf-8", "surrogateescape").decode("ascii", "replace")


@pytest.mark.parametrize(("seed", "is_tls"), [(0, False), (1, False), (2, False), (3, True)])
async def test_a_reply_is_to_us_what_it_is_to_aiohttp(
    trusted: ssl.SSLContext, seed: int, *, is_tls: bool
) -> None:
    draw = random.Random(seed)
    replies: dict[bytes, tuple[bytes, bool]] = {}

    def serve(here: Site) -> Serve:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await here.read(reader)
                reply, ends = replies[here.heads.pop().split(b" ")[1][1:]]
                writer.write(reply)
                if ends:
                    return

        return connection

    kinds: Counter[object] = Counter()
    connector = aiohttp.TCPConnector(ssl=tls_context())
    async with (
        site(serve, ssl=trusted if is_tls else None) as here,
        client() as mine,
        aiohttp.ClientSession(auto_decompress=False, connector=connector) as session,
    ):
        server = url_of(here, is_tls=is_tls)
        for number in range(REPLIES):
            reply, ends = replies[b"%d" % number] = generated(draw)
            url = f"{server}/{number}"
            ours = seen(await asyncio.wait_for(mine.request(post(url)), PATIENCE_S))
            theirs = await asyncio.wait_for(seen_by_aiohttp(session, url), PATIENCE_S)
            kinds[ours[0]] += 1
            if is_refused(ours) and (is_refused(theirs) or theirs == (HttpFailureKind.BROKEN,)):
                continue  # the first defect ends the reading, and they read larger pieces
            assert ours == theirs, (reply, ends)
    assert {200, 204, HttpFailureKind.BROKEN, HttpFailureKind.TOO_LARGE} <= kinds.keys()


class Wire(asyncio.Transport):
    """A transport that holds what is written and closes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.written = bytearray()
        self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hold it."""
        self.written += data

    def pause_reading(self) -> None:
        """Note it: a test writes when it is read on."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Note it."""
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True


def used_up() -> ReadBudget:
    """Return turns that have no time left: each look at the clock lasts longer than one."""
    turns = ReadBudget(itertools.count(1.0).__next__)
    turns.is_used_up()  # which begins one
    return turns


def take_turns(mine: HttpClient) -> None:
    """Do what was put off to later turns of the loop."""
    while mine.read_budget._waiting:
        mine.read_budget._go_on()


def fed(mine: HttpClient, pieces: Iterable[bytes], *, ends: bool) -> tuple[Seen | None, bool]:
    """Return what a reply in these pieces is, and whether its connection is used again."""
    outcomes: list[Outcome] = []
    connection = Connection(mine, ("127.0.0.1", 1, False))
    wire = Wire()
    connection.connection_made(wire)
    exchange = Exchange(connection.server, BYTES_MAX, outcomes.append)
    connection.begin(exchange, b"", b"")
    for piece in pieces:
        take_turns(mine)
        if piece and not outcomes and not wire.is_closed:
            connection.get_buffer(-1)[: len(piece)] = piece
            connection.buffer_updated(len(piece))
    if ends:
        connection.connection_lost(None)
    take_turns(mine)
    is_kept = bool(mine._idle)
    connection.close()
    assert len(outcomes) <= 1
    return (seen(outcomes[0]) if outcomes else None), is_kept


@pytest.mark.parametrize("is_late", [False, True])
async def test_where_a_reply_is_cut_makes_no_difference(*, is_late: bool) -> None:
    """Nor whether the turn of the loop has time for its pieces."""
    draw = random.Random(7)
    async with client() as mine:
        for _ in range(REPLIES // (4 if is_late else 2)):
            reply, ends = generated(draw)
            mine.read_budget = ReadBudget(lambda: 0.0)  # none is used up
            whole, is_kept = fed(mine, [reply], ends=ends)
            if is_late:
                mine.read_budget = used_up()
                assert fed(mine, [reply], ends=ends) == (whole, is_kept), reply
            for at in range(1, min(len(reply), 400)):
                cut, is_cut_kept = fed(mine, [reply[:at], reply[at:]], ends=ends)
                assert cut == whole, (reply, at)
                # What comes after a whole reply is seen only if it comes with it.
                assert is_cut_kept or not is_kept, (reply, at)
            byte_by_byte = (reply[at : at + 1] for at in range(len(reply)))
            assert fed(mine, byte_by_byte, ends=ends)[0] == whole, reply
