"""Sends batches over Unix sockets to actors of the same machine, and serves these calls.

A Ray actor call takes about 3 ms of CPU time on both sides together. The same batch over a socket
takes a third of that. Therefore Ray only starts, names, finds and restarts the processes, and
batches go through a socket in the deployment's run folder. If no socket listens (the actor runs on
another machine, or is being replaced), the call goes by Ray.

A connection carries one call at a time, as a `Channel` does. A frame has 4 bytes for the length of
its body, and then the body in msgpack. A decoded body contains only plain values: numbers, texts,
bytes, and lists of these, whatever another process sends. A call that cannot be decoded is refused
without an effect on other calls.
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

# The buffer of a connection: a frame up to this size is received without pausing the sender.
BUFFER_BYTES: Final = 1 << 20
CONNECTIONS_MAX = 1_000
SOCKETS_FOLDER = "s"
LENGTH: Final = struct.Struct("!I")
BODY_BYTES_MAX: Final = 1 << 30
# Returned by `receive` for a frame that cannot be decoded.
UNREADABLE: Final = object()


def socket_path(run_folder: str, actor: str) -> Path | None:
    """Return the path of an actor's socket; None if the deployment has no run folder."""
    if not run_folder:
        return None
    # Hashed: an actor's name contains a machine id of 56 digits, and the path of a socket may have
    # at most 107 bytes.
    short = hashlib.blake2b(actor.encode(), digest_size=8).hexdigest()
    return Path(run_folder) / SOCKETS_FOLDER / short


def send(writer: asyncio.StreamWriter, value: object) -> None:
    """Send one plain value as a frame."""
    body = msgspec.msgpack.encode(value)
    writer.writelines((LENGTH.pack(len(body)), body))


async def receive(reader: asyncio.StreamReader) -> Any:
    """Return the value of the next frame, or `UNREADABLE` if it cannot be decoded.

    Raises:
        ConnectionError: the other side has closed the connection, or the frame is too large.
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

    The first value on a connection is the method's name. Each later value is the list of the
    arguments of one call.

    Args:
        methods: the methods that may be called, by name.
    """

    def __init__(self, methods: Mapping[str, Any]) -> None:
        self._methods = dict(methods)
        self._serving: set[asyncio.Task[None]] = set()
        self._listener: asyncio.AbstractServer | None = None
        self._is_closed = False

    async def listen(self, path: Path) -> None:
        """Listen on a Unix socket; replace the socket file of a predecessor.

        Raises:
            OSError: the socket cannot be created.
        """
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # Created under another name and then renamed: no caller finds a socket that does not listen
        # yet.
        fresh = path.with_suffix(f".{os.getpid()}")
        self._listener = await asyncio.start_unix_server(self._accept, fresh, limit=BUFFER_BYTES)
        fresh.rename(path)

    async def close(self) -> None:
        """Stop; unfinished calls are cut off, and their outcome is unknown to the callers."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:  # the connection was accepted before `close`
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)

        def end(_: object) -> None:  # also runs if the task was cancelled before its first step
            self._serving.discard(task)
            writer.transport.abort()

        task.add_done_callback(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            name = await receive(reader)
            method = self._methods.get(name) if isinstance(name, str) else None
            if method is None or len(self._serving) > CONNECTIONS_MAX:
                # The received name is not logged: it may be the contents of a call.
                is_known, count = method is not None, len(self._serving)
                log.error("refused is_known=%s connections=%d", is_known, count)
                return
            while True:
                await _answer(writer, method, await receive(reader))
        except ConnectionError as error:
            log.debug("a connection has ended reason=%s", error)


class SocketCall:
    """Calls one method of one actor over its socket; while no socket listens, calls `otherwise`.

    Args:
        path: the path of the actor's socket, if the actor runs on this machine.
        method: the name of the method.
        otherwise: the Ray call, which always works.
    """

    def __init__(self, path: Path, method: str, otherwise: Call) -> None:
        self._path = str(path)
        self._method = method
        self._otherwise = otherwise
        self._idle: list[Stream] = []
        self._busy: set[asyncio.StreamWriter] = set()

    async def __call__(self, *arguments: Any) -> Any:
        """Make one call; concurrent calls have separate connections.

        Raises:
            ConnectionError: the connection was lost; the outcome is unknown.
        """
        stream = self._take_idle() or await self._connect()
        if stream is None:
            return await self._otherwise(*arguments)
        reader, writer = stream
        self._busy.add(writer)
        try:
            send(writer, arguments)
            is_result, value = _reply(await receive(reader))
        except BaseException:  # aborted: a late reply must not be taken for that of the next call
            writer.transport.abort()
            raise
        finally:
            self._busy.discard(writer)
        self._idle.append(stream)
        if is_result:
            return value
        raise decode_failure(value)

    def close(self) -> None:
        """Close the connections; unfinished calls get a ConnectionError."""
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
        """Return a new connection; None if no socket listens."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=BUFFER_BYTES)
        except OSError:
            return None
        # The connection may be lost already, before anything was sent on it.
        if reader.at_eof():
            writer.transport.abort()
            return None
        send(writer, self._method)
        return reader, writer


def _reply(value: object) -> tuple[bool, Any]:
    """Return (True, result) or (False, encoded failure) of a call's reply.

    Raises:
        ConnectionError: the reply has neither form.
    """
    match value:
        case [True, result]:
            return True, result
        case [False, bytes() as failure]:
            return False, failure
        case _:
            raise ConnectionError("the reply cannot be read")


async def _answer(writer: asyncio.StreamWriter, method: Call, arguments: Any) -> None:
    """Call the method and send the reply: the result, or the error to raise at the caller."""
    try:
        if not isinstance(arguments, list):
            raise Undecodable("no arguments of a call")
        send(writer, [True, await method(*arguments)])
    except Exception as error:  # the edge to another process: the caller raises the error
        if not isinstance(error, ServiceError):
            log.exception("a call failed")
        send(writer, [False, encode_failure(error)])
