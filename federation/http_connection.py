"""One connection to an agent's server: what was asked on it, and its reply as it comes.

Parses the reply (httptools) within its bounds. The reply is decoded and the callback of the
exchange runs inside the read that completes the reply, or in a later turn of the loop when replies
have used up the time of this turn. Knows nothing of names and addresses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from typing import Final, Protocol

import httptools
from msgspec import Struct

from federation.content_coding import BodyDecoder, BodyTooLarge, UndecodableBody
from federation.read_turns import ReadTurns
from federation.tls_gate import TlsGate

# Of one client; no server takes the places of all others.
IDLE_MAX: Final = 1_024
IDLE_PER_SERVER_MAX: Final = 256
# A larger body is written apart from its head, so that it is in memory once.
JOINED_BYTES_MAX: Final = 16 * 1024
# Bytes that are not of the body: headers, sizes of chunks (5 for a short chunk), trailers. Each
# chunk costs a callback: at most as many more bytes as the body has, so its chunks are no dust.
OVERHEAD_BYTES_MAX: Final = 64 * 1024

# What callers read of a reply, and what says how its body ends.
_KEPT: Final = frozenset(
    (
        b"content-type", b"content-encoding", b"retry-after", b"content-length",
        b"transfer-encoding", b"location",
    )
)  # fmt: skip
_SWITCHING: Final = 101

Server = tuple[str, int, bool]  # host, port, whether by TLS


class HttpFailureKind(Enum):
    """Why a request has no reply."""

    DENIED = auto()  # by the egress policy, before a packet was sent
    NOT_TRIED = auto()  # for want of our own means, which says nothing of the server
    WITHHELD = auto()  # its sender may not send any more, now that it is connected
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


class Exchange:
    """A request on its way and the callback for its outcome; `cancel` ends it silently."""

    __slots__ = (
        "_done",
        "_is_over",
        "connection",
        "payer",
        "repeat",
        "reply_bytes_max",
        "server",
        "task",
        "timer",
        "written",
    )

    def __init__(
        self,
        server: Server,
        reply_bytes_max: int,
        done: Callable[[Outcome], None],
        written: Callable[[], None] | None = None,
        payer: str = "",
    ) -> None:
        # Not the request: a large body is let go of when the transport has it.
        self.server = server
        self.reply_bytes_max = reply_bytes_max
        self.payer = payer
        self._done = done
        self.written = written
        self._is_over = False
        self.timer: asyncio.TimerHandle | None = None
        # Connects, before there is a connection.
        self.task: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        # Sends the request once more: on a kept connection, until a byte of the reply has come.
        self.repeat: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Stop, and close the connection; the callback is not called."""
        self._is_over = True
        self.repeat = None
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None:
            self.connection.close()

    def end(self, outcome: Outcome) -> None:
        """Stop and call the callback, unless it is over."""
        if not self._is_over:
            self.cancel()
            self._done(outcome)

    def call_written(self) -> None:
        """Call back once, when the request is written."""
        written, self.written = self.written, None
        if written is not None and not self._is_over:
            written()

    def fail(self, kind: HttpFailureKind, detail: str) -> None:
        """End without a reply."""
        self.end(HttpFailure(kind, detail))


class Connections(Protocol):
    """The client that a connection belongs to."""

    # One for all connections: what a read brings is parsed before the next read.
    buffer: memoryview
    read_turns: ReadTurns

    def count(self, connection: Connection) -> None:
        """Count a connection that is open."""

    def keep(self, connection: Connection) -> None:
        """Keep a connection that is free for its server's next request."""

    def forget(self, connection: Connection) -> None:
        """Drop a connection that has ended."""


