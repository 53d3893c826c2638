"""An HTTP/1.1 client for servers of other parties, with callbacks and a pool of idle connections.

Theory of operation. If the pool has an idle connection to the server, a request is written to it at
once. A new connection needs an asyncio task. The task resolves the name, checks each address with
the egress gate, and connects. `federation/http_connection.py` handles an open connection. TLS is
the event loop's own, behind `federation/tls_gate.py`.

The cost of a request is bounded: the time to connect, the total time, the size of the body as
received and as decoded, and the bytes outside the body in proportion to the body. Redirects are not
followed; a redirect is a reply.

A server may close an idle connection while a request is on its way. So if a pooled connection ends
before the first byte of a reply, the request is sent again once, on a new connection. In all other
cases a request is not repeated, because the server may have acted on it.
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
from federation.read_budget import ReadBudget

log = logging.getLogger("callboard.federation")

KEEP_ALIVE_S: Final = 30.0
# URLs whose parsed parts are cached.
TARGETS_MAX: Final = 4_096
# The most bytes that one read returns. One callback handles them, in a few milliseconds at most.
READ_BYTES_MAX: Final = 32 * 1024
# CPU time of opening a socket, and of the first step of a TLS handshake. The loop spends this time
# in a later turn. So the client deducts it from the time of the current turn.
CONNECT_S: Final = 0.0001
HELLO_S: Final = 0.0003
# If the connection to an address takes longer, the next address is tried in parallel.
NEXT_ADDRESS_S: Final = 0.25

_SAME_FOR_ALL: Final = b"User-Agent: callboard\r\nAccept: */*\r\n"

_OUR_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpRequest(Struct, frozen=True):
    """A request and its bounds.

    Args:
        headers: all headers except Host and Content-Length; visible ASCII.
        body: the body; None for a request without a body.
        connect_timeout_s: the most time for resolving the name, connecting and TLS, seconds.
        timeout_s: the most time for the whole request, seconds.
        reply_bytes_max: the largest body of the reply, as received and as decoded, bytes.
        payer: the payer whose share of name look-ups and of processing time the request uses.
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
    """The connections of one process to other servers; must be created inside the event loop.

    Args:
        egress_allow: CIDR networks to which connections are allowed although they are not public.
        names: resolves names. `close` closes this resolver too.
        keep_alive_s: how long an idle connection stays in the pool, seconds; 0: there is no pool.
        may_write: returns whether a request may still be sent. It is called after a new connection
            is open, because the permission may have ended while the client connected.
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
        # All connections share one buffer, because each read is parsed before the next one.
        self.buffer = memoryview(bytearray(READ_BYTES_MAX))
        self.read_budget = ReadBudget()
        # Separate from `read_budget`, so that connections can open while replies use up their time.
        self._connect_turns = ReadBudget()

    def send(
        self,
        request: HttpRequest,
        done: Callable[[Outcome], None],
        written: Callable[[], None] | None = None,
    ) -> Exchange:
        """Send a request.

        Args:
            request: the request.
            done: called once with the outcome, after this method has returned; it must not raise.
            written: called when at most 64 KiB of the request still wait for the socket. This may
                happen before this method returns, but not after `done` was called.

        Returns:
            The exchange, which can be cancelled.

        Raises:
            ValueError: the URL is not that of an HTTP server, or a header cannot be sent.
        """
        server, head = _head(request)
        exchange = Exchange(server, request.reply_bytes_max, done, written, request.payer)
        # A request on a pooled connection may have to be repeated, so its body stays in memory. A
        # request with a larger body uses a new connection, and is never repeated.
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
        """Send a request and return its outcome; if the call is cancelled, so is the request.

        Raises:
            ValueError: the URL is not that of an HTTP server, or a header cannot be sent.
        """
        outcome: asyncio.Future[Outcome] = self._loop.create_future()

        def take(found: Outcome) -> None:
            if not outcome.done():  # it may have been cancelled in this turn of the loop
                outcome.set_result(found)

        exchange = self.send(request, take)
        try:
            return await outcome
        finally:
            exchange.cancel()

    async def close(self) -> None:
        """Cancel all requests, and close all connections."""
        for exchange in list(self._connecting):
            exchange.cancel()
        self._names.close()
        for connection in list(self._connections):
            connection.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        await asyncio.sleep(0)  # transports close in the loop's next turn

    # -- connections ------------------------------------------------------------------------------

    def keep(self, connection: Connection) -> None:
        """Put an idle connection into the pool; close it if there is no pool."""
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
        """Register a connection that has been opened."""
        self._connections.add(connection)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
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
        # Both timeouts begin here, so the shorter one limits the time to connect.
        exchange.timer = self._loop.call_later(
            min(request.connect_timeout_s, request.timeout_s), self._give_up, exchange
        )
        exchange.task = self._loop.create_task(self._connect(exchange, request, head))
        self._connecting.add(exchange)
        exchange.task.add_done_callback(lambda _: self._connecting.discard(exchange))

    def _repeat(self, exchange: Exchange, request: HttpRequest, head: bytes) -> None:
        """Send a request again on a new connection, within the rest of its timeout."""
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
        """End an exchange whose connection was not opened in time."""
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
        except Exception:  # the edge of the task: a bug in this service is no fault of the server
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
        """Return a new connection to the exchange's server, or the failure to open it."""
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
        """Return a socket that is connected to one of the addresses.

        Args:
            addresses: the addresses of the server.
            refused: gets the error for each address for which no socket was opened.

        Raises:
            OSError: no address could be connected.
        """
        await self._connect_turns.wait(CONNECT_S)
        try:
            return await aiohappyeyeballs.start_connection(
                addresses,
                happy_eyeballs_delay=NEXT_ADDRESS_S,
                socket_factory=lambda address: self._gated(address, refused),
            )
        except RuntimeError as error:  # uvloop sometimes raises this instead of an OSError
            raise OSError(str(error)) from None

    def _gated(self, address: Any, refused: list[OSError]) -> socket.socket:
        try:
            return self._open_socket(address)
        except OSError as error:
            refused.append(error)
            raise


