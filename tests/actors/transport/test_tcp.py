"""Batches over TCP, with real sockets on the loopback: who is served, and who is refused.

What is refused goes by Ray, for which `by_ray` stands, as far as the caller cannot have been heard.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from actors.transport.actor_calls import BatchServer
from actors.transport.frames import LENGTH, MAC_BYTES, FrameTooLarge, PlainFrames
from actors.transport.handshake import (
    Agreed,
    Side,
    client_exchange,
)
from actors.transport.sockets import (
    Carrier,
    Connection,
    SocketCall,
    SocketServer,
    UnixCarrier,
    socket_path,
)
from actors.transport.tcp import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    HANDSHAKES_MAX,
    Credentials,
    TcpCarrier,
    TcpListener,
    TlsFiles,
)
from core.errors import ErrorCode, ServiceError
from core.trust.deployment_keys import DeploymentKeys
from core.trust.derived_keys import KeyPurpose, derived_keys
from tests.actors.transport.listening import listening
from tests.federation.certificates import self_signed

ACTOR = "ledger"
KEY, PREVIOUS, OTHER = "a1" * 32, "b2" * 32, "c3" * 32


def transport_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys of handshakes of a deployment with these keys."""
    return derived_keys(DeploymentKeys.parse(text), KeyPurpose.TRANSPORT)


CREDENTIALS = Credentials(transport_keys(KEY))
ANY_PORT = range(1)
BY_RAY = ["by ray"]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: tests run on the first, actors on the second."""
    return "asyncio", {"use_uvloop": request.param}


class Actor:
    """Doubles numbers; waits at the gate for 0; fails as it is told."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.failure: Exception | None = None
        self.calls = 0

    async def submit(self, batch: list[int]) -> list[int]:
        """Return the doubles."""
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        if 0 in batch:
            self.entered.set()
            await self.gate.wait()
        return [2 * number for number in batch]


