"""The kit's HTTP server, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import httpx
import pytest

from callboard.kit import http_server
from callboard.kit.http_server import HttpServer, Request, Response


async def echo(request: Request) -> Response:
    if request.path == "/broken":
        raise RuntimeError("a defect")
    return Response(200, request.body, {"x-path": request.path})


def with_server(visit: Callable[[int], Awaitable[None]], handle: http_server.Handle = echo) -> None:
    """Run a visit to a server, which is closed afterwards."""

    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(handle)
        await server.start(listener)
        try:
            await visit(listener.getsockname()[1])
        finally:
            await server.close(5.0)
        assert server.busy == 0

    asyncio.run(scenario())


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)


async def raw(port: int, sent: bytes) -> bytes:
    """Send bytes and return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    received = await reader.read()
    writer.close()
    await writer.wait_closed()
    return received


def test_many_requests_go_over_one_connection() -> None:
    async def visit(port: int) -> None:
        async with client(port) as http:
            ports = set()
            for number in range(3):
                response = await http.post("/a?b=c", content=b'{"n":%d}' % number)
                assert (response.content, response.headers["x-path"]) == (
                    b'{"n":%d}' % number,
                    "/a",
                )
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
            assert len(ports) == 1

    with_server(visit)


def test_bodies_may_come_in_chunks_and_after_an_expectation() -> None:
    chunked = (
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    expecting = (
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )

    async def visit(port: int) -> None:
        assert (await raw(port, chunked)).endswith(b"\r\n\r\nabcde")
        assert (await raw(port, expecting)).endswith(b"\r\n\r\nok")

    with_server(visit)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (10 << 20), b"413"),
        (b"GET /broken HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"500"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (128 << 10) + b"\r\n\r\n", b"431"),
    ],
    ids=["no HTTP", "too large", "defect", "endless head"],
)
def test_every_request_that_cannot_be_served_is_answered(sent: bytes, status: bytes) -> None:
    body = b"x" * (10 << 20) if status == b"413" else b""

    async def visit(port: int) -> None:
        try:
            assert (await raw(port, sent + body)).startswith(b"HTTP/1.1 " + status)
        except ConnectionError:
            assert status in (b"413", b"431"), "what comes after the refusal is reset"

    with_server(visit)


async def test_closing_lets_a_request_under_way_be_answered() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        entered.set()
        await leave.wait()
        return Response(200, b"done")

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(slow)
    await server.start(listener)
    async with client(listener.getsockname()[1]) as http:
        asked = asyncio.create_task(http.get("/"))
        await entered.wait()
        assert server.busy == 1
        closing = asyncio.create_task(server.close(30.0))
        await asyncio.wait([closing], timeout=0)
        leave.set()
        response = await asked
        await closing
    assert (response.content, response.headers["connection"]) == (b"done", "close")


async def test_closing_gives_up_a_request_that_does_not_end() -> None:
    entered = asyncio.Event()

    async def endless(_: Request) -> Response:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(endless)
    await server.start(listener)
    async with client(listener.getsockname()[1]) as http:
        asked = asyncio.create_task(http.get("/"))
        await entered.wait()
        await server.close(0.0)
        with pytest.raises(httpx.HTTPError):
            await asked


async def test_closing_gives_up_a_reply_that_nobody_takes() -> None:
    """It waited for ever, so that an agent could not be ended by its signal."""

    async def large(_: Request) -> Response:
        return Response(200, b"x" * (8 << 20))

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(large)
    await server.start(listener)
    with socket.create_connection(listener.getsockname()) as deaf:
        deaf.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while not server.busy:
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await server.close(0.1)
    assert server.busy == 0


async def test_a_connection_that_takes_no_reply_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_TIMEOUT_S", 0.1)

    async def large(_: Request) -> Response:
        return Response(200, b"x" * (8 << 20))

    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(large)
    await server.start(listener)
    with socket.create_connection(listener.getsockname()) as deaf:
        deaf.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            while not server.busy:
                await asyncio.sleep(0)
            while server.busy:
                await asyncio.sleep(0)
    await server.close(5.0)


def test_a_head_request_is_answered_without_a_body() -> None:
    """The connection ended without a word."""

    async def visit(port: int) -> None:
        asked = b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
        head = await raw(port, asked)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-length: 2\r\n" in head
        assert head.endswith(b"\r\n\r\n")

    with_server(visit)
