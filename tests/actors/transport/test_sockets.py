"""Batches over a socket: replies and exceptions, lost connections, and the way without one."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.transport.sockets import (
    BUFFER_BYTES,
    UNREADABLE,
    SocketCall,
    SocketServer,
    receive,
    send,
    socket_path,
)
from actors.transport.wire import decode_failure
from core.errors import ErrorCode, ServiceError
from tests.actors.transport.listening import listening


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: tests run on the first, actors on the second."""
    return "asyncio", {"use_uvloop": request.param}


class Untravelled(Exception):
    """Cannot be made again from its `args`."""

    def __init__(self, *, number: int) -> None:
        super().__init__(f"number {number}")


class Actor:
    """Doubles numbers; waits at the gate for 0; fails as it is told."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.failure: Exception | None = None

    async def submit(self, batch: list[int]) -> list[int]:
        """Return the doubles."""
        if self.failure is not None:
            raise self.failure
        if 0 in batch:
            self.entered.set()
            await self.gate.wait()
        return [2 * number for number in batch]


async def by_ray(batch: list[int]) -> list[Any]:
    """Stand for the other way: it says that it was taken."""
    return ["by ray" for _ in batch]


@pytest.fixture
async def actor(tmp_path: Path) -> AsyncIterator[tuple[Actor, SocketServer, Path]]:
    """An actor that listens in a run folder."""
    served = Actor()
    path = socket_path(str(tmp_path), "ledger")
    assert path is not None
    server = SocketServer({"submit": served.submit})
    await server.listen(path)
    yield served, server, path
    served.gate.set()
    await server.close()


@pytest.fixture
async def call(actor: tuple[Actor, SocketServer, Path]) -> AsyncIterator[SocketCall]:
    """A caller of the actor's `submit`."""
    with closing(SocketCall(actor[2], "submit", by_ray)) as caller:
        yield caller


async def test_a_batch_comes_back_in_order(call: SocketCall) -> None:
    assert await call([1, 2]) == [2, 4]
    assert await call(list(range(1, 100_001)))  # larger than any buffer
    assert await call([]) == []


async def test_calls_that_overlap_get_their_own_replies(
    actor: tuple[Actor, SocketServer, Path], call: SocketCall
) -> None:
    waiting = asyncio.ensure_future(call([0, 7]))
    await actor[0].entered.wait()
    assert await call([1]) == [2]
    actor[0].gate.set()
    assert await waiting == [0, 14]


async def test_a_failure_arrives_with_all_its_fields(
    actor: tuple[Actor, SocketServer, Path], call: SocketCall
) -> None:
    actor[0].failure = ServiceError(ErrorCode.OVERLOADED, "full", retry_after_s=3)
    with pytest.raises(ServiceError) as refused:
        await call([1])
    assert (refused.value.code, refused.value.retry_after_s) == (ErrorCode.OVERLOADED, 3)
    actor[0].failure = Untravelled(number=5)
    with pytest.raises(RuntimeError, match="number 5"):
        await call([1])
    actor[0].failure = None
    assert await call([1]) == [2], "the connection serves on after a failure"


async def test_without_a_socket_the_call_goes_by_ray(tmp_path: Path) -> None:
    assert socket_path("", "ledger") is None
    server = await listening(tmp_path / "no" / "folder", "ledger", {})
    await server.close()
    call = SocketCall(tmp_path / "s" / "absent", "submit", by_ray)
    assert await call([1]) == ["by ray"]


async def test_a_lost_connection_is_an_unknown_outcome_and_the_next_call_finds_the_successor(
    actor: tuple[Actor, SocketServer, Path], call: SocketCall, tmp_path: Path
) -> None:
    served, server, path = actor
    waiting = asyncio.ensure_future(call([0]))
    await served.entered.wait()
    await server.close()
    with pytest.raises(ConnectionError):
        await waiting
    path.unlink(missing_ok=True)
    assert await call([1]) == ["by ray"], "no socket listens: Ray knows where the actor is"
    successor = await listening(tmp_path, "ledger", {"submit": Actor().submit})
    assert await call([1]) == [2]
    await successor.close()


