"""An HTTP/1.1 client for other people's servers, by callbacks on kept connections.

Theory of operation. A request goes out on an idle connection to its server at once, in one write;
only a new connection needs a task, which resolves the name, asks the egress gate for each address
and connects. The reply is parsed as it comes (httptools) and decoded within its bound; the callback
runs inside the read, when the connection is free for the next request. Whatever a server does is
bounded: the time to connect, the time in all, the bytes of the body, of the decoded body, and all
other bytes in proportion to it. A redirect is a reply. A request is sent once: a server that closed
its connection may have acted on it. contract.md section 5; decision 0140.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import aiohappyeyeballs
import httptools
from msgspec import Struct
from yarl import URL

from core.content_coding import BodyDecoder, BodyTooLarge, UndecodableBody
from federation.egress import EgressDenied, gated_socket_factory
from federation.idle_connections import IdleConnections, Server
from federation.name_resolver import NameResolver, NameUnavailable, ResolvedAddress

log = logging.getLogger("callboard.federation")

KEEP_ALIVE_S: Final = 30.0
# URLs whose parts are remembered.
TARGETS_MAX: Final = 4_096
# Until the next address of a name is tried beside the first.
NEXT_ADDRESS_S: Final = 0.25
# Of one callback, which lasts some milliseconds at most, whatever the bytes are.
READ_BYTES_MAX: Final = 32 * 1024
# A larger body is written apart from its head, so that it is in memory once.
JOINED_BYTES_MAX: Final = 16 * 1024
# Bytes that are not of the body: headers, sizes of chunks (5 for a short chunk), trailers. Each
# chunk costs a callback: at most as many more bytes as the body has, so its chunks are no dust.
OVERHEAD_BYTES_MAX: Final = 64 * 1024

# What callers read of a reply, and what says how its body ends.
_KEPT: Final = frozenset(
    (b"content-type", b"content-encoding", b"retry-after", b"content-length", b"transfer-encoding")
)

_SAME_FOR_ALL: Final = b"User-Agent: callboard\r\nAccept: */*\r\n"
_SWITCHING: Final = 101

# Idle connections that are closed when there is no socket left, and turns until they are gone.
CLOSED_FOR_ROOM: Final = 64
TURNS_TO_CLOSE: Final = 3
_OUR_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpFailureKind(Enum):
    """Why a request has no reply."""

    DENIED = auto()  # by the egress policy, before a packet was sent
    NOT_TRIED = auto()  # for want of our own means, which says nothing of the server
    UNREACHABLE = auto()
    CONNECT_TIMEOUT = auto()
    TIMEOUT = auto()
    BROKEN = auto()
    TOO_LARGE = auto()


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """A request without a reply, why in words, and the status of a reply that is too large."""

    kind: HttpFailureKind
    detail: str
    status: int = 0


class HttpReply(Struct, frozen=True):
    """A reply.

    Args:
        headers: those that this client keeps, by lower-case name; the first of a repeated one.
        body: decoded; empty when it could not be.
        coding_problem: why the body could not be decoded.
    """

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    coding_problem: str | None = None

    def header(self, name: bytes) -> str | None:
        """Return the value of a kept header; bytes outside ASCII are replaced."""
        value = self.headers.get(name)
        return None if value is None else value.decode("ascii", "replace")


Outcome = HttpReply | HttpFailure


class HttpRequest(Struct, frozen=True):
    """A request and its bounds.

    Args:
        headers: besides Host and Content-Length; visible ASCII.
        body: None for a request without one.
        connect_timeout_s: for resolving the name, connecting and TLS.
        timeout_s: for all of it.
        reply_bytes_max: of the body, as it comes and decoded.
        payer: in whose share a name is looked up.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    connect_timeout_s: float
    timeout_s: float
    reply_bytes_max: int
    payer: str = ""


