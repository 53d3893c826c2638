"""One connection to an agent's server: what was asked on it, and its reply as it comes.

Parses (httptools) and decodes the reply within its bounds; the callback of the exchange runs inside
the read, when the connection is free for the next request. Knows nothing of names, addresses and
other connections. contract.md section 5; decision 0140.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

import httptools
from msgspec import Struct

from core.content_coding import BodyDecoder, BodyTooLarge, UndecodableBody
from federation.handshakes import Handshakes
from federation.idle_connections import Server
from federation.read_turns import ReadTurns
from federation.tls_session import TlsSession

# A larger body is written apart from its head, so that it is in memory once.
JOINED_BYTES_MAX: Final = 16 * 1024
# Of a larger body, each while the server takes what was written: a copy by TLS is no larger.
WRITTEN_BYTES_MAX: Final = 64 * 1024
# Bytes that are not of the body: headers, sizes of chunks (5 for a short chunk), trailers. Each
# chunk costs a callback: at most as many more bytes as the body has, so its chunks are no dust.
OVERHEAD_BYTES_MAX: Final = 64 * 1024

# Bytes that a TLS session reads in one step: a change of its key has 27 bytes and takes 20 us.
SESSION_STEP_BYTES: Final = 4 * 1024
# Bytes of the session beside those that it carries, of which each record has 22 or more, and each
# costs: so many, and for each carried byte so many more.
SESSION_BYTES_MAX: Final = 128 * 1024
SESSION_BYTES_PER_BYTE: Final = 8
# Of a handshake: certificates of 2 KB each, a few.
HANDSHAKE_BYTES_MAX: Final = 64 * 1024
# While nothing is asked: tickets, which are some hundred bytes each.
IDLE_BYTES_MAX: Final = 16 * 1024

# Decoded in one step: a megabyte, which a kilobyte may decode to, takes 3 ms.
DECODED_BYTES_MAX: Final = 64 * 1024

# What callers read of a reply, and what says how its body ends.
_KEPT: Final = frozenset(
    (
        b"content-type", b"content-encoding", b"retry-after", b"content-length",
        b"transfer-encoding", b"location",
    )
)  # fmt: skip
_SWITCHING: Final = 101


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
    # For what comes when the time of a turn is used up: it is kept, and hundreds may come.
    late_buffer: memoryview
    decrypted: memoryview
    read_turns: ReadTurns
    handshakes: Handshakes

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
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # As lenient as aiohttp is: agents' servers are sloppy, and connections are not shared.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._tls: TlsSession | None = None
        # During the handshake: set when something has come, or the connection has ended.
        self._arrived: asyncio.Event | None = None
        self._exchange: Exchange | None = None
        self._is_writing = False
        # Of the body of the request.
        self._unwritten: memoryview | None = None
        # Of the body, by one read; empty after it.
        self._pieces: list[bytes] = []
        # What has come after the time of a turn was used up, and whether it is being decoded.
        self._is_late = self._is_waiting = self._is_paused = self._is_decoding = False
        self._kept: memoryview | None = None
        # The session has answered a server that takes nothing: nothing more is read until it does.
        self._is_held = False
        # The connection has ended, which counts when what came before is read.
        self._is_lost = False
        self._lost_by: Exception | None = None
        self._reset()

    def __repr__(self) -> str:
        return f"<Connection {self.server} busy={self._exchange is not None}>"

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_free(self) -> bool:
        """Whether it can take a request: what came before one would be read as its reply."""
        return self.is_open and self._kept is None

    async def secure(self, context: ssl.SSLContext, server_name: str) -> None:
        """Begin a TLS session, before the first request.

        Raises:
            OSError: the server ends the connection, or is not who it should be.
            ValueError: no certificate can have this name.
        """
        if not self.is_open:
            raise ConnectionResetError
        self._tls = tls = TlsSession(context, server_name)
        self._arrived = asyncio.Event()
        tls.shake_hands()  # which waits for the server
        self._flush_tls()
        try:
            is_done = False
            while not is_done:
                await self._receive()
                is_done = await self._client.handshakes.step(self.payer, tls)
                self._flush_tls()
        except ssl.SSLError:
            self._flush_tls()  # what the server is to be told
            raise
        self._check_lost()
        self._arrived = None
        self._encrypted = 0
        if tls.has_unread or self._kept is not None:
            self._wait()

    def _check_lost(self) -> None:
        if self._is_lost:
            raise self._lost_by or ConnectionResetError()

    async def _receive(self) -> None:
        """Give the session something of what has come for the handshake.

        Raises:
            OSError: the server has ended the connection, or says too much.
        """
        assert self._tls is not None
        assert self._arrived is not None
        while self._kept is None:
            self._check_lost()
            self._arrived.clear()
            await self._arrived.wait()
        if len(self._kept) <= SESSION_STEP_BYTES:
            self._resume()
        self._feed(self._kept)
        if self._encrypted > HANDSHAKE_BYTES_MAX:
            raise ConnectionAbortedError

    def _feed(self, read: memoryview) -> None:
        """Give the session a step of what has come, and keep the rest."""
        assert self._tls is not None
        self._kept = None
        if len(read) > SESSION_STEP_BYTES:
            self._kept, read = read[SESSION_STEP_BYTES:], read[:SESSION_STEP_BYTES]
        self._encrypted += len(read)
        self._tls.receive(read)

    def begin(self, exchange: Exchange, head: bytes, body: bytes | None) -> None:
        """Send an exchange's request."""
        exchange.connection = self
        self._exchange = exchange
        self.payer = exchange.payer
        self._reset()
        if not body or len(body) <= JOINED_BYTES_MAX:
            self._write(head + body if body else head)
            if exchange.written is None:
                return
        else:
            self._write(head)
            self._unwritten = memoryview(body)
        self._write_on()

    def _write_on(self) -> None:
        """Write the body as far as the server takes it, and tell when all is written."""
        while (rest := self._unwritten) and not self._is_writing and self.is_open:
            self._unwritten = rest[WRITTEN_BYTES_MAX:] or None
            self._write(rest[:WRITTEN_BYTES_MAX])
        exchange = self._exchange
        if exchange is not None and exchange.written is not None and self._is_written:
            exchange.call_written()

    @property
    def _is_written(self) -> bool:
        return not self._is_writing and self._unwritten is None

    def _write(self, data: bytes | memoryview) -> None:
        assert self._transport is not None
        if self._tls is not None:
            try:
                self._tls.write(data)
            except ssl.SSLError:
                self._transport.abort()  # which ends the exchange
                return
            data = self._tls.take_outgoing()
        self._transport.write(data)

    def close(self) -> None:
        """Close at once; an exchange that is on it gets no outcome from here."""
        self._exchange = self._unwritten = self._kept = None
        self._is_decoding = False
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
        self._received = self._body_bytes = self._encrypted = 0
        self._is_informational = self._is_complete = self._is_kept = False
        self._broken: str | None = None
        self._failure: HttpFailure | None = None
        self._coding_problem: str | None = None

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
        if self._is_held:
            self._is_held = False
            self._wait()
        self._write_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to."""
        client = self._client
        turns = client.read_turns
        self._is_late = self._is_waiting or (turns.now_s() >= turns.ends_s and turns.is_used_up())
        return client.late_buffer if self._is_late else client.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read what has come, or keep it for a later turn."""
        read = self._client.buffer[:nbytes]
        if self._arrived is not None:
            self._keep(read)
            self._arrived.set()
            return
        if self._is_late:
            self._keep(read)
        else:
            self._read(read)
        if self._is_decoding or self._kept is not None:
            self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        """End what is on the connection."""
        if self._arrived is not None:
            self._is_lost, self._lost_by = True, error
            self._arrived.set()
            return
        if self._exchange is not None and self._client.read_turns.is_used_up():
            self._wait()  # the callback of its exchange takes its time
        self._lose(error)

    # -- what has come ----------------------------------------------------------------------------

    def _wait(self) -> None:
        """Go on in a later turn."""
        if not self._is_waiting:
            self._is_waiting = True
            self._client.read_turns.put(self)

    def _keep(self, read: memoryview) -> None:
        """Keep bytes for a later turn; pause if there are more, which most replies have not."""
        kept = self._kept
        self._kept = memoryview(bytes(read) if kept is None else b"".join((kept, read)))
        if kept is not None or len(read) == len(self._client.late_buffer):
            self._pause()

    def _pause(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()
        self._is_paused = True

    def _resume(self) -> None:
        if self._is_paused and self.is_open:
            assert self._transport is not None
            self._transport.resume_reading()
            self._is_paused = False

    def go_on(self) -> bool:
        """Read a piece of what has come; return whether there is more, else read on."""
        if self._is_decoding:
            if self._decode() and self._tls is not None:
                self._decrypt()  # what waited for it
        elif self._kept is not None and not self._is_held:
            kept, self._kept = self._kept, None
            self._read(kept)
        elif self._tls is not None:
            self._decrypt()  # what came with the end of the handshake
        if self._is_decoding or (self._kept is not None and not self._is_held):
            return True
        self._is_waiting = False
        if self._is_lost:
            self._lose(self._lost_by)
        elif not self._is_held:
            self._resume()
        return False

    def _read(self, read: memoryview) -> None:
        if self._tls is None:
            self._parse(read)
            return
        if len(read) > SESSION_STEP_BYTES:
            read = memoryview(bytes(read))  # the rest may be kept
        while True:
            self._feed(read)
            self._decrypt()
            if self._encrypted > IDLE_BYTES_MAX:  # the lowest bound
                self._judge_session()
            if self._kept is None or self._is_decoding or self._is_held:
                return
            if self._client.read_turns.is_used_up():
                return
            read = self._kept

    def _judge_session(self) -> None:
        """End what is on the connection when its session says too much of itself."""
        beside = self._encrypted - self._received
        if self._exchange is not None:
            if beside > SESSION_BYTES_MAX + SESSION_BYTES_PER_BYTE * self._received:
                self._fail(HttpFailureKind.BROKEN, "too many bytes of TLS beside the reply")
                self._finish()
        elif beside > IDLE_BYTES_MAX:
            self.close()

    def _decrypt(self) -> None:
        tls = self._tls
        assert tls is not None
        while tls.has_unread and (size := tls.read_into(self._client.decrypted)):
            self._parse(self._client.decrypted[:size])
            if self._exchange is None or self._is_decoding:
                break
        self._flush_tls()  # what keeps the session going
        if tls.is_ended:
            self._kept = None
            self._lose(tls.error)

    def _flush_tls(self) -> None:
        assert self._tls is not None
        if (data := self._tls.take_outgoing()) and self.is_open:
            assert self._transport is not None
            self._transport.write(data)
            if self._is_writing:
                self._is_held = True
                self._pause()

    def _parse(self, read: memoryview) -> None:
        """Parse bytes; end the exchange when its reply is there or cannot be."""
        if self._exchange is None:
            self.close()  # nothing was asked
            return
        self._exchange.repeat = None
        self._received += len(read)
        try:
            self._parser.feed_data(read)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken = type(error).__name__
        if self._pieces:
            self._put_pieces()
        if self._is_decoding:
            self._decode()
        else:
            self._judge()

    def _judge(self) -> None:
        """End the exchange if what was parsed and decoded is a reply, or cannot become one."""
        if self._broken is not None:
            if not self._is_complete:
                self._fail(HttpFailureKind.BROKEN, self._broken)
            self._is_kept = False
        if self._received - self._body_bytes > OVERHEAD_BYTES_MAX + self._body_bytes:
            self._fail(HttpFailureKind.BROKEN, "too many bytes beside the body")
        if self._is_complete or self._failure is not None or self._coding_problem is not None:
            self._finish()

    def _lose(self, error: Exception | None) -> None:
        """End the exchange with its connection, when all that has come is read.

        A reply without a length ends like this, others are broken. A request that may be repeated
        is.
        """
        if self._is_waiting or self._is_decoding:
            self._is_lost, self._lost_by = True, error
            return
        exchange = self._exchange
        if exchange is not None and exchange.repeat is not None:
            self._exchange = None
            repeat, exchange.repeat, exchange.connection = exchange.repeat, None, None
            repeat()
        elif exchange is not None:
            if error is not None or not self._status or self._has_length():
                self._fail(HttpFailureKind.BROKEN, "the server closed the connection")
            self._is_kept = False
            self._finish()
        self.close()

    def _has_length(self) -> bool:
        if b"content-length" in self._headers:
            return True
        return self._headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")

    def _put_pieces(self) -> None:
        """Take what one read has brought of the body, in one piece."""
        piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._decoder is None or self._failure is not None or self._coding_problem is not None:
            return
        try:
            self._decoder.put(piece)
        except BodyTooLarge as error:
            self._fail(HttpFailureKind.TOO_LARGE, str(error))
        else:
            self._is_decoding = self._decoder.has_more

    def _decode(self) -> bool:
        """Decode while the turn has time, then judge; return whether all is decoded."""
        assert self._decoder is not None
        try:
            while self._decoder.decode(DECODED_BYTES_MAX):
                if self._client.read_turns.is_used_up():
                    return False
        except BodyTooLarge as error:
            self._fail(HttpFailureKind.TOO_LARGE, str(error))
        except UndecodableBody as error:
            self._coding_problem = str(error)
        self._is_decoding = False
        self._judge()
        return True

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
        tls = self._tls
        is_more = self._kept is not None or (tls is not None and (tls.has_unread or tls.is_ended))
        if is_good and self._is_kept and self.is_open and self._is_written and not is_more:
            self._encrypted = self._received = 0
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
