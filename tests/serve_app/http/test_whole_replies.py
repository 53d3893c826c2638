"""A reply's head and its body travel in one write, and no head waits for a late body.

Method: uvicorn serves a small application on a real socket with the protocol of a replica. The
usual replies are tested against a replica, by tests/contract/test_replies_on_the_wire.py, which
counts their segments by `segments_in`. Decision messages-and-large-values.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from serve_app.http.whole_replies import WholeReplies

SMALL, PART = b"a small reply", b"p" * 60_000
# Looks like the head of a reply.
MISLEADING = b"HTTP/1.1 200 OK is how a head begins"
WAIT_S = 60
# `tcpi_data_segs_in` of Linux's `struct tcp_info`.
SEGMENTS_AT = 152

BODIES: dict[str, tuple[bytes, ...]] = {
    "/late": (SMALL,),
    "/misleading": (MISLEADING,) * 3,
    "/parts": (PART,) * 3,
}


class Application:
    """Replies with the bodies above, each in parts and an end."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Reply to one request."""
        path, parts = scope["path"], BODIES[scope["path"]]
        length = (b"content-length", b"%d" % sum(map(len, parts)))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        if path == "/late":
            assert await asyncio.to_thread(self.may_go_on.wait, WAIT_S)
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def application() -> Application:
    """What the server serves."""
    return Application()


@pytest.fixture(scope="module")
def port(application: Application) -> Iterator[int]:
    """The port of a server with the protocol of a replica."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(
                application, http=WholeReplies, lifespan="off", access_log=False, log_config=None
            )
        )
        serving = threading.Thread(
            target=lambda: uvloop.run(server.serve(sockets=[listening])), daemon=True
        )
        serving.start()
        yield int(listening.getsockname()[1])
        server.should_exit = True
        serving.join()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """Yield a connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        yield connection


def asked(path: str, headers: str = "") -> bytes:
    """Return the text of a request."""
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode()


def segments_in(connection: socket.socket) -> int:
    """Return how many segments with content a connection has received, as the kernel counts."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("I", told, SEGMENTS_AT)[0])


def body_of(reply: bytes) -> bytes:
    """Return what follows a reply's head."""
    head, end, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert end
    return body


def test_a_head_goes_out_when_its_body_is_late(port: int, application: Application) -> None:
    with connected(port) as connection:
        connection.sendall(asked("/late"))
        assert body_of(connection.recv(65_536)) == b""
        application.may_go_on.set()
        assert connection.recv(65_536) == SMALL


@pytest.mark.parametrize("path", ["/parts", "/misleading"])
def test_a_reply_in_parts_is_whole(port: int, path: str) -> None:
    with connected(port) as connection:
        connection.sendall(asked(path, headers="connection: close\r\n"))
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert body_of(received) == b"".join(BODIES[path])


def test_a_request_that_is_no_http_is_refused_whole(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert received.startswith(b"HTTP/1.1 400 ")


class EndedTransport(asyncio.Transport):
    """A transport as uvloop's is after its end: it refuses to write."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False
        self.written: list[Any] = []

    def is_closing(self) -> bool:
        return self.is_ended

    def write(self, data: Any) -> None:
        if self.is_ended:
            raise RuntimeError("the handler is closed")
        self.written.append(data)


@pytest.mark.parametrize("is_ended", [False, True])
async def test_a_head_of_an_ended_connection_is_dropped(is_ended: bool) -> None:
    transport, errors = EndedTransport(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    protocol = WholeReplies(uvicorn.Config(Application()), ServerState(), {})
    protocol.connection_made(transport)
    protocol.transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.is_ended = is_ended
    await asyncio.sleep(0)
    assert (len(transport.written), errors) == (0 if is_ended else 1, [])


def test_a_server_that_stops_first_ends_what_never_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve ends a replica when its server has ended, which waits for all replies."""
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        may_end = asyncio.Event()
        loops.append((asyncio.get_running_loop(), may_end))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": SMALL, "more_body": True})
        await may_end.wait()
        await send({"type": "http.response.body", "body": b""})

    def end_all() -> None:
        for loop, may_end in loops:
            loop.call_soon_threadsafe(may_end.set)

    monkeypatch.setattr(WholeReplies, "on_stop", end_all)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            endless, http=WholeReplies, lifespan="off", access_log=False, log_config=None
        )
        server = uvicorn.Server(config)
        serving = threading.Thread(
            target=lambda: uvloop.run(server.serve(sockets=[listening])), daemon=True
        )
        serving.start()
        with connected(listening.getsockname()[1]) as connection:
            connection.sendall(asked("/"))
            assert connection.recv(65_536)
            server.should_exit = True
            received = b"".join(iter(lambda: connection.recv(65_536), b""))
            assert received.endswith(b"0\r\n\r\n"), "the reply is whole"
            serving.join(WAIT_S)
        assert not serving.is_alive()