class Exchange:
    """A request on its way and the callback for its outcome; `cancel` ends it silently."""

    __slots__ = (
        "_done",
        "_is_over",
        "connection",
        "reply_bytes_max",
        "server",
        "task",
        "timer",
        "written",
    )

    def __init__(
        self,
        request: HttpRequest,
        server: Server,
        done: Callable[[Outcome], None],
        written: Callable[[], None] | None = None,
    ) -> None:
        # Not the request: its body is let go of when the transport has it.
        self.reply_bytes_max = request.reply_bytes_max
        self.server = server
        self._done = done
        self.written = written
        self._is_over = False
        self.timer: asyncio.TimerHandle | None = None
        # Connects, before there is a connection.
        self.task: asyncio.Task[None] | None = None
        self.connection: _Connection | None = None

    def cancel(self) -> None:
        """Stop, and close the connection; the callback hears nothing."""
        self._is_over = True
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None:
            self.connection.close()

    def end(self, outcome: Outcome) -> None:
        """Stop and tell the callback, unless it is over."""
        if not self._is_over:
            self.cancel()
            self._done(outcome)

    def tell_written(self) -> None:
        """Tell that the request is written, once."""
        written, self.written = self.written, None
        if written is not None and not self._is_over:
            written()

    def fail(self, kind: HttpFailureKind, detail: str) -> None:
        """End without a reply."""
        self.end(HttpFailure(kind, detail))


