"""Batches over Unix sockets: the quick way to an actor of the same machine.

A Ray actor call costs about 3 CPU-ms on both sides together, the same batch over a socket a third
of that. So Ray starts, names, finds and restarts the processes, and their batches go through a
socket in the deployment's run folder. Where no socket listens (an actor of another machine, or one
that is just being replaced) the call goes by Ray. A connection carries one call at a time, which is
what a `Channel` sends. A frame is the length of its body, 4 bytes, then the body: msgpack of plain
values (numbers, texts, bytes, lists of these). So nothing but values can come of what another
process sends, and a call that cannot be read is refused alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from actors.transport.wire import Undecodable, decode_failure, encode_failure
from core.errors import ServiceError

log = logging.getLogger("callboard.sockets")

Call = Callable[..., Awaitable[Any]]
Heard = Callable[["Connection", Any], None]

BUFFER_BYTES = 1 << 16
CONNECTIONS_MAX = 1_000
SOCKETS_FOLDER = "s"
LENGTH: Final = struct.Struct("!I")
BODY_BYTES_MAX: Final = 1 << 30
# Stands for the value of a frame that holds none.
UNREADABLE: Final = object()


def socket_path(run_folder: str, actor: str) -> Path | None:
    """Return where an actor listens; None when the deployment has no run folder."""
    if not run_folder:
        return None
    # Names hold a machine's id of 56 digits, a socket's path 107 bytes.
    short = hashlib.blake2b(actor.encode(), digest_size=8).hexdigest()
    return Path(run_folder) / SOCKETS_FOLDER / short


class Connection(asyncio.BufferedProtocol):
    """One end of a connection: values out, values in, each as a frame with msgpack.

    Args:
        on_value: gets each value that arrives, `UNREADABLE` for a frame that holds none.
        on_lost: called once, when either side has ended the connection.
    """

    def __init__(self, on_value: Heard, on_lost: Callable[[Connection], None]) -> None:
        self._on_value = on_value
        self._on_lost = on_lost
        self._buffer = bytearray(BUFFER_BYTES)
        self._end = 0  # of what has arrived
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self.is_lost = False

    def send(self, value: object) -> None:
        """Send one plain value."""
        assert self._transport is not None
        body = msgspec.msgpack.encode(value)
        self._transport.writelines((LENGTH.pack(len(body)), body))

    def close(self) -> None:
        """End the connection, once it is made; what is not sent yet is lost."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asked for its class: uvloop's transports are not asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if self._is_closed:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._buffer.extend(bytes(len(self._buffer)))
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        view, begin = memoryview(self._buffer), 0
        while self._end - begin >= LENGTH.size:
            (size,) = LENGTH.unpack_from(view, begin)
            if size > BODY_BYTES_MAX:
                log.error("connection ended: frame of %d bytes, limit %d", size, BODY_BYTES_MAX)
                self._end = 0
                return self.close()
            end = begin + LENGTH.size + size
            if self._end < end:
                break
            value = _value(view[begin + LENGTH.size : end])
            begin = end
            self._on_value(self, value)
        if begin == self._end and len(self._buffer) == BUFFER_BYTES:
            self._end = 0
        elif begin:
            rest = self._buffer[begin : self._end]
            self._end = len(rest)
            # A new one: the loop may still hold a view of the old one, and it may have grown.
            self._buffer = rest + bytes(max(0, BUFFER_BYTES - len(rest)))
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._on_lost(self)


def _value(body: memoryview) -> object:
    try:
        return msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        log.error("got a frame of %d bytes that cannot be read: %s", len(body), error)
        return UNREADABLE