class Asked:
    """Says where the actor listens, counts how often it was asked."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        return self.endpoint


class Served:
    """An actor and its listener."""

    def __init__(self, credentials: Credentials, **options: Any) -> None:
        self.actor = Actor()
        self.server = SocketServer({"submit": self.actor.submit})
        self.listener = TcpListener(self.server, ACTOR, credentials, **options)
        self.server.add_listener(self.listener)
        self.asked = Asked(self.listener.start("127.0.0.1", ANY_PORT))
        self.address = ("127.0.0.1", int(self.asked.endpoint.rpartition(":")[2]))

    @contextmanager
    def caller(self, credentials: Credentials = CREDENTIALS) -> Iterator[SocketCall]:
        """Yield a caller of `submit`."""
        carrier = TcpCarrier(self.asked, ACTOR, credentials)
        with closing(SocketCall([carrier], "submit", by_ray)) as call:
            yield call

    async def refused(self, count: int) -> None:
        """Wait until so many were refused."""
        async with asyncio.timeout(60):
            while self.listener.statistics().refused < count:
                await asyncio.sleep(0)


async def by_ray(batch: list[Any]) -> list[Any]:
    """Stand for the other way: it says that it was taken."""
    return BY_RAY


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """An actor that listens."""
    made = Served(CREDENTIALS)
    yield made
    made.actor.gate.set()
    await made.server.close()


# --- calls ----------------------------------------------------------------------------------------


async def test_batches_and_failures_come_back(served: Served) -> None:
    with served.caller() as call:
        assert await call([1, 2]) == [2, 4]
        numbers = list(range(1, 300_001))  # larger than any buffer
        assert await call(numbers) == [2 * number for number in numbers]
        served.actor.failure = ServiceError(ErrorCode.OVERLOADED, "full", retry_after_s=3)
        with pytest.raises(ServiceError) as refused:
            await call([1])
        assert refused.value.retry_after_s == 3
        served.actor.failure = None
        assert await call([4]) == [8]
        assert served.asked.count == 1
        assert served.listener.statistics().accepted == 1


async def test_calls_that_overlap_get_their_own_replies(served: Served) -> None:
    with served.caller() as call:
        waiting = asyncio.ensure_future(call([0, 7]))
        await served.actor.entered.wait()
        assert await call([1]) == [2]
        served.actor.gate.set()
        assert await waiting == [0, 14]
        assert served.asked.count == 1, "the second connection is to a known place"


async def test_a_lost_connection_is_an_unknown_outcome_and_the_successor_is_asked_for(
    served: Served,
) -> None:
    with served.caller() as call:
        waiting = asyncio.ensure_future(call([0]))
        await served.actor.entered.wait()
        await served.server.close()
        with pytest.raises(ConnectionError):
            await waiting
        successor = Served(CREDENTIALS)
        served.asked.endpoint = successor.asked.endpoint
        assert await call([1]) == [2]
        assert (served.asked.count, successor.actor.calls) == (2, 1)
        await successor.server.close()


async def test_the_unix_socket_comes_before_tcp_and_tcp_before_ray(tmp_path: Path) -> None:
    actors = {"unix": Actor(), "tcp": Actor()}
    path = socket_path(str(tmp_path), ACTOR)
    assert path is not None
    near = SocketServer({"submit": actors["unix"].submit})
    await near.listen(path)
    far = SocketServer({"submit": actors["tcp"].submit})
    listener = TcpListener(far, ACTOR, CREDENTIALS)
    far.add_listener(listener)
    asked = Asked(listener.start("127.0.0.1", ANY_PORT))

    def caller() -> SocketCall:
        ways: list[Carrier] = [UnixCarrier(path), TcpCarrier(asked, ACTOR, CREDENTIALS)]
        return SocketCall(ways, "submit", by_ray)

    for expected in (("unix", 1, 0), ("tcp", 1, 1), ("ray", 1, 1)):
        with closing(caller()) as call:
            reply = await call([3])
        assert reply == (BY_RAY if expected[0] == "ray" else [6])
        assert (actors["unix"].calls, actors["tcp"].calls) == expected[1:]
        if expected[0] == "unix":
            assert asked.count == 0, "no Ray call where the socket is there"
            await near.close()
            path.unlink()
        else:
            await far.close()


async def test_a_call_that_is_too_large_for_its_frames_goes_by_ray(tmp_path: Path) -> None:
    class SmallFrames(PlainFrames):
        """Have a limit that is easily exceeded."""

        def written(self, body: bytes) -> Any:
            """Return the pieces of a frame."""
            if len(body) > 1_000:
                raise FrameTooLarge(len(body), 1_000)
            return PlainFrames.written(self, body)

    class SmallCarrier:
        """Connects with such frames, and counts."""

        count = 0

        async def connect(self, on_value: Any, on_lost: Any) -> Connection:
            """Return a new connection."""
            self.count += 1
            made = Connection(on_value, on_lost, SmallFrames())
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: made, str(tmp_path / "s"))
            return made

    actor = Actor()
    server = SocketServer({"submit": actor.submit})
    loop = asyncio.get_running_loop()
    server.add_listener(
        await loop.create_unix_server(lambda: server.connection(SmallFrames()), tmp_path / "s")
    )
    carrier = SmallCarrier()
    with closing(SocketCall([carrier], "submit", by_ray)) as call:
        assert await call([1]) == [2]
        assert await call([1] * 2_000) == BY_RAY
        assert actor.calls == 1
        with pytest.raises(RuntimeError, match="FrameTooLarge"):
            await call([100] * 900)  # whose reply takes twice the room
        assert await call([2]) == [4]
        assert carrier.count == 1, "the connection serves on"
    await server.close()


# --- peers that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "is_served"),
    [
        (KEY, True),
        (f"2:{OTHER},1:{KEY}", True),
        (f"1:{KEY},2:{OTHER}", True),
        (OTHER, False),
        (f"2:{KEY}", False),
        (f"2:{OTHER},1:{PREVIOUS}", False),
    ],
)
async def test_a_caller_needs_one_of_the_keys(
    served: Served, keys: str, *, is_served: bool
) -> None:
    with served.caller(Credentials(transport_keys(keys))) as call:
        assert await call([1]) == ([2] if is_served else BY_RAY)
    assert served.listener.statistics().refused == (not is_served)
    assert served.actor.calls == is_served


async def test_an_actor_of_another_name_at_the_same_port_is_not_called(served: Served) -> None:
    carrier = TcpCarrier(served.asked, "workflow@1#0", CREDENTIALS)
    with closing(SocketCall([carrier], "submit", by_ray)) as call:
        assert await call([1]) == BY_RAY
    assert served.actor.calls == 0


class RawClient:
    """A client by hand, which keeps what it sends."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self._address = address
        self.sent = b""

    async def connect(self) -> RawClient:
        """Connect, without a word."""
        await asyncio.get_running_loop().sock_connect(self.socket, self._address)
        return self

    async def send(self, sent: bytes) -> None:
        """Send bytes; what the other side does not read any more is dropped."""
        self.sent += sent
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self.socket, sent)

    async def shake_hands(self, key: str = KEY) -> Agreed:
        """Do the client's half of a handshake."""
        exchange = client_exchange(Side(transport_keys(key), ACTOR, X25519PrivateKey.generate()))
        received: bytes | None = None
        try:
            while True:
                step = exchange.send(received)  # type: ignore[arg-type]
                await self.send(step.sent)
                received = await self.receive(step.wanted_bytes)
        except StopIteration as end:
            agreed: Agreed = end.value
            await self.send(agreed.sent)
            return agreed

    async def receive(self, size: int) -> bytes:
        """Return so many bytes, or fewer if the other side ends the connection."""
        received = b""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                while len(received) < size:
                    part = await loop.sock_recv(self.socket, size - len(received))
                    if not part:
                        break
                    received += part
        return received

    async def is_ended(self) -> bool:
        """Wait until the other side ends the connection."""
        return await self.receive(1) == b""

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


