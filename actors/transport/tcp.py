"""Connections to actors of other machines: TCP, the handshake, TLS where the deployment has it.

An actor that listens says where ("host:port"); a caller asks it by a Ray call, once per connection
that it opens anew. After the handshake (`actors/transport/handshake.py`) a connection is as one
over a Unix socket, with sealed frames. Before it, a peer has `HANDSHAKE_TIMEOUT_S` and makes this
process keep no more than a message of the handshake, and a record of TLS; the oldest of too many
handshakes is ended, so that slow ones do not keep others out. Decision 0205.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple, cast

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from actors.transport.frames import Frames
from actors.transport.handshake import (
    Exchange,
    HandshakeRefused,
    Side,
    client_exchange,
    server_exchange,
)
from actors.transport.sockets import Connection, Heard, SocketServer

log = logging.getLogger("callboard.sockets")

HANDSHAKE_TIMEOUT_S: Final = 5.0
# Of a caller, who can still go by Ray: the actor's answer, the connection and the handshake.
CONNECT_TIMEOUT_S: Final = 2.0
HANDSHAKES_MAX: Final = 64
BACKLOG: Final = 128
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 30.0
# A peer that says nothing is asked after 5 s, three times; what is sent has as long to arrive.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 3
UNACKNOWLEDGED_MS_MAX: Final = 11_000
# Refusals are logged so often, with their number: a peer without the key must not fill the disk.
REFUSALS_LOGGED_S: Final = 1.0
ACCEPT_PAUSE_S: Final = 0.1


class TlsFiles(NamedTuple):
    """The paths of a certificate, of its key, and of the CA that both sides' certificates are of.

    Read once per process.
    """

    certificate: str
    key: str
    ca: str


class Credentials(NamedTuple):
    """What a process proves itself with: the transport keys, the current one first, and TLS."""

    keys: Sequence[bytes]
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class TcpStatistics:
    """Counters since the listener was made. `handshakes`: under way now."""

    accepted: int
    refused: int
    handshakes: int


class _HandshakeProtocol(asyncio.BufferedProtocol):
    """A connection until both sides have proven themselves; then it becomes a `Connection`.

    Never reads beyond the message that is due: what follows is read by its successor.

    Args:
        begin: returns the exchange of a connection that is made.
        connection: returns its successor.
    """

    def __init__(
        self,
        begin: Callable[[asyncio.Transport], Exchange],
        connection: Callable[[Frames], Connection],
    ) -> None:
        self._begin = begin
        self._connection = connection
        self._message = bytearray()
        self._end = 0  # of what has arrived
        self.done: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._exchange = self._begin(self._transport)
        self._advance(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._message)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.done.done():  # refused: what still comes is not read
            return
        self._end += nbytes
        if self._end == len(self._message):
            self._advance(bytes(self._message))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"ended during the handshake: {exc}"))

    def _advance(self, received: bytes | None) -> None:
        try:
            while True:
                step = self._exchange.send(received)  # type: ignore[arg-type]  # None begins it
                self._transport.write(step.sent)
                if step.wanted_bytes:
                    break
                received = b""
        except HandshakeRefused as error:
            if not self.done.done():
                self.done.set_exception(error)
            self._message, self._end = bytearray(1), 0
            self._transport.close()
        except StopIteration as end:
            self._transport.write(end.value.sent)
            connection = self._connection(end.value.frames)
            self._transport.set_protocol(connection)
            connection.connection_made(self._transport)
            if self.done.done():  # whoever waited has given up
                connection.close()
            else:
                self.done.set_result(connection)
        else:
            # A new one: the loop may still hold a view of the old one.
            self._message, self._end = bytearray(step.wanted_bytes), 0


class TcpListener:
    """Listens for callers of other machines, and gives those that prove themselves to a server.

    Args:
        server: serves the connections.
        actor: the name of the actor that it serves.
        credentials: what both sides prove themselves with.
        handshake_timeout_s: after which a peer that has not proven itself is ended.

    Raises:
        OSError: the files of TLS cannot be read.
    """

    def __init__(
        self,
        server: SocketServer,
        actor: str,
        credentials: Credentials,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self._handshake_timeout_s = handshake_timeout_s
        self._server = server
        self._actor = actor
        self._keys = credentials.keys
        files = credentials.tls
        self._tls = None if files is None else _tls_context(files, is_server=True)
        self._certificate = b"" if files is None else _certificate(files.certificate)
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._accepted = self._refused = self._logged = 0
        self._logged_s = -REFUSALS_LOGGED_S

    def __repr__(self) -> str:
        return f"<TcpListener {self._actor} {self.statistics()}>"

    def statistics(self) -> TcpStatistics:
        """Return the counters."""
        return TcpStatistics(self._accepted, self._refused, len(self._handshakes))

    def start(self, host: str, ports: range) -> str:
        """Begin to listen on the first free port.

        Args:
            host: an IP address of this machine.
            ports: to choose from; 0: any.

        Returns: "host:port", for callers.

        Raises:
            OSError: the address is none of this machine's, or no port is free.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for port in ports:
            try:
                listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
                break
            except OSError as error:
                refusal = error
        else:
            raise OSError(f"no port of {ports.start} to {ports.stop - 1} at {host}: {refusal}")
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))
        # Not by the task: one that is cancelled before its first turn does nothing.
        self._accepting.add_done_callback(lambda _: listening.close())
        name = f"[{host}]" if family == socket.AF_INET6 else host
        return f"{name}:{listening.getsockname()[1]}"

    def close(self) -> None:
        """Take no more connections; handshakes under way end."""
        for task in [self._accepting, *self._handshakes]:
            if task is not None:
                task.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, address = await loop.sock_accept(listening)
            except OSError as error:  # no descriptor is left, or the peer has left already
                self._refuse("all", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if self._server.is_full:
                peer.close()
                self._refuse(address, "too many connections")
            else:
                if len(self._handshakes) >= HANDSHAKES_MAX:
                    oldest = next(iter(self._handshakes))
                    self._handshakes.pop(oldest)
                    oldest.cancel()
                task = loop.create_task(self._shake_hands(peer, address))
                self._handshakes[task] = None
                task.add_done_callback(partial(self._forget, peer))
            await asyncio.sleep(0)  # other work, however fast callers come

    def _forget(self, peer: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():  # perhaps before it had begun
            peer.close()

    async def _shake_hands(self, peer: socket.socket, address: object) -> None:
        """Let one peer prove itself; the connection is the server's then, or ended."""
        protocol = _HandshakeProtocol(
            lambda transport: server_exchange(self._side()), self._server.connection
        )
        transport: asyncio.BaseTransport | None = None
        try:
            _watch_peer(peer)
            async with asyncio.timeout(self._handshake_timeout_s):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: protocol, peer, ssl=self._tls,
                    ssl_handshake_timeout=_tls_timeout_s(self._tls),
                    ssl_shutdown_timeout=_tls_timeout_s(self._tls),
                )  # fmt: skip
                await protocol.done
            self._accepted += 1
        except HandshakeRefused as error:  # its connection closes when the reason is sent
            self._refuse(address, error)
        except OSError as error:  # of the network, of TLS, or out of time
            _end(transport, peer, protocol)
            self._refuse(address, error if str(error) else f"{type(error).__name__}")
        except asyncio.CancelledError:
            _end(transport, peer, protocol)
            self._refuse(address, "too many handshakes, or the actor ends")
            raise

    def _side(self) -> Side:
        return Side(self._keys, self._actor, X25519PrivateKey.generate(), self._certificate)

    def _refuse(self, address: object, reason: object) -> None:
        self._refused += 1
        now_s = time.monotonic()
        if now_s - self._logged_s >= REFUSALS_LOGGED_S:
            more = self._refused - self._logged - 1
            log.warning(
                "connection refused actor=%s peer=%s reason=%s before=%d",
                self._actor, address, reason, more,
            )  # fmt: skip
            self._logged, self._logged_s = self._refused, now_s


class TcpCarrier:
    """Reaches an actor of another machine.

    Where it listens is asked when a connection is opened and not known; after a failure not before
    a backoff, which grows from `BACKOFF_S_MIN` to `BACKOFF_S_MAX`.

    Args:
        endpoint: asks the actor where it listens: "host:port", or "" if nowhere.
        actor: its name.
        credentials: what both sides prove themselves with.
        now_s: a monotonic clock.
        timeout_s: of the actor's answer, the connection and the handshake together.
    """

    def __init__(
        self,
        endpoint: Callable[[], Awaitable[str]],
        actor: str,
        credentials: Credentials,
        *,
        now_s: Callable[[], float] = time.monotonic,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._ask = endpoint
        self._actor = actor
        self._keys = credentials.keys
        self._tls_files = credentials.tls
        self._now_s = now_s
        self._endpoint = ""
        self._backoff_s = 0.0
        self._again_s = 0.0

    def __repr__(self) -> str:
        return f"<TcpCarrier {self._actor} {self._endpoint} backoff_s={self._backoff_s}>"

    async def connect(
        self, on_value: Heard, on_lost: Callable[[Connection], None]
    ) -> Connection | None:
        """Return a new connection; None where the actor listens nowhere or cannot be reached."""
        now_s = self._now_s()
        if now_s < self._again_s:
            return None
        if self._backoff_s:
            self._again_s = now_s + self._backoff_s  # one tries, the others do not wait for it

        def lost(connection: Connection) -> None:
            self._endpoint = ""
            on_lost(connection)

        try:
            async with asyncio.timeout(self._timeout_s):
                if not self._endpoint:
                    self._endpoint = await self._ask()
                if not self._endpoint:
                    self._fail("it listens nowhere")
                    return None
                connection = await self._open(lambda frames: Connection(on_value, lost, frames))
        except Exception as error:  # the edge to another process, by Ray and by TCP
            self._fail(error if str(error) else type(error).__name__)
            return None
        self._backoff_s = self._again_s = 0.0
        return connection

    def _fail(self, reason: object) -> None:
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_S_MIN), BACKOFF_S_MAX)
        self._again_s = self._now_s() + self._backoff_s
        log.warning(
            "no connection actor=%s endpoint=%s again_s=%s reason=%s",
            self._actor, self._endpoint, self._backoff_s, reason,
        )  # fmt: skip
        self._endpoint = ""

    async def _open(self, connection: Callable[[Frames], Connection]) -> Connection:
        host, port = _address(self._endpoint)
        tls = None if self._tls_files is None else _tls_context(self._tls_files, is_server=False)
        protocol = _HandshakeProtocol(
            lambda transport: client_exchange(self._side(transport)), connection
        )
        loop = asyncio.get_running_loop()
        peer = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        transport: asyncio.BaseTransport | None = None
        try:
            peer.setblocking(False)
            _watch_peer(peer)
            await loop.sock_connect(peer, (host, port))
            transport, _ = await loop.create_connection(
                lambda: protocol, sock=peer, ssl=tls,
                server_hostname=None if tls is None else host,
                ssl_handshake_timeout=_tls_timeout_s(tls), ssl_shutdown_timeout=_tls_timeout_s(tls),
            )  # fmt: skip
            return await protocol.done
        except BaseException:
            _end(transport, peer, protocol)
            raise

    def _side(self, transport: asyncio.Transport) -> Side:
        certificate = b""
        if self._tls_files is not None:
            certificate = transport.get_extra_info("ssl_object").getpeercert(True)
        return Side(self._keys, self._actor, X25519PrivateKey.generate(), certificate)