class SocketServer:
    """Serves methods of one actor to other processes.

    A connection's first value names the method; each further one is a call's arguments.

    Args:
        methods: what may be called, by name.
    """

    def __init__(self, methods: Mapping[str, Any]) -> None:
        self._methods = dict(methods)
        self._open: dict[Connection, Call | None] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._listener: asyncio.AbstractServer | None = None
        self._is_closed = False

    async def listen(self, path: Path) -> None:
        """Listen on a Unix socket; what is left there of a predecessor is replaced.

        Raises:
            OSError: that is not possible.
        """
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # Bound beside its place and moved there: no peer finds a socket that does not listen yet.
        fresh = path.with_suffix(f".{os.getpid()}")
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_unix_server(self._connection, fresh)
        fresh.rename(path)

    async def close(self) -> None:
        """Stop; calls under way are cut off, their outcome is unknown to the callers."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._open):
            connection.close()
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _connection(self) -> Connection:
        connection = Connection(self._hear, self._forget)
        self._open[connection] = None
        if self._is_closed:  # it was accepted before
            connection.close()
        return connection

    def _forget(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def _hear(self, connection: Connection, value: Any) -> None:
        method = self._open.get(connection)
        if method is not None:
            task = asyncio.get_running_loop().create_task(_answer(connection, method, value))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            return
        named = self._methods.get(value) if isinstance(value, str) else None
        if named is not None and len(self._open) <= CONNECTIONS_MAX:
            self._open[connection] = named
        else:
            # Not what was named: it may be the contents of a call.
            is_known = named is not None
            log.error("refused is_known=%s connections=%d", is_known, len(self._open))
            connection.close()


class SocketCall:
    """Calls one method of one actor, over its socket or, while none listens, otherwise.

    Args:
        path: where the actor listens, if it runs on this machine.
        method: its name.
        otherwise: the way that always exists.
    """

    def __init__(self, path: Path, method: str, otherwise: Call) -> None:
        self._path = str(path)
        self._method = method
        self._otherwise = otherwise
        self._idle: list[Connection] = []
        self._replies: dict[Connection, asyncio.Future[Any]] = {}

    async def __call__(self, *arguments: Any) -> Any:
        """Carry one call; one that overlaps another gets a connection of its own.

        Raises:
            ConnectionError: the other side went away, whether it acted is unknown.
        """
        connection = self._idle.pop() if self._idle else await self._connect()
        if connection is None:
            return await self._otherwise(*arguments)
        try:
            connection.send(arguments)
        except BaseException:
            connection.close()
            raise
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[connection] = reply
        try:
            is_result, value = _reply(await reply)
        except BaseException:  # given up half-way: what still comes on it answers no call
            connection.close()
            raise
        finally:
            self._replies.pop(connection, None)
        self._idle.append(connection)
        if is_result:
            return value
        raise decode_failure(value)

    def close(self) -> None:
        """End the connections; calls under way get a ConnectionError."""
        for connection in [*self._idle, *self._replies]:
            connection.close()

    async def _connect(self) -> Connection | None:
        """Return a new connection; None while nothing listens."""
        connection = Connection(self._hear, self._lost)
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: connection, self._path)
        except OSError:
            return None
        # It may have been lost before this task ran again; nothing was sent on it.
        if connection.is_lost:
            return None
        connection.send(self._method)
        return connection

    def _hear(self, connection: Connection, value: Any) -> None:
        reply = self._replies.get(connection)
        if reply is not None and not reply.done():
            reply.set_result(value)

    def _lost(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        reply = self._replies.get(connection)
        if reply is not None and not reply.done():
            reply.set_exception(ConnectionError(f"{self._method}: the connection was lost"))


def _reply(value: object) -> tuple[bool, Any]:
    """Return whether a call has a result, and it or its failure; raises ConnectionError."""
    match value:
        case [True, result]:
            return True, result
        case [False, bytes() as failure]:
            return False, failure
        case _:
            raise ConnectionError("the reply cannot be read")


async def _answer(connection: Connection, method: Call, arguments: Any) -> None:
    try:
        if not isinstance(arguments, list):
            raise Undecodable("no arguments of a call")
        reply: list[Any] = [True, await method(*arguments)]
        connection.send(reply)
    except Exception as error:  # the edge to another process: it is raised over there
        if not isinstance(error, ServiceError):
            log.exception("a call failed")
        connection.send([False, encode_failure(error)])
