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
from typing import Any, Final

import msgspec

from actors.transport.wire import Undecodable, decode_failure, encode_failure
from core.errors import ServiceError

log = logging.getLogger("callboard.sockets")

Call = Callable[..., Awaitable[Any]]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# A frame up to this size is read without a pause of its connection.
BUFFER_BYTES: Final = 1 << 20
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


def send(writer: asyncio.StreamWriter, value: object) -> None:
    """Send one plain value as a frame."""
    body = msgspec.msgpack.encode(value)
    writer.writelines((LENGTH.pack(len(body)), body))


async def receive(reader: asyncio.StreamReader) -> Any:
    """Return the value of the next frame, `UNREADABLE` for a frame that holds none.

    Raises:
        ConnectionError: the other side has ended the connection, or the frame is too large.
    """
    try:
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if size > BODY_BYTES_MAX:
            raise ConnectionError(f"frame of {size} bytes, limit {BODY_BYTES_MAX}")
        body = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise ConnectionError("the connection was lost") from None
    try:
        return msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        log.error("got a frame of %d bytes that cannot be read: %s", size, error)
        return UNREADABLE


class SocketServer:
    """Serves methods of one actor to other processes.

    A connection's first value names the method; each further one is a call's arguments.

    Args:
        methods: what may be called, by name.
    """

    def __init__(self, methods: Mapping[str, Any]) -> None:
        self._methods = dict(methods)
        self._serving: set[asyncio.Task[None]] = set()
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
        self._listener = await asyncio.start_unix_server(self._accept, fresh, limit=BUFFER_BYTES)
        fresh.rename(path)

    async def close(self) -> None:
        """Stop; calls under way are cut off, their outcome is unknown to the callers."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:  # it was accepted before
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)

        def end(_: object) -> None:  # also of a task that was cancelled before its first step
            self._serving.discard(task)
            writer.transport.abort()

        task.add_done_callback(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            name = await receive(reader)
            method = self._methods.get(name) if isinstance(name, str) else None
            if method is None or len(self._serving) > CONNECTIONS_MAX:
                # Not what was named: it may be the contents of a call.
                is_known, count = method is not None, len(self._serving)
                log.error("refused is_known=%s connections=%d", is_known, count)
                return
            while True:
                await _answer(writer, method, await receive(reader))
        except ConnectionError as error:
            log.debug("a connection has ended reason=%s", error)


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
        self._idle: list[Stream] = []
        self._busy: set[asyncio.StreamWriter] = set()

    async def __call__(self, *arguments: Any) -> Any:
        """Carry one call; one that overlaps another gets a connection of its own.

        Raises:
            ConnectionError: the other side went away, whether it acted is unknown.
        """
        stream = self._take_idle() or await self._connect()
        if stream is None:
            return await self._otherwise(*arguments)
        reader, writer = stream
        self._busy.add(writer)
        try:
            send(writer, arguments)
            is_result, value = _reply(await receive(reader))
        except BaseException:  # given up half-way: what still comes on it answers no call
            writer.transport.abort()
            raise
        finally:
            self._busy.discard(writer)
        self._idle.append(stream)
        if is_result:
            return value
        raise decode_failure(value)

    def close(self) -> None:
        """End the connections; calls under way get a ConnectionError."""
        for writer in (*self._busy, *(writer for _, writer in self._idle)):
            writer.transport.abort()

    def _take_idle(self) -> Stream | None:
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.transport.abort()
        return None

    async def _connect(self) -> Stream | None:
        """Return a new connection; None while nothing listens."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=BUFFER_BYTES)
        except OSError:
            return None
        # It may have been lost before this task ran again; nothing was sent on it.
        if reader.at_eof():
            writer.transport.abort()
            return None
        send(writer, self._method)
        return reader, writer


def _reply(value: object) -> tuple[bool, Any]:
    """Return whether a call has a result, and it or its failure; raises ConnectionError."""
    match value:
        case [True, result]:
            return True, result
        case [False, bytes() as failure]:
            return False, failure
        case _:
            raise ConnectionError("the reply cannot be read")


async def _answer(writer: asyncio.StreamWriter, method: Call, arguments: Any) -> None:
    """Send the reply to a call: its result, or the failure that is raised at the caller."""
    try:
        if not isinstance(arguments, list):
            raise Undecodable("no arguments of a call")
        send(writer, [True, await method(*arguments)])
    except Exception as error:  # the edge to another process: it is raised over there
        if not isinstance(error, ServiceError):
            log.exception("a call failed")
        send(writer, [False, encode_failure(error)])