def _address(endpoint: str) -> tuple[str, int]:
    """Return the parts of "host:port"; raises ValueError for anything else."""
    host, _, port = endpoint.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return str(ipaddress.ip_address(host)), int(port)


def _watch_peer(peer: socket.socket) -> None:
    """Let the kernel find out that the other machine has gone without a word."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX),
    ):
        if hasattr(socket, option):  # not every system has all of them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _end(
    transport: asyncio.BaseTransport | None, peer: socket.socket, protocol: _HandshakeProtocol
) -> None:
    protocol.done.cancel()  # nobody waits for it any more
    if transport is None:
        peer.close()
    else:
        cast(asyncio.Transport, transport).abort()


def _tls_timeout_s(tls: ssl.SSLContext | None) -> float | None:
    return None if tls is None else HANDSHAKE_TIMEOUT_S  # asyncio takes none without TLS


@lru_cache(maxsize=8)
def _tls_context(files: TlsFiles, *, is_server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Machines are known by the CA, actors by the handshake, which has their names.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    return context


def _certificate(path: str) -> bytes:
    """Return the first certificate of a file, DER."""
    with open(path, encoding="ascii") as file:
        text = file.read()
    end = "-----END CERTIFICATE-----"
    begin = text.index("-----BEGIN CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(end, begin) + len(end)])
