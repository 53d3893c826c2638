"""One connection to a server: sends a request, and parses the reply while it arrives.

The library httptools parses the reply, within the bounds of the request. The read that completes a
reply also decodes the reply and calls the callback of the exchange. If replies have used up the
time of this turn of the loop (`read_budget.py`), a later turn does both. This module does not
resolve names.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import takewhile
from typing import Final, Protocol

import httptools
from msgspec import Struct

from federation.content_coding import BodyTooLarge, UndecodableBody, decode_body
from federation.read_budget import ReadBudget
from federation.tls_gate import TlsGate

# The most idle connections of one client: at most this many, and at most half of the files that the
# process may open. The second bound leaves room for other servers.
IDLE_MAX: Final = 1_024
IDLE_PER_SERVER_MAX: Final = 256
# A larger body is written separately from the head, so that it is not copied in memory.
JOINED_BYTES_MAX: Final = 16 * 1024
# Outside the body (headers, chunk sizes, trailers) a reply may have this number of bytes plus the
# number of bytes of its body. The bound is low because each chunk causes a callback, and a chunk of
# one byte has 5 bytes of overhead.
OVERHEAD_BYTES_MAX: Final = 64 * 1024

# The headers that callers read, and those that determine the end of the body.
_KEPT: Final = frozenset(
    (
        b"content-type", b"content-encoding", b"retry-after", b"content-length",
        b"transfer-encoding", b"location",
    )
)  # fmt: skip
_SWITCHING: Final = 101

Server = tuple[str, int, bool]  # host, port, whether TLS is used


class HttpFailureKind(Enum):
    """The reasons for which a request has no reply."""

    DENIED = auto()  # the egress policy denied the connection, before a packet was sent
    NOT_TRIED = auto()  # this service lacked a resource; the server is not at fault
    WITHHELD = auto()  # the permission to send ended while the client connected (`may_write`)
    UNREACHABLE = auto()
    CONNECT_TIMEOUT = auto()
    TIMEOUT = auto()
    BROKEN = auto()
    TOO_LARGE = auto()


@dataclass(frozen=True, slots=True)
class HttpFailure:
    """The failure of a request.

    `detail`: the reason in words. `status`: the HTTP status of a reply that began and then failed
    (BROKEN, TOO_LARGE); otherwise 0.
    """

    kind: HttpFailureKind
    detail: str
    status: int = 0


class HttpReply(Struct, frozen=True):
    """A reply.

    Args:
        status: the HTTP status.
        headers: the headers in `_KEPT`, by lower-case name. A repeated header has its first value.
        body: the decoded body; empty if it could not be decoded.
        coding_problem: why the body could not be decoded; None if it was decoded.
    """

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    coding_problem: str | None = None

    def header(self, name: bytes) -> str | None:
        """Return the value of a header, None without it; bytes outside ASCII are replaced."""
        value = self.headers.get(name)
        return None if value is None else value.decode("ascii", "replace")


Outcome = HttpReply | HttpFailure


@dataclass(slots=True, eq=False)
class Exchange:
    """A request that was sent, and the callback for its outcome.

    The request is not stored, so that the memory of a large body is freed once it is written.
    """

    server: Server
    reply_bytes_max: int
    done: Callable[[Outcome], None]
    written: Callable[[], None] | None = None
    payer: str = ""
    is_over: bool = False
    timer: asyncio.TimerHandle | None = None
    # The task that opens a new connection, until the connection is open.
    task: asyncio.Task[None] | None = None
    connection: Connection | None = None
    # Sends the request again. It is set while the request is on a pooled connection and no byte of
    # the reply has arrived.
    repeat: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the exchange without a call of the callback, and close the connection."""
        self.is_over = True
        self.repeat = None
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None:
            self.connection.close()

    def end(self, outcome: Outcome) -> None:
        """End the exchange and call the callback; does nothing if the exchange has ended."""
        if not self.is_over:
            self.cancel()
            self.done(outcome)

    def call_written(self) -> None:
        """Call the callback `written` once, when the request has been written."""
        written, self.written = self.written, None
        if written is not None and not self.is_over:
            written()

    def fail(self, kind: HttpFailureKind, detail: str) -> None:
        """End the exchange with a failure."""
        self.end(HttpFailure(kind, detail))


