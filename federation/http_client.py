"""An HTTP/1.1 client for other people's servers, by callbacks on kept connections.

Theory of operation. A request goes out on an idle connection to its server at once, in one write;
only a new connection needs a task, which resolves the name, asks the egress gate for each address
and connects. What happens on a connection is in `federation/http_connection.py`. TLS is the event
loop's, behind `federation/tls_gate.py`. Whatever a server does is bounded: the time to connect, the
time in all, the bytes of the body, of the decoded body, and all other bytes in proportion to it. A
redirect is a reply. A request on a kept connection that ends before any byte of the reply comes is
sent once more, on a new connection: servers close idle connections, and the request may be on its
way then. Nothing else is repeated: the server may have acted on it.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import functools
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aiohappyeyeballs
from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from federation.egress import EgressDenied, gated_socket_factory
from federation.http_connection import (
    JOINED_BYTES_MAX,
    Connection,
    Exchange,
    HttpFailure,
    HttpFailureKind,
    IdleConnections,
    Outcome,
    Server,
)
from federation.name_resolver import NameResolver, NameUnavailable, ResolvedAddress
from federation.read_turns import ReadTurns

log = logging.getLogger("callboard.federation")

KEEP_ALIVE_S: Final = 30.0
# URLs whose parts are remembered.
TARGETS_MAX: Final = 4_096
# Of one callback, which lasts some milliseconds at most, whatever the bytes are.
READ_BYTES_MAX: Final = 32 * 1024
# CPU of opening a socket and of the first step of a handshake: the loop takes it in a later turn.
CONNECT_S: Final = 0.0001
HELLO_S: Final = 0.0003
# Until the next address of a name is tried beside the first.
NEXT_ADDRESS_S: Final = 0.25

_SAME_FOR_ALL: Final = b"User-Agent: callboard\r\nAccept: */*\r\n"

_OUR_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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


class HttpClient:
    """The connections of one process to other people's servers; made inside its event loop.

    Args:
        egress_allow: networks that servers may live in although not public.
        names: looks names up; closed with the client.
        keep_alive_s: how long an idle connection is kept; 0: none is.
        may_write: whether a request may be written whose connection has just been made: whoever
            sent it asked before, and connecting takes time.
    """

    def __init__(
        self,
        egress_allow: Sequence[str],
        names: NameResolver,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self._open_socket = gated_socket_factory(egress_allow)
        self._names = names
        self._keep_alive_s = keep_alive_s
        self._may_write = may_write
        self._loop = asyncio.get_running_loop()
        self._idle = IdleConnections()
        self._connections: set[Connection] = set()
        self._connecting: set[Exchange] = set()
        self._looking_up: set[Exchange] = set()
        self._sweep: asyncio.TimerHandle | None = None
        # One for all connections: what a read brings is parsed before the next read.
        self.buffer = memoryview(bytearray(READ_BYTES_MAX))
        self.read_turns = ReadTurns()
        # Not the one of reads: while replies are late, no connection would be made.
        self._connect_turns = ReadTurns()

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
                request but for 64 KiB at most; not after the outcome.

        Raises:
            ValueError: the URL is that of no HTTP server, or a header cannot be sent.
        """
        server, head = _head(request)
        exchange = Exchange(server, request.reply_bytes_max, done, written, request.payer)
        # A larger body is not kept until its reply begins, so it could not be repeated.
        is_repeatable = request.body is None or len(request.body) <= JOINED_BYTES_MAX
        connection = self._take_idle(server) if is_repeatable else None
        if connection is None:
            self._send_on_new(exchange, request, head)
            return exchange
        exchange.repeat = functools.partial(self._repeat, exchange, request, head)
        self._limit(exchange, request.timeout_s)
        connection.begin(exchange, head, request.body)
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

    def keep(self, connection: Connection) -> None:
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

    def count(self, connection: Connection) -> None:
        """Count a connection that is open."""
        self._connections.add(connection)

    def forget(self, connection: Connection) -> None:
        """Drop a connection that has ended, if it is still known."""
        self._connections.discard(connection)
        self._idle.drop(connection)

    def _take_idle(self, server: Server) -> Connection | None:
        while (connection := self._idle.take(server)) is not None:
            if connection.is_open:
                return connection
            connection.close()
        return None

    def _close_idle(self) -> None:
        self._sweep = None
        before_s = self._loop.time() - self._keep_alive_s
        for connection in self._idle.oldest(before_s):
            connection.close()
        if self._idle:
            self._sweep = self._loop.call_later(self._keep_alive_s / 2, self._close_idle)

    def _send_on_new(self, exchange: Exchange, request: HttpRequest, head: bytes) -> None:
        # Both bounds begin here, so the lower one bounds the connecting.
        exchange.timer = self._loop.call_later(
            min(request.connect_timeout_s, request.timeout_s), self._give_up, exchange
        )
        exchange.task = self._loop.create_task(self._connect(exchange, request, head))
        self._connecting.add(exchange)
        exchange.task.add_done_callback(lambda _: self._connecting.discard(exchange))

    def _repeat(self, exchange: Exchange, request: HttpRequest, head: bytes) -> None:
        """Send a request once more, on a new connection, within what is left of its time."""
        assert exchange.timer is not None
        left_s = max(0.0, exchange.timer.when() - self._loop.time())
        exchange.timer.cancel()
        self._send_on_new(exchange, replace(request, timeout_s=left_s), head)

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
            found = await self._connected(exchange)
        except Exception:  # the edge of the task: a defect of ours says nothing of the server
            log.exception("connecting failed server=%s", exchange.server)
            found = HttpFailure(HttpFailureKind.NOT_TRIED, "connecting failed inside the service")
        exchange.task = None
        if isinstance(found, HttpFailure):
            exchange.end(found)
            return
        if not found.is_open:
            exchange.fail(HttpFailureKind.BROKEN, "the server closed the connection")
            return
        if not self._may_write():
            self.keep(found)
            exchange.fail(HttpFailureKind.WITHHELD, "nothing may be sent from here now")
            return
        self._limit(exchange, request.timeout_s - (self._loop.time() - began_s))
        found.begin(exchange, head, request.body)

    async def _connected(self, exchange: Exchange) -> Connection | HttpFailure:
        """Return a new connection to the exchange's server, or why there is none."""
        refused: list[OSError] = []
        addresses: Sequence[ResolvedAddress] = []
        connection = Connection(self, exchange.server, exchange.payer)
        host, port, is_tls = exchange.server
        try:
            self._looking_up.add(exchange)
            try:
                addresses = await self._names.resolve(host, port, exchange.payer)
            finally:
                self._looking_up.discard(exchange)
            opened = await self._open(addresses, refused)
            try:
                await self._loop.create_connection(lambda: connection, sock=opened)
            except BaseException:
                opened.close()
                raise
            if is_tls:
                try:
                    await self._connect_turns.wait(HELLO_S)
                    await connection.secure(tls_context(), host.rstrip("."))
                except BaseException:
                    connection.close()
                    raise
        except OSError as error:
            denied = [one for one in refused if isinstance(one, EgressDenied)]
            if denied and len(denied) == len(addresses):
                return HttpFailure(HttpFailureKind.DENIED, str(denied[0]))
            ours = next((one for one in (error, *refused) if _is_ours(one)), None)
            if ours is not None:
                return HttpFailure(HttpFailureKind.NOT_TRIED, _cause(ours))
            return HttpFailure(HttpFailureKind.UNREACHABLE, type(error).__name__)
        return connection

    async def _open(
        self, addresses: Sequence[ResolvedAddress], refused: list[OSError]
    ) -> socket.socket:
        """Return a connected socket.

        Args:
            refused: gets why there is no socket for an address.

        Raises: OSError.
        """
        await self._connect_turns.wait(CONNECT_S)
        try:
            return await aiohappyeyeballs.start_connection(
                addresses,
                happy_eyeballs_delay=NEXT_ADDRESS_S,
                socket_factory=lambda address: self._gated(address, refused),
            )
        except RuntimeError as error:  # what uvloop raises without a reason
            raise OSError(str(error)) from None

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


