"""A small HTTP/1.1 server for an agent, on asyncio and h11, which httpx brings anyway.

Knows requests, replies and connections; nothing of agents. It serves what a coordinator sends:
requests with a body of known or chunked length, many after one another on a connection. A reply is
whole before it is sent. Rules: every size and every silence is bounded; a handler that raises is
answered with 500 and logged. Spec: Agent interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import h11

# The coordinator sends at most 8 MiB of inputs; the rest of the body is small.
BODY_BYTES_MAX = 9 * 1024 * 1024
# A connection on which no whole request arrives for so long is closed, and one whose other side
# has not taken a reply after it is cut off.
IDLE_TIMEOUT_S = 75.0
_READ_BYTES = 64 * 1024
_BACKLOG = 512

_log = logging.getLogger("callboard.agent")


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its whole body; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """One reply: the status, the exact JSON bytes, further headers."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Handle = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Answers requests with one function until it is closed.

    Args:
        handle: answers a request.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._server: asyncio.Server | None = None
        # Each connection's task, and whether it is at work on a request.
        self._connections: dict[asyncio.Task[None], bool] = {}
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def __repr__(self) -> str:
        return f"HttpServer({len(self._connections)} connections, {self.busy} busy)"

    @property
    def busy(self) -> int:
        """How many connections are at work on a request."""
        return sum(self._connections.values())

    async def start(self, listener: socket.socket) -> None:
        """Serve on a listening socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener, backlog=_BACKLOG)

    async def close(self, timeout_s: float) -> None:
        """Stop listening, close idle connections, and let requests under way be answered.

        Args:
            timeout_s: after so many seconds they are given up.
        """
        if self._server is not None:
            self._server.close()
        for task, is_busy in list(self._connections.items()):
            if not is_busy:
                task.cancel()
        if self._connections:
            _, late = await asyncio.wait(list(self._connections), timeout=timeout_s)
            for task in late:
                # What the other side does not take is thrown away: it may never take it.
                self._writers[task].transport.abort()
                task.cancel()
            if late:
                await asyncio.wait(late)

    @property
    def _is_closing(self) -> bool:
        return self._server is None or not self._server.is_serving()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task], self._writers[task] = False, writer
        connection = h11.Connection(h11.SERVER)
        try:
            while await self._exchange(task, connection, reader, writer):
                connection.start_next_cycle()
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # The other side has gone or is silent, or the server closes: nothing to answer.
        finally:
            self._connections[task] = False
            writer.close()
            try:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    await writer.wait_closed()
            except (OSError, TimeoutError, asyncio.CancelledError):
                writer.transport.abort()
            del self._connections[task], self._writers[task]

    async def _exchange(
        self,
        task: asyncio.Task[None],
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer one request; tell whether another one may follow on the connection."""
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                request = await _read_request(connection, reader, writer)
        except h11.RemoteProtocolError as error:
            refusal = Response(error.error_status_hint, b'{"error":"not an HTTP request"}')
            await _write(connection, writer, refusal, is_last=True)
            return False
        if request is None:
            return False
        if isinstance(request, Response):
            await _write(connection, writer, request, is_last=True)
            return False
        self._connections[task] = True
        response = await self._answered(request)
        is_head = request.method == "HEAD"
        await _write(connection, writer, response, is_last=self._is_closing, is_head=is_head)
        self._connections[task] = False
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _answered(self, request: Request) -> Response:
        try:
            return await self._handle(request)
        # The edge of the process: no defect of a handler ends the connection without an answer.
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return Response(500, b'{"status":"error","error":"internal error"}')


async def _read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | Response | None:
    """Read one request; a reply that refuses it, or None at the end of the connection."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                writer.write(connection.send(go_on))
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                return Response(413, b'{"error":"the body is too large"}')
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None, "a message begins with its head"
            path = head.target.decode("ascii").partition("?")[0]
            headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
            return Request(head.method.decode("ascii"), path, headers, bytes(body))
        else:
            return None


async def _write(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    response: Response,
    *,
    is_last: bool,
    is_head: bool = False,
) -> None:
    headers = {
        "content-type": "application/json",
        "content-length": str(len(response.body)),
        **response.headers,
    }
    if is_last:
        headers["connection"] = "close"
    # A defect of the other side leaves the connection able to say why, but for some.
    with contextlib.suppress(h11.LocalProtocolError):
        sent = connection.send(
            h11.Response(status_code=response.status, headers=list(headers.items()))
        )
        if not is_head:
            sent += connection.send(h11.Data(data=response.body)) or b""
        sent += connection.send(h11.EndOfMessage()) or b""
        writer.write(sent)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await writer.drain()