class Connections(Protocol):
    """The part of the HTTP client that its connections use."""

    # All connections share one buffer, because each read is parsed before the next one.
    buffer: memoryview
    read_budget: ReadBudget

    def count(self, connection: Connection) -> None:
        """Register a connection that has been opened."""

    def keep(self, connection: Connection) -> None:
        """Put an idle connection into the pool."""

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended."""


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
        # As lenient as aiohttp, because many agents' servers deviate from the standard. This is
        # safe, because a connection carries only one exchange at a time.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._exchange: Exchange | None = None
        self._is_writing = False
        # The reply is complete, and waits for a turn of the loop with time to decode it.
        self._is_waiting = False
        self._reset()

    @property
    def is_open(self) -> bool:
        """Whether the connection is open: neither side has ended it."""
        return self._transport is not None and not self._transport.is_closing()

    async def secure(self, context: ssl.SSLContext, server_name: str) -> None:
        """Begin a TLS session, before the first request.

        Raises:
            OSError: the server ended the connection, or its certificate is not valid for the name.
            ValueError: no certificate can have the name.
        """
        loop, transport = asyncio.get_running_loop(), self._transport
        if transport is None or not self.is_open:
            raise ConnectionResetError

        def insert_gate() -> None:
            tls = transport.get_protocol()
            if tls is not self:  # otherwise `start_tls` has failed
                transport.set_protocol(TlsGate(transport, tls, self, self._client.read_budget))

        # Runs after `start_tls` has set its protocol and before the protocol reads.
        loop.call_soon(insert_gate)
        secured = await loop.start_tls(transport, self, context, server_hostname=server_name)
        if secured is None or secured.is_closing():
            raise ConnectionResetError
        self._transport = secured

    def begin(self, exchange: Exchange, head: bytes, body: bytes | None) -> None:
        """Send the request of an exchange.

        Args:
            exchange: the exchange.
            head: the request's bytes before the body.
            body: the body; None without one.
        """
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
        """Close the connection at once, without an outcome for its exchange."""
        self._exchange = None
        self._client.forget(self)
        if self._is_waiting:
            self._is_waiting = False
            self._client.read_budget.drop(self)
        if self._transport is not None:
            self._transport.abort()

    def cancel(self) -> None:
        """Close the connection, and cancel its exchange."""
        if self._exchange is not None:
            self._exchange.cancel()
        else:
            self.close()

    def _reset(self) -> None:
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        # Not a list of pieces, because a piece may be a single byte.
        self._body = bytearray()
        self._received = 0
        self._is_informational = self._is_complete = self._is_kept = False
        self._failure: HttpFailure | None = None

    # -- called by the loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the open connection."""
        self._transport = transport  # type: ignore[assignment]
        self._client.count(self)

    def pause_writing(self) -> None:
        """Note that the write buffer is full: the server reads too slowly."""
        self._is_writing = True

    def resume_writing(self) -> None:
        """Note that the write buffer is nearly empty."""
        self._is_writing = False
        if self._exchange is not None:
            self._exchange.call_written()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections share."""
        return self._client.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the received bytes; end the exchange when the reply is complete or has failed."""
        if self._exchange is None:
            self.close()  # the server sent bytes without a request
            return
        if self._is_waiting:
            self._is_kept = False  # the server sent bytes after the reply
            return
        self._exchange.repeat = None
        self._received += nbytes
        self.carried_bytes += nbytes
        broken = None
        try:
            self._parser.feed_data(self._client.buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            broken = type(error).__name__
        if broken is not None:
            if not self._is_complete:
                self._fail(HttpFailureKind.BROKEN, broken)
            self._is_kept = False
        if self._received > OVERHEAD_BYTES_MAX + 2 * len(self._body):
            self._fail(HttpFailureKind.BROKEN, "too many bytes beside the body")
        if self._is_complete or self._failure is not None:
            self._finish_in_turn()

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange, because its connection has ended.

        If the request may be repeated, it is sent again. Otherwise a reply that began without a
        length is complete now, and any other reply has failed.
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

    # -- the reply --------------------------------------------------------------------------------

    def _finish_in_turn(self) -> None:
        """Decode the reply and end the exchange, in a later turn if this one has no time left."""
        turns = self._client.read_budget
        if turns.now_s() >= turns.ends_s and turns.is_used_up():
            self._is_waiting = True
            turns.put(self)
        else:
            self._finish()

    def go_on(self) -> bool:
        """Decode the reply that waited for this turn, and end the exchange."""
        self._is_waiting = False
        self._finish()
        return False

    def _has_length(self) -> bool:
        if b"content-length" in self._headers:
            return True
        return self._headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")

    def _fail(self, kind: HttpFailureKind, detail: str) -> None:
        if self._failure is None:
            self._failure = HttpFailure(kind, detail, self._status)

    def _finish(self) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        exchange.connection = None
        outcome = self._outcome(exchange.reply_bytes_max)
        self._body = bytearray()  # frees the memory
        is_good = isinstance(outcome, HttpReply) and outcome.coding_problem is None
        if is_good and self._is_kept and self.is_open and not self._is_writing:
            self._received = 0
            self._client.keep(self)
        else:
            self.close()
        exchange.end(outcome)

    def _outcome(self, bytes_max: int) -> Outcome:
        if self._failure is not None:
            return self._failure
        coding = self._headers.get(b"content-encoding", b"").decode("latin-1")
        body, problem = b"", None
        try:
            body = decode_body(bytes(self._body), coding, bytes_max)
        except BodyTooLarge as error:
            return HttpFailure(HttpFailureKind.TOO_LARGE, str(error), self._status)
        except UndecodableBody as error:
            problem = str(error)
        return HttpReply(self._status, self._headers, body, problem)

    # -- called by the parser, within buffer_updated ---------------------------------------------

    def on_message_begin(self) -> None:
        """Note that another reply begins, so that this connection is not reused."""
        if self._is_complete:
            self._is_kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header of `_KEPT`; trailers are ignored."""
        lower = name.lower()
        if lower in _KEPT and not self._status:
            self._headers.setdefault(lower, value)

    def on_headers_complete(self) -> None:
        """Store the status; refuse a body that says that it is too large."""
        status = self._parser.get_status_code()
        if self._is_complete:
            return
        if 100 <= status < 200 and status != _SWITCHING:
            self._is_informational = True
            return
        self._status = status
        self._check_size(int(self._headers.get(b"content-length", b"0")))

    def on_body(self, piece: bytes) -> None:
        """Store a piece of the body."""
        if not self._is_complete and self._failure is None:
            self._body += piece
            self._check_size(len(self._body))

    def _check_size(self, size: int) -> None:
        assert self._exchange is not None
        bytes_max = self._exchange.reply_bytes_max
        if size > bytes_max:
            self._fail(HttpFailureKind.TOO_LARGE, f"the reply is larger than {bytes_max} bytes")

    def on_message_complete(self) -> None:
        """Note the end of a reply; an interim reply (1xx) is dropped."""
        if self._is_complete:
            return
        if self._is_informational:
            self._is_informational = False
            self._headers.clear()
            return
        self._is_complete = True
        self._is_kept = self._parser.should_keep_alive()


class IdleConnections:
    """The pool of a client's idle connections, bounded in number.

    `take` returns the most recently used connection to a server. If the pool is full, the least
    recently used connection is closed. Decision limits-and-admission.
    """

    def __init__(self) -> None:
        # Both are ordered by the last use. A dict finds its first key fast enough at this size.
        self._by_server: dict[Server, dict[Connection, None]] = {}
        self._by_age: dict[Connection, None] = {}
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._idle_max = (
            IDLE_MAX if files_max == resource.RLIM_INFINITY else min(IDLE_MAX, files_max // 2)
        )

    def __len__(self) -> int:
        return len(self._by_age)

    def put(self, connection: Connection) -> Connection | None:
        """Add the most recently used connection; return a connection to close, None if not full."""
        same = self._by_server.get(connection.server)
        if same is None:
            same = self._by_server[connection.server] = {}
        same[connection] = self._by_age[connection] = None
        if len(same) > IDLE_PER_SERVER_MAX:
            return next(iter(same))
        return next(iter(self._by_age)) if len(self._by_age) > self._idle_max else None

    def take(self, server: Server) -> Connection | None:
        """Remove and return the most recently used connection to a server, None without one."""
        same = self._by_server.get(server)
        if same is None:
            return None
        connection, _ = same.popitem()
        del self._by_age[connection]
        if not same:
            del self._by_server[server]
        return connection

    def drop(self, connection: Connection) -> None:
        """Remove a connection; does nothing if it is not in the pool."""
        if connection not in self._by_age:
            return
        same = self._by_server[connection.server]
        del same[connection], self._by_age[connection]
        if not same:
            del self._by_server[connection.server]

    def oldest(self, before_s: float) -> list[Connection]:
        """Return the connections that became idle at or before a time, the oldest first."""
        return list(takewhile(lambda one: one.idle_since_s <= before_s, self._by_age))