class Connection(asyncio.BufferedProtocol):
    """One connection to a server, with one exchange at a time."""

    def __init__(self, client: Connections, server: Server, payer: str = "") -> None:
        self.server = server
        self.payer = payer
        self.idle_since_s = 0.0
        self.carried_bytes = 0
        self._client = client
        self._transport: asyncio.Transport | None = None
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
        # The reply is there, and waits for a turn in which it is decoded and judged.
        self._is_waiting = False
        self._reset()

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it."""
        return self._transport is not None and not self._transport.is_closing()

    async def secure(self, context: ssl.SSLContext, server_name: str) -> None:
        """Begin a TLS session, before the first request.

        Raises:
            OSError: the server ends the connection, or its certificate is not valid for this name.
            ValueError: no certificate can have this name.
        """
        loop, transport = asyncio.get_running_loop(), self._transport
        if transport is None or not self.is_open:
            raise ConnectionResetError

        def insert_gate() -> None:
            tls = transport.get_protocol()
            if tls is not self:  # else `start_tls` has failed
                transport.set_protocol(TlsGate(transport, tls, self, self._client.read_turns))

        loop.call_soon(insert_gate)  # runs when `start_tls` has set its protocol, before it reads
        secured = await loop.start_tls(transport, self, context, server_hostname=server_name)
        if secured is None or secured.is_closing():
            raise ConnectionResetError
        self._transport = secured

    def begin(self, exchange: Exchange, head: bytes, body: bytes | None) -> None:
        """Send an exchange's request."""
        exchange.connection = self
        self._exchange = exchange
        self.payer = exchange.payer
        self._reset()
        assert self._transport is not None
        if body and len(body) > JOINED_BYTES_MAX:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body if body else head)
        if exchange.written is not None and not self._is_writing:
            exchange.call_written()

    def close(self) -> None:
        """Close at once; an exchange that is on it gets no outcome from here."""
        self._exchange = None
        self._client.forget(self)
        if self._is_waiting:
            self._is_waiting = False
            self._client.read_turns.drop(self)
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

    # -- called by the loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the open connection."""
        self._transport = transport  # type: ignore[assignment]
        self._client.count(self)

    def pause_writing(self) -> None:
        """Note that the server does not take what is written as fast as it comes."""
        self._is_writing = True

    def resume_writing(self) -> None:
        """Note that the server has taken nearly all."""
        self._is_writing = False
        if self._exchange is not None:
            self._exchange.call_written()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to: one buffer for all, parsed before the next read."""
        return self._client.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what has come; end the exchange when its reply is there or cannot be."""
        if self._exchange is None:
            self.close()  # nothing was asked
            return
        if self._is_waiting:
            self._is_kept = False  # more than the reply
            return
        self._exchange.repeat = None
        self._received += nbytes
        self.carried_bytes += nbytes
        broken = None
        try:
            self._parser.feed_data(self._client.buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            broken = type(error).__name__
        if self._pieces:
            self._put_pieces()
        if broken is not None:
            if not self._is_complete:
                self._fail(HttpFailureKind.BROKEN, broken)
            self._is_kept = False
        if self._received - self._body_bytes > OVERHEAD_BYTES_MAX + self._body_bytes:
            self._fail(HttpFailureKind.BROKEN, "too many bytes beside the body")
        if self._is_complete or self._failure is not None:
            self._finish_in_turn()

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange with its connection.

        A reply without a length ends like this, others are broken. A request that may be repeated
        is.
        """
        exchange = self._exchange
        if self._is_waiting:
            self._is_kept = False
            return
        if exchange is None:
            self.close()
        elif exchange.repeat is not None:
            self._exchange = None
            repeat, exchange.repeat, exchange.connection = exchange.repeat, None, None
            repeat()
            self.close()
        else:
            if error is not None or not self._status or self._has_length():
                self._fail(HttpFailureKind.BROKEN, "the server closed the connection")
            self._is_kept = False
            self._finish_in_turn()

    # -- what has come ----------------------------------------------------------------------------

    def _finish_in_turn(self) -> None:
        """Decode and judge the reply now, or in a later turn if this one has no time left."""
        turns = self._client.read_turns
        if turns.now_s() >= turns.ends_s and turns.is_used_up():
            self._is_waiting = True
            turns.put(self)
        else:
            self._finish()

    def go_on(self) -> bool:
        """Decode and judge the reply that waited."""
        self._is_waiting = False
        self._finish()
        return False

    def _has_length(self) -> bool:
        if b"content-length" in self._headers:
            return True
        return self._headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")

    def _put_pieces(self) -> None:
        """Take what one read has brought of the body, in one piece."""
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._decoder is None or self._failure is not None:
            return
        try:
            self._decoder.feed(piece)
        except BodyTooLarge as error:
            self._fail(HttpFailureKind.TOO_LARGE, str(error))

    def _fail(self, kind: HttpFailureKind, detail: str) -> None:
        if self._failure is None:
            self._failure = HttpFailure(kind, detail, self._status)

    def _finish(self) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        exchange.connection = None
        outcome = self._outcome()
        self._decoder = None  # it holds the body
        is_good = isinstance(outcome, HttpReply) and outcome.coding_problem is None
        if is_good and self._is_kept and self.is_open and not self._is_writing:
            self._received = 0
            self._client.keep(self)
        else:
            self.close()
        exchange.end(outcome)

    def _outcome(self) -> Outcome:
        if self._failure is not None:
            return self._failure
        assert self._decoder is not None
        body, problem = b"", None
        try:
            body = self._decoder.finish()
        except BodyTooLarge as error:
            return HttpFailure(HttpFailureKind.TOO_LARGE, str(error), self._status)
        except UndecodableBody as error:
            problem = str(error)
        return HttpReply(self._status, self._headers, body, problem)

    # -- called by the parser, within buffer_updated ---------------------------------------------

    def on_message_begin(self) -> None:
        """Keep no connection on which more than a whole reply comes: nothing has asked for it."""
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
        self._decoder = BodyDecoder(coding, bytes_max)
        if int(self._headers.get(b"content-length", b"0")) > bytes_max:
            self._fail(HttpFailureKind.TOO_LARGE, f"the reply is larger than {bytes_max} bytes")

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if not self._is_complete:
            self._body_bytes += len(piece)
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """Note the end of a reply; an interim one is dropped."""
        if self._is_complete:
            return
        if self._is_informational:
            self._is_informational = False
            self._headers.clear()
            return
        self._is_complete = True
        self._is_kept = self._parser.should_keep_alive()


class IdleConnections:
    """A client's connections that are kept for their server's next request, bounded in number.

    The connection of a server that was used last is used first; the one that was used longest ago
    is closed first. Decision limits-and-admission.
    """

    def __init__(self) -> None:
        # Ordered by use: a dict's first key is found fast enough among so few.
        self._by_server: dict[Server, dict[Connection, None]] = {}
        self._by_age: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    def put(self, connection: Connection) -> Connection | None:
        """Keep a connection as the one used last; return the one to close for it, if any."""
        same = self._by_server.get(connection.server)
        if same is None:
            same = self._by_server[connection.server] = {}
        same[connection] = self._by_age[connection] = None
        if len(same) > IDLE_PER_SERVER_MAX:
            return next(iter(same))
        return next(iter(self._by_age)) if len(self._by_age) > IDLE_MAX else None

    def take(self, server: Server) -> Connection | None:
        """Take out the connection to a server that was used last."""
        same = self._by_server.get(server)
        if same is None:
            return None
        connection, _ = same.popitem()
        del self._by_age[connection]
        if not same:
            del self._by_server[server]
        return connection

    def drop(self, connection: Connection) -> None:
        """Forget a connection, if it is here."""
        if connection not in self._by_age:
            return
        same = self._by_server[connection.server]
        del same[connection], self._by_age[connection]
        if not same:
            del self._by_server[connection.server]

    def oldest(self, before_s: float) -> list[Connection]:
        """Return connections that have been idle since then or before, the oldest first."""
        return list(takewhile(lambda one: one.idle_since_s <= before_s, self._by_age))