def _is_ours(error: Exception) -> bool:
    """Return whether a connection failed because this machine lacks a resource."""
    return isinstance(error, NameUnavailable) or (
        isinstance(error, OSError) and error.errno in _OUR_ERRORS
    )


def _cause(error: OSError) -> str:
    """Return which resource this machine lacks.

    The text of an `OSError` is not used, because it may contain addresses.
    """
    if isinstance(error, NameUnavailable):
        return str(error)
    assert error.errno in _OUR_ERRORS, error
    return os.strerror(error.errno)


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS settings and trusted certificates of this process. Cached, because building
    them takes 40 ms."""
    context = ssl.create_default_context()
    context.options |= ssl.OP_NO_RENEGOTIATION  # so no write has to wait for the server
    # The default version depends on how Python was built: Debian's Python leaves it to OpenSSL.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Excludes finite-field groups that a server defines: with 10,000 bits, one step takes a second.
    context.set_ciphers(
        "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!aNULL:!PSK:!SHA1:!AESCCM"
    )
    # Every TLS 1.3 server must support P-256. With the group ffdhe8192, which a server could
    # choose, a handshake would block the loop for 130 ms.
    context.set_ecdh_curve("prime256v1")
    return context


@functools.lru_cache(maxsize=TARGETS_MAX)
def _target(url: str) -> tuple[Server, bytes, bytes]:
    """Return the server of a URL, its path with query, and the first header lines of a request.

    Raises:
        ValueError: the URL is not that of an HTTP server.
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
    """Return the server of a request, and the request's bytes before the body.

    Raises:
        ValueError: the URL is not that of an HTTP server, or a header cannot be sent.
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