def _cause(error: OSError) -> str:
    """Return what this machine has too little of; the text of an `OSError` may name addresses."""
    if isinstance(error, NameUnavailable):
        return str(error)
    assert error.errno in _OUR_ERRORS, error
    return os.strerror(error.errno)


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return what this process trusts; making it takes 40 ms."""
    context = ssl.create_default_context()
    context.options |= ssl.OP_NO_RENEGOTIATION  # so no write waits for what the server says
    # What is offered by default depends on how Python was built: Debian's leaves it to OpenSSL.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without groups that the server makes up: one step with 10,000 bits takes a second.
    context.set_ciphers(
        "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!aNULL:!PSK:!SHA1:!AESCCM"
    )
    # Every TLS 1.3 server must know P-256. A server's choice of ffdhe8192 costs the loop 130 ms.
    context.set_ecdh_curve("prime256v1")
    return context


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
    given = "\r\n".join([*map(": ".join, request.headers.items()), ""])
    ends = given.count("\r"), given.count("\n")
    if ends != (len(request.headers),) * 2 or not given.isascii():
        raise ValueError("a header is not a line of ASCII")
    length = b"" if request.body is None else b"Content-Length: %d\r\n" % len(request.body)
    head = b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (
        request.method.encode(),
        path,
        lines,
        length,
        given.encode(),
    )
    return server, head