class HttpClient:
    """The connections of one process to other people's servers; made inside its event loop.

    Args:
        egress_allow: networks that servers may live in although not public.
        keep_alive_s: how long an idle connection is kept; 0: none is.
        names: looks names up; None: at this machine's name servers.
    """

    def __init__(
        self,
        egress_allow: Sequence[str],
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        names: NameResolver | None = None,
    ) -> None:
        self._open_socket = gated_socket_factory(egress_allow)
        self._names = NameResolver() if names is None else names
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._idle: IdleConnections[_Connection] = IdleConnections()
        self._connections: set[_Connection] = set()
        self._connecting: set[Exchange] = set()
        self._looking_up: set[Exchange] = set()
        self._sweep: asyncio.TimerHandle | None = None
        # One for all connections: what a read brings is parsed before the next read.
        self.buffer = memoryview(bytearray(READ_BYTES_MAX))

    def __repr__(self) -> str:
        return f"<HttpClient connections={len(self._connections)}>"

    def send(
        self,
        request: HttpRequest,
        done: Callable[[Outcome], None],
        written: Callable[[], None] | None = None,
    ) -> Exchange:
        """Send a request.

        Args:
            done: gets its outcome, once and later; it must not raise.
            written: called, maybe before this returns, when the server's socket has taken the
                request but for some 16 KiB at most; not after the outcome.

        Raises:
            ValueError: the URL is that of no HTTP server, or a header cannot be sent.
        """
        server, head = _head(request)
        exchange = Exchange(request, server, done, written)
        connection = self._take_idle(server)
        if connection is not None:
            self._limit(exchange, request.timeout_s)
            connection.begin(exchange, head, request.body)
            return exchange
        # Both bounds begin here, so the lower one bounds the connecting.
        exchange.timer = self._loop.call_later(
            min(request.connect_timeout_s, request.timeout_s), self._give_up, exchange
        )
        exchange.task = self._loop.create_task(self._connect(exchange, request, head))
        self._connecting.add(exchange)
        exchange.task.add_done_callback(lambda _: self._connecting.discard(exchange))
        return exchange

    async def request(self, request: HttpRequest) -> Outcome:
        """Send a request and wait for its outcome; a cancelled wait ends it.

        Raises:
            ValueError: as `send`.
        """
        outcome: asyncio.Future[Outcome] = self._loop.create_future()

        def take(found: Outcome) -> None:
            if not outcome.done():  # cancelled in this turn, in which the exchange ended by itself
                outcome.set_result(found)

        exchange = self.send(request, take)
        try:
            return await outcome
        finally:
            exchange.cancel()

    async def close(self) -> None:
        """Cancel what is open, and close every connection."""
        for exchange in list(self._connecting):
            exchange.cancel()
        self._names.close()
        for connection in list(self._connections):
            connection.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.sleep(0)  # transports close in the next turn

    # -- connections ------------------------------------------------------------------------------

    def keep(self, connection: _Connection) -> None:
        """Keep a connection that is free for its server's next request, for a while."""
        if self._keep_alive_s <= 0:
            connection.close()
            return
        connection.idle_since_s = self._loop.time()
        surplus = self._idle.put(connection)
        if surplus is not None:
            surplus.close()
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._keep_alive_s / 2, self._close_idle)

    def count(self, connection: _Connection) -> None:
        """Count a connection that is open."""
        self._connections.add(connection)

    def forget(self, connection: _Connection) -> None:
        """Drop a connection that has ended, if it is still known."""
        self._connections.discard(connection)
        self._idle.drop(connection)

    def _take_idle(self, server: Server) -> _Connection | None:
        while (connection := self._idle.take(server)) is not None:
            if connection.is_open:
                return connection
        return None

    def _close_idle(self) -> None:
        self._sweep = None
        before_s = self._loop.time() - self._keep_alive_s
        for connection in self._idle.oldest(before_s, len(self._idle)):
            connection.close()
        if self._idle:
            self._sweep = self._loop.call_later(self._keep_alive_s / 2, self._close_idle)

    def _limit(self, exchange: Exchange, left_s: float) -> None:
        if exchange.timer is not None:
            exchange.timer.cancel()
        exchange.timer = self._loop.call_later(
            left_s, exchange.fail, HttpFailureKind.TIMEOUT, "no reply in time"
        )

    def _give_up(self, exchange: Exchange) -> None:
        """End an exchange whose connection has not come about in its time."""
        if exchange in self._looking_up and not self._names.is_answered:
            exchange.fail(HttpFailureKind.NOT_TRIED, "no name server answers")
        else:
            exchange.fail(
                HttpFailureKind.CONNECT_TIMEOUT, "the connection was not accepted in time"
            )

    async def _connect(self, exchange: Exchange, request: HttpRequest, head: bytes) -> None:
        began_s = self._loop.time()
        try:
            found = await self._connected(exchange, request.payer)
        except Exception:  # the edge of the task: a defect of ours says nothing of the server
            log.exception("connecting failed server=%s", exchange.server)
            found = HttpFailure(HttpFailureKind.NOT_TRIED, "connecting failed inside the service")
        exchange.task = None
        if isinstance(found, HttpFailure):
            exchange.end(found)
            return
        self._limit(exchange, request.timeout_s - (self._loop.time() - began_s))
        found.begin(exchange, head, request.body)

    async def _connected(self, exchange: Exchange, payer: str) -> _Connection | HttpFailure:
        """Return a new connection to the exchange's server, or why there is none."""
        refused: list[OSError] = []
        addresses: Sequence[ResolvedAddress] = []
        connection = _Connection(self, exchange.server)
        host, port, is_tls = exchange.server
        try:
            self._looking_up.add(exchange)
            try:
                addresses = await self._names.resolve(host, port, payer)
            finally:
                self._looking_up.discard(exchange)
            opened = await self._open(addresses, refused)
            try:
                await self._loop.create_connection(
                    lambda: connection,
                    sock=opened,
                    ssl=await asyncio.to_thread(tls_context) if is_tls else None,
                    server_hostname=host.rstrip(".") if is_tls else None,
                )
            except BaseException:
                opened.close()
                raise
        except OSError as error:
            denied = [one for one in refused if isinstance(one, EgressDenied)]
            if denied and len(denied) == len(addresses):
                return HttpFailure(HttpFailureKind.DENIED, denied[0].reason)
            if any(map(_is_ours, (error, *refused))):
                return HttpFailure(HttpFailureKind.NOT_TRIED, str(error))
            return HttpFailure(HttpFailureKind.UNREACHABLE, type(error).__name__)
        return connection

    async def _open(
        self, addresses: Sequence[ResolvedAddress], refused: list[OSError]
    ) -> socket.socket:
        """Return a connected socket; where this machine has none left, idle ones make room.

        Args:
            refused: gets why there is no socket for an address.

        Raises: OSError.
        """
        for idle_max in (CLOSED_FOR_ROOM, 0):
            refused.clear()
            try:
                return await aiohappyeyeballs.start_connection(
                    addresses,
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                    socket_factory=lambda address: self._gated(address, refused),
                )
            except (OSError, RuntimeError) as error:
                idle = self._idle.oldest(self._loop.time(), idle_max)
                if not idle or not any(map(_is_ours, (error, *refused))):
                    if isinstance(error, RuntimeError):  # what uvloop raises without a reason
                        raise OSError(str(error)) from None
                    raise
                for connection in idle:
                    connection.close()
                for _ in range(TURNS_TO_CLOSE):
                    await asyncio.sleep(0)
        raise AssertionError("the last try returns or raises")

    def _gated(self, address: Any, refused: list[OSError]) -> socket.socket:
        try:
            return self._open_socket(address)
        except OSError as error:
            refused.append(error)
            raise