async def test_a_call_that_is_given_up_leaves_no_reply_to_the_next(
    actor: tuple[Actor, SocketServer, Path], call: SocketCall
) -> None:
    served = actor[0]
    waiting = asyncio.ensure_future(call([0, 21]))
    await served.entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    served.gate.set()
    assert await call([4]) == [8]


def frame(value: object) -> bytes:
    """Return a value as it is sent."""
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "big") + body


async def test_frames_are_the_same_however_they_are_cut() -> None:
    rng = random.Random(1)
    for _ in range(20):
        values = [rng.randbytes(rng.choice((0, 1, 200, 70_000, BUFFER_BYTES))) for _ in range(8)]
        unread = frame(1) + (1).to_bytes(4, "big") + b"\xc1" + frame(2)
        sent, reader = b"".join(map(frame, values)) + unread, asyncio.StreamReader()
        reading = asyncio.ensure_future(heard(reader, len(values) + 3))
        while sent:
            size = rng.choice((1, 4, 5, 300, 70_000, len(sent)))
            reader.feed_data(sent[:size])
            sent = sent[size:]
            await asyncio.sleep(0)
        assert await reading == [*values, 1, UNREADABLE, 2]


async def heard(reader: asyncio.StreamReader, count: int) -> list[Any]:
    return [await receive(reader) for _ in range(count)]


async def test_only_this_user_can_reach_the_socket(
    actor: tuple[Actor, SocketServer, Path],
) -> None:
    assert actor[2].parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x01", b"\x81\xa1a\x01", b"\x91" * 10_000])
async def test_garbage_is_an_error_of_its_call_only(
    actor: tuple[Actor, SocketServer, Path], garbage: bytes
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(actor[2]))

    async def told(body: bytes) -> Any:
        writer.write(len(body).to_bytes(4, "big") + body)
        (size,) = struct.unpack("!I", await reader.readexactly(4))
        return msgspec.msgpack.decode(await reader.readexactly(size))

    name = msgspec.msgpack.encode("submit")
    writer.write(len(name).to_bytes(4, "big") + name)
    is_result, failure = await told(garbage)
    assert not is_result
    assert isinstance(decode_failure(failure), RuntimeError)
    assert await told(msgspec.msgpack.encode([[1]])) == [True, [2]], "the connection serves on"
    writer.close()
    await writer.wait_closed()


async def test_garbage_instead_of_a_method_ends_the_connection(
    actor: tuple[Actor, SocketServer, Path], call: SocketCall
) -> None:
    for name in (b"\xc1", msgspec.msgpack.encode(["submit"]), msgspec.msgpack.encode("other")):
        reader, writer = await asyncio.open_unix_connection(str(actor[2]))
        writer.write(len(name).to_bytes(4, "big") + name)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert await call([1]) == [2], "others are served"


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x05", b"\x92\xc2\x05"])
async def test_a_reply_that_cannot_be_read_leaves_the_outcome_unknown(
    tmp_path: Path, garbage: bytes
) -> None:
    ended = asyncio.Event()

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(len(garbage).to_bytes(4, "big") + garbage)
        await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_unix_server(babble, tmp_path / "s")
    with (
        closing(SocketCall(tmp_path / "s", "submit", by_ray)) as call,
        pytest.raises(ConnectionError),
    ):
        await call([1])
    await ended.wait()
    server.close()
    await server.wait_closed()


# The loop of actors; asyncio's own leaves such a connection open if its server closes first.
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])
@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_is_accepted_while_the_server_closes_ends_with_it(
    tmp_path: Path, turns: int
) -> None:
    """It was served by the methods of the one that had closed, and its calls waited in vain."""
    path = tmp_path / "s"
    server = SocketServer({"wait": asyncio.Event().wait})
    await server.listen(path)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setblocking(False)
        peer.connect(str(path))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
        async with asyncio.timeout(60):
            loop = asyncio.get_running_loop()
            with suppress(ConnectionResetError):  # it was never accepted
                assert await loop.sock_recv(peer, 1) == b""


async def test_a_call_of_what_there_is_not_is_refused_and_its_contents_are_not_logged(
    actor: tuple[Actor, SocketServer, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """What stands in the place of a name may be anything, as a command with a key in it."""
    reader, writer = await asyncio.open_unix_connection(str(actor[2]))
    send(writer, "a secret")
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    assert "refused is_known=False" in caplog.text
    assert "secret" not in caplog.text