async def test_a_recorded_connection_cannot_be_repeated(served: Served) -> None:
    with closing(await RawClient(served.address).connect()) as first:
        frames = (await first.shake_hands()).frames
        for value in ("submit", [[5]]):
            await first.send(b"".join(frames.written(msgspec.msgpack.encode(value))))
        (size,) = LENGTH.unpack(await first.receive(LENGTH.size))
        body = frames.opened(memoryview(await first.receive(size + MAC_BYTES)))
        assert msgspec.msgpack.decode(body) == [True, [10]]
    with closing(await RawClient(served.address).connect()) as again:
        await again.send(first.sent)
        assert len(await again.receive(10_000)) == 73, "a hello, and no reply"
    await served.refused(1)
    assert served.actor.calls == 1
    assert served.listener.statistics().accepted == 1


async def test_a_frame_of_2_gib_ends_the_connection_of_a_peer_with_the_key(
    served: Served,
) -> None:
    with closing(await RawClient(served.address).connect()) as peer:
        await peer.shake_hands()
        await peer.send(LENGTH.pack(1 << 31))
        assert await peer.is_ended()


async def test_a_frame_with_a_flipped_bit_ends_the_connection(served: Served) -> None:
    with closing(await RawClient(served.address).connect()) as peer:
        frames = (await peer.shake_hands()).frames
        await peer.send(b"".join(frames.written(msgspec.msgpack.encode("submit"))))
        call = bytearray(b"".join(frames.written(msgspec.msgpack.encode([[5]]))))
        call[6] ^= 1
        await peer.send(bytes(call))
        assert await peer.is_ended()
    assert served.actor.calls == 0


@pytest.mark.parametrize(
    "sent",
    [b"\x00" * 9, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"callbrd\n\x01" + bytes(1 << 20)],
    ids=["zeros", "HTTP", "a hello of zeros, and a megabyte"],
)
async def test_a_peer_without_the_key_gets_no_word(served: Served, sent: bytes) -> None:
    with closing(await RawClient(served.address).connect()) as peer:
        await peer.send(sent)
        assert await peer.receive(1) == b""
    await served.refused(1)