def _is_ours(error: Exception) -> bool:
    """Say whether a connection failed for want of something that this machine has too little of."""
    return isinstance(error, NameUnavailable) or (
        isinstance(error, OSError) and error.errno in _OUR_ERRORS
    )


class _Connection(asyncio.BufferedProtocol):
    """One connection to a server, with one exchange at a time."""

    def __init__(self, client: HttpClient, server: Server) -> None:
        self.server = server
        self.idle_since_s = 0.0
        self._client = client
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # As lenient as aiohttp is: agents' servers are sloppy, and connections are not shared.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._exchange: Exchange | None = None
        self._is_writing = False
        # Of the body, by one read; empty after it.
        self._pieces: list[bytes] = []
        self._reset()

    def __repr__(self) -> str:
        return f"<_Connection {self.server} busy={self._exchange is not None}>"

    @property
    def is_open(self) -> bool:
        """Whether it can take a request."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, exchange: Exchange, head: bytes, body: bytes | None) -> None:
        """Send an exchange's request."""
        assert self._transport is not None
        exchange.connection = self
        self._exchange = exchange
        self._reset()
        if not body or len(body) <= JOINED_BYTES_MAX:
            self._transport.write(head + body if body else head)
        else:
            self._transport.write(head)
            self._transport.write(body)
        if exchange.written is not None and not self._is_writing:
            exchange.tell_written()

    def close(self) -> None:
        """Close at once; an exchange that is on it hears nothing from here."""
        self._exchange = None
        self._client.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def cancel(self) -> None:
        """Close, and cancel the exchange that is on it."""
        if self._exchange is not None:
            self._exchange.cancel()
        else:
            self.close()

    def _reset(self) -> None:
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._decoder: BodyDecoder | None = None
        self._received = self._body_bytes = 0
        self._is_informational = self._is_complete = self._is_kept = False
        self._failure: HttpFailure | None = None
        self._coding_problem: str | None = None

    # -- called by the loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the open connection."""
        self._transport = transport  # type: ignore[assignment]
        self._client.count(self)

    def pause_writing(self) -> None:
        """See that the server does not take what is written as fast as it comes."""
        self._is_writing = True

    def resume_writing(self) -> None:
        """See that the server has taken nearly all."""
        self._is_writing = False
        if self._exchange is not None:
            self._exchange.tell_written()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to."""
        return self._client.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what has come; tell the exchange when its reply is there or cannot be."""
        if self._exchange is None:
            self.close()  # nothing was asked
            return
        self._received += nbytes
        broken: Exception | None = None
        try:
            self._parser.feed_data(self._client.buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            broken = error
        if self._pieces:
            self._decode()
        if broken is not None:
            if not self._is_complete:
                self._fail(HttpFailureKind.BROKEN, type(broken).__name__)
            self._is_kept = False
        if self._received - self._body_bytes > OVERHEAD_BYTES_MAX + self._body_bytes:
            self._fail(HttpFailureKind.BROKEN, "too many bytes beside the body")
        if self._is_complete or self._failure is not None or self._coding_problem is not None:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange: a reply without a length ends like this, others are broken."""
        self._client.forget(self)
        if self._exchange is None:
            return
        if error is not None or not self._status or self._has_length():
            self._fail(HttpFailureKind.BROKEN, "the server closed the connection")
        self._is_kept = False
        self._finish()

    def _has_length(self) -> bool:
        if b"content-length" in self._headers:
            return True
        return self._headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")

    def _decode(self) -> None:
        """Decode what one read has brought of the body, in one piece."""
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._decoder is None or self._failure is not None or self._coding_problem is not None:
            return
        try:
            self._decoder.feed(piece)
        except BodyTooLarge as error:
            self._fail(HttpFailureKind.TOO_LARGE, str(error))
        except UndecodableBody as error:
            self._coding_problem = str(error)

    def _fail(self, kind: HttpFailureKind, detail: str) -> None:
        if self._failure is None and self._coding_problem is None:
            self._failure = HttpFailure(kind, detail, self._status)

    def _finish(self) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        exchange.connection = None
        outcome = self._outcome()
        self._decoder = None  # it holds the body
        is_good = isinstance(outcome, HttpReply) and outcome.coding_problem is None
        if is_good and self._is_kept and self.is_open and not self._is_writing:
            self._client.keep(self)
        else:
            self.close()
        exchange.end(outcome)

    def _outcome(self) -> Outcome:
        if self._failure is not None:
            return self._failure
        body, problem = b"", self._coding_problem
        if problem is None:
            assert self._decoder is not None
            try:
                body = self._decoder.finish()
            except UndecodableBody as error:
                problem = str(error)
        return HttpReply(self._status, self._headers, body, problem)

    # -- called by the parser, within buffer_updated ---------------------------------------------

    def on_message_begin(self) -> None:
        """See what comes after a whole reply: no request has asked for it."""
        if self._is_complete:
            self._is_kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are not read."""
        lower = name.lower()
        if lower in _KEPT and not self._status:
            self._headers.setdefault(lower, value)

    def on_headers_complete(self) -> None:
        """Prepare for the body."""
        status = self._parser.get_status_code()
        if self._is_complete:
            return
        if 100 <= status < 200 and status != _SWITCHING:
            self._is_informational = True
            return
        self._status = status
        exchange = self._exchange
        assert exchange is not None
        bytes_max = exchange.reply_bytes_max
        coding = self._headers.get(b"content-encoding", b"").decode("latin-1")
        try:
            self._decoder = BodyDecoder(coding, bytes_max)
        except UndecodableBody as error:
            self._coding_problem = str(error)
            return
        if int(self._headers.get(b"content-length", b"0")) > bytes_max:
            self._fail(HttpFailureKind.TOO_LARGE, f"the reply is larger than {bytes_max} bytes")

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if not self._is_complete:
            self._body_bytes += len(piece)
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """See the end of a reply, or of an interim one, which is dropped."""
        if self._is_complete:
            return
        if self._is_informational:
            self._is_informational = False
            self._headers.clear()
            return
        self._is_complete = True
        self._is_kept = self._parser.should_keep_alive()


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return what this process trusts; making it takes 40 ms."""
    return ssl.create_default_context()


@functools.lru_cache(maxsize=TARGETS_MAX)
def _target(url: str) -> tuple[Server, bytes, bytes]:
    """Return where a URL leads, its path and the lines of a head that it decides.

    Raises:
        ValueError: it is the URL of no HTTP server.
    """
    parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host or not parsed.port:
        raise ValueError("expected the URL of an HTTP server")
    lines = f"Host: {parsed.host_port_subcomponent}\r\n".encode("ascii") + _SAME_FOR_ALL
    if parsed.user is not None:
        credentials = f"{parsed.user}:{parsed.password or ''}".encode()
        lines += b"Authorization: Basic " + base64.b64encode(credentials) + b"\r\n"
    server = (parsed.raw_host, parsed.port, parsed.scheme == "https")
    return server, parsed.raw_path_qs.encode("ascii"), lines


def _head(request: HttpRequest) -> tuple[Server, bytes]:
    """Return a request's server and its bytes up to the body.

    Raises:
        ValueError: the URL is that of no HTTP server, or a header cannot be sent.
    """
    server, path, lines = _target(request.url)
    given = "".join(f"{name}: {value}\n" for name, value in request.headers.items())
    if "\r" in given or given.count("\n") != len(request.headers) or not given.isascii():
        raise ValueError("a header is not a line of ASCII")
    length = b"" if request.body is None else b"Content-Length: %d\r\n" % len(request.body)
    head = b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (
        request.method.encode(),
        path,
        lines,
        length,
        given.replace("\n", "\r\n").encode(),
    )
    return server, head