async def test_another_version_is_refused_with_a_sentence_on_both_sides(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(await RawClient(served.address).connect()) as peer:
        await peer.send(b"callbrd\n\x07")
        assert await peer.receive(100) == b"callbrd\n\x01"
    await served.refused(1)
    sentence = "the peer speaks version 7 of the transport, this process version 1"
    assert sentence in caplog.text
    caplog.clear()

    async def newer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(9)
        writer.write(b"callbrd\n\x07")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(newer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    carrier = TcpCarrier(Asked(f"127.0.0.1:{port}"), ACTOR, CREDENTIALS)
    with closing(SocketCall([carrier], "submit", by_ray)) as call:
        assert await call([1]) == BY_RAY
    assert sentence in caplog.text
    server.close()
    await server.wait_closed()


async def test_slow_peers_are_ended_and_keep_nobody_out(served: Served) -> None:
    """A peer that says nothing, or one byte at a time, has a place among others for a while."""
    slow = [await RawClient(served.address).connect() for _ in range(HANDSHAKES_MAX)]
    for peer in slow:
        await peer.send(b"c")
    async with asyncio.timeout(60):
        while served.listener.statistics().handshakes < HANDSHAKES_MAX:
            await asyncio.sleep(0)
    with served.caller() as call:
        assert await call([1]) == [2], "the oldest makes room"
    assert await slow[0].is_ended()
    statistics = served.listener.statistics()
    assert statistics.handshakes == HANDSHAKES_MAX - 1
    assert (statistics.accepted, statistics.refused) == (1, 1)
    for peer in slow:
        peer.close()
    await served.refused(HANDSHAKES_MAX)


async def test_a_peer_that_sends_a_byte_now_and_then_is_ended_at_the_deadline() -> None:
    served = Served(CREDENTIALS, handshake_timeout_s=0.05)
    with closing(await RawClient(served.address).connect()) as peer:
        loop = asyncio.get_running_loop()
        ended = loop.create_task(peer.is_ended())
        for byte in b"callbrd\n\x01":
            await peer.send(bytes([byte]))
            await asyncio.wait([ended], timeout=0.01)
        assert await ended
    await served.refused(1)
    await served.server.close()


async def test_a_flood_of_strangers_is_logged_in_few_lines(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(50):
        with closing(await RawClient(served.address).connect()) as peer:
            await peer.send(b"\x00" * 9)
            assert await peer.is_ended()
    await served.refused(50)
    assert caplog.text.count("connection refused") < 50


async def test_a_full_server_refuses_before_the_handshake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(SocketServer):
        """Has all its connections."""

        is_full = True  # type: ignore[assignment]

    server = Full({})
    listener = TcpListener(server, ACTOR, CREDENTIALS)
    server.add_listener(listener)
    endpoint = listener.start("127.0.0.1", ANY_PORT)
    with closing(RawClient(("127.0.0.1", int(endpoint.rpartition(":")[2])))) as peer:
        await peer.connect()
        assert await peer.is_ended()
    assert listener.statistics().refused == 1
    assert "too many connections" in caplog.text
    await server.close()


@pytest.mark.parametrize("turns", range(8))
async def test_a_peer_that_is_accepted_while_the_server_closes_is_ended(turns: int) -> None:
    """Its socket was left open when its handshake was cancelled before the first turn."""
    served = Served(CREDENTIALS)
    with closing(await RawClient(served.address).connect()) as peer:
        for _ in range(turns):
            await asyncio.sleep(0)
        await served.server.close()
        assert await peer.is_ended()


# --- where the actor listens ----------------------------------------------------------------------


async def unreachable() -> str:
    """Return an endpoint at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return f"127.0.0.1:{gone.getsockname()[1]}"


@pytest.mark.parametrize(
    "endpoint", ["", "nowhere", "127.0.0.1", "host:1", "127.0.0.1:x", "[::1:5", None]
)
async def test_after_a_failure_the_actor_is_not_asked_for_a_while(endpoint: str | None) -> None:
    """A machine that has gone must not cost a further Ray call for each batch."""
    now_s = 100.0
    asked = Asked(await unreachable() if endpoint is None else endpoint)
    carrier = TcpCarrier(asked, ACTOR, CREDENTIALS, now_s=lambda: now_s)
    with closing(SocketCall([carrier], "submit", by_ray)) as call:
        backoff_s, count = BACKOFF_S_MIN, 0
        while backoff_s < BACKOFF_S_MAX:
            count += 1
            for _ in range(3):
                assert await call([1]) == BY_RAY
            assert asked.count == count
            now_s += backoff_s
            backoff_s *= 2


async def test_one_call_tries_again_and_the_others_do_not_wait_for_it(served: Served) -> None:
    now_s = 100.0
    gate = asyncio.Event()
    asked = 0

    async def endpoint() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionError("the actor is being replaced")
        await gate.wait()
        return served.asked.endpoint

    carrier = TcpCarrier(endpoint, ACTOR, CREDENTIALS, now_s=lambda: now_s)
    with closing(SocketCall([carrier], "submit", by_ray)) as call:
        assert await call([1]) == BY_RAY
        now_s += BACKOFF_S_MIN
        trying = asyncio.ensure_future(call([1]))
        await asyncio.sleep(0)
        assert await call([2]) == BY_RAY
        gate.set()
        assert await trying == [2]
        assert await call([3]) == [6], "a success ends the backoff"
        assert asked == 2


async def test_a_peer_that_accepts_and_says_nothing_costs_a_bounded_time() -> None:
    """As a port that another program has taken, or a frozen process."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel connects
        asked = Asked(f"127.0.0.1:{silent.getsockname()[1]}")
        carrier = TcpCarrier(asked, ACTOR, CREDENTIALS, timeout_s=0.05)
        with closing(SocketCall([carrier], "submit", by_ray)) as call:
            assert await call([1]) == BY_RAY


async def test_a_port_of_the_range_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings: dict[str, object] = {
            "transport_host": "127.0.0.1", "transport_port_min": port,
            "transport_port_max": min(port + 50, 65_535), "deployment_key": KEY,
        }  # fmt: skip
        first = await listening(tmp_path, "one", {}, **settings)
        second = await listening(tmp_path, "two", {}, **settings)
        found = {int(server.endpoint.rpartition(":")[2]) for server in (first, second)}
        assert len(found) == 2 and port not in found
        assert all(port < item <= port + 50 for item in found)
        none = await listening(tmp_path, "three", {}, **{**settings, "transport_port_max": port})
        assert none.endpoint == "", "it is called by Ray"
        for server in (first, second, none):
            await server.close()


async def test_without_an_address_nothing_listens(tmp_path: Path) -> None:
    server: BatchServer = await listening(tmp_path, ACTOR, {}, deployment_key=KEY)
    assert server.endpoint == ""
    await server.close()


# --- TLS ------------------------------------------------------------------------------------------


def tls(folder: Path, name: str) -> TlsFiles:
    """Return files of a certificate that is its own CA."""
    (folder / name).mkdir()
    file = str(self_signed(folder / name, name))
    return TlsFiles(file, file, file)


async def test_tls_carries_the_same_frames(tmp_path: Path) -> None:
    files = tls(tmp_path, "callboard")
    served = Served(CREDENTIALS._replace(tls=files))
    with served.caller(CREDENTIALS._replace(tls=files)) as call:
        assert await call([1]) == [2]
        numbers = list(range(1, 300_001))
        assert await call(numbers) == [2 * number for number in numbers]
        waiting = asyncio.ensure_future(call([0]))
        await served.actor.entered.wait()
        assert await call([4]) == [8]
        served.actor.gate.set()
        assert await waiting == [0]
    await served.server.close()


@pytest.mark.parametrize(
    "caller",
    ["of another CA", "that trusts us", "that trusts another", "without TLS", "of another key"],
)
async def test_tls_and_the_key_are_both_needed(
    tmp_path: Path, caller: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = tls(tmp_path, "callboard")
    callers: dict[str, Callable[[], Credentials]] = {
        "of another CA": lambda: CREDENTIALS._replace(tls=tls(tmp_path, "stranger")),
        "that trusts us": lambda: CREDENTIALS._replace(
            tls=tls(tmp_path, "stranger")._replace(ca=files.ca)
        ),
        "that trusts another": lambda: CREDENTIALS._replace(
            tls=files._replace(ca=tls(tmp_path, "stranger").ca)
        ),
        "without TLS": lambda: CREDENTIALS,
        "of another key": lambda: Credentials(transport_keys(OTHER), files),
    }
    served = Served(CREDENTIALS._replace(tls=files))
    with served.caller(callers[caller]()) as call:
        assert await call([1]) == BY_RAY
    await served.refused(1)
    assert served.actor.calls == 0
    async with asyncio.timeout(60):
        while served.listener.statistics().handshakes:
            await asyncio.sleep(0)
    await served.server.close()


async def test_a_caller_with_tls_does_not_talk_to_a_server_without(
    served: Served, tmp_path: Path
) -> None:
    with served.caller(CREDENTIALS._replace(tls=tls(tmp_path, "callboard"))) as call:
        assert await call([1]) == BY_RAY
    assert served.actor.calls == 0


async def test_files_of_tls_that_are_not_there_leave_the_actor_to_ray(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pem")
    server = await listening(
        tmp_path, ACTOR, {}, transport_host="127.0.0.1", deployment_key=KEY,
        transport_tls_certificate=absent, transport_tls_key=absent, transport_tls_ca=absent,
    )  # fmt: skip
    assert server.endpoint == ""
    await server.close()
