"""What replies cost in one turn of the loop is bounded in time, and nothing of them is lost."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import socket
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
from msgspec.structs import replace

from federation.http_client import HttpClient
from federation.http_connection import Connection, Exchange, HttpReply, Outcome
from federation.read_budget import TURN_S, ReadBudget
from tests.federation.test_http_client import (
    PATIENCE_S,
    REPLY,
    Wire,
    client,
    post,
    replying,
    site,
    url_of,
    used_up,
)
from tests.platform.waiting import until

BOTH_LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]


class Clock:
    """A clock that stands still unless it is set on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return its time."""
        return self.now_s


class Work:
    """A connection with pieces of work, each of more than half the time of such a turn."""

    def __init__(
        self,
        clock: Clock,
        payer: str,
        pieces: int,
        done: list[str],
        piece_s: float = 1.2 * TURN_S,
    ) -> None:
        self.payer = payer
        self._piece_s = piece_s
        self._clock = clock
        self._pieces = pieces
        self._done = done

    def go_on(self) -> bool:
        """Do a piece."""
        self._clock.now_s += self._piece_s
        self._done.append(self.payer)
        self._pieces -= 1
        return self._pieces > 0


async def test_a_turn_ends_with_its_time_and_the_next_begins_with_the_loops() -> None:
    clock = Clock()
    turns = ReadBudget(clock)
    assert not turns.is_used_up()
    clock.now_s += 0.6 * TURN_S
    assert not turns.is_used_up()
    clock.now_s += 0.6 * TURN_S
    assert turns.is_used_up()
    assert turns.is_used_up()
    await asyncio.sleep(0)
    assert not turns.is_used_up()
    assert clock.now_s < turns.ends_s


async def test_work_goes_on_within_the_time_of_later_turns_payers_in_turn() -> None:
    clock, done = Clock(), list[str]()
    turns = ReadBudget(clock)
    for payer, pieces in (("busy", 3), ("busy", 1), ("busy", 1), ("other", 1)):
        turns.put(Work(clock, payer, pieces, done))
    assert not done
    for _ in range(3):
        await asyncio.sleep(0)
        assert turns.is_used_up(), "reads of the same turn come late"
    assert done == ["busy", "other", "busy", "busy", "busy", "busy"]
    await asyncio.sleep(0)
    assert turns._next is None
    clock.now_s += 1.0
    assert not turns.is_used_up()


async def test_what_waits_leaves_time_for_what_comes_and_none_of_it_to_the_next_turn() -> None:
    """Where 64 replies took the time of a turn, all that came were late from then on."""
    clock, done = Clock(), list[str]()
    turns = ReadBudget(clock)
    turns.put(Work(clock, "a", 1, done))
    await asyncio.sleep(0)
    assert done == ["a"]
    assert not turns.is_used_up(), "what comes is not late"
    clock.now_s += 0.8 * TURN_S + 1e-9
    assert turns.is_used_up()
    turns.put(Work(clock, "a", 1, done, piece_s=0.0))
    for _ in range(2):
        await asyncio.sleep(0)
    assert len(done) == 2
    assert turns._next is None
    assert turns.ends_s <= clock.now_s + TURN_S


async def test_work_that_raises_stops_no_other() -> None:
    clock, done, raised = Clock(), list[str](), list[object]()

    class Broken(Work):
        def go_on(self) -> bool:
            raise RuntimeError("a defect")

    turns = ReadBudget(clock)
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    for work in (Broken(clock, "a", 1, done), Work(clock, "b", 1, done)):
        turns.put(work)
    for _ in range(3):
        await asyncio.sleep(0)
    loop.set_exception_handler(before)
    assert [type(error) for error in raised] == [RuntimeError]
    assert done == ["b"]


async def test_a_dropped_connection_does_not_go_on() -> None:
    clock, done = Clock(), list[str]()
    turns = ReadBudget(clock)
    dropped, left = Work(clock, "a", 1, done), Work(clock, "b", 1, done)
    turns.put(dropped)
    turns.put(left)
    turns.drop(dropped)
    for _ in range(2):
        await asyncio.sleep(0)
    assert done == ["b"]


@asynccontextmanager
async def late_client() -> AsyncIterator[HttpClient]:
    """Run a client for which a look at the clock lasts longer than a turn."""
    async with client() as mine:
        mine.read_budget = ReadBudget(itertools.count(1.0).__next__)
        yield mine


@contextmanager
def answering_at_once(
    count: int, reply: bytes, context: ssl.SSLContext | None
) -> Iterator[tuple[int, threading.Event, Callable[[], bool]]]:
    """Run a server that answers all of its connections at the same time.

    Returns: its port, what is set when all have asked, and what answers them.
    """
    asked, answered, go = threading.Event(), threading.Event(), threading.Event()
    connections: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while len(connections) < count:
                one, _ = listening.accept()
                if context is not None:
                    one = context.wrap_socket(one, server_side=True)
                connections.append(one)
            for one in connections:
                while b"\r\n\r\n" not in one.recv(65_536):
                    pass
            asked.set()
            go.wait(PATIENCE_S)
            for one in connections:
                one.sendall(reply)
                if b"Content-Length" not in reply:
                    one.shutdown(socket.SHUT_WR)
            answered.set()

    def answer() -> bool:
        go.set()
        return answered.wait(PATIENCE_S)

    with socket.create_server(("127.0.0.1", 0), backlog=count) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1], asked, answer
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            go.set()
            thread.join()
            for one in connections:
                one.close()


@pytest.mark.parametrize("anyio_backend", BOTH_LOOPS)
@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("has_length", [True, False])
async def test_replies_that_come_at_once_are_judged_in_many_turns(
    trusted: ssl.SSLContext, size: int, *, has_length: bool, is_tls: bool
) -> None:
    """512 replies of 16 KB, each judged in 4 ms, were one turn of 2.2 s; as were their ends."""
    count, loop, clock = 24, asyncio.get_running_loop(), Clock()
    length = b"Content-Length: %d\r\n" % size if has_length else b""
    reply = b"HTTP/1.1 200 OK\r\n%b\r\n" % length + b"x" * size
    turn, judged_in, bodies = 0, Counter[int](), list[int]()
    all_done = loop.create_future()

    def done(outcome: Outcome) -> None:
        judged_in[turn] += 1
        clock.now_s += 0.75 * TURN_S
        bodies.append(len(outcome.body) if isinstance(outcome, HttpReply) else -1)
        if len(bodies) == count:
            all_done.set_result(None)

    with answering_at_once(count, reply, trusted if is_tls else None) as (port, asked, answer):
        async with client() as mine:
            mine.read_budget = ReadBudget(clock)
            request = post(f"{'https' if is_tls else 'http'}://localhost:{port}")
            request = replace(request, reply_bytes_max=size)
            for _ in range(count):
                mine.send(request, done)
            await until(lambda: asked.is_set())
            assert answer(), "the loop waits until all replies are there"
            async with asyncio.timeout(PATIENCE_S):
                while not all_done.done():
                    turn += 1
                    await asyncio.sleep(0)
    assert bodies == [size] * count
    # Four where the turn began within the time of another.
    assert max(judged_in.values()) <= 4
    assert not mine.read_budget._waiting


@pytest.mark.parametrize("anyio_backend", BOTH_LOOPS)
@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("is_coded", [False, True])
async def test_replies_that_come_late_are_whole(
    trusted: ssl.SSLContext, *, is_coded: bool, is_tls: bool
) -> None:
    plain = bytes(random.Random(1).choices(b"abcd", k=800_000))
    sent = gzip.compress(plain) if is_coded else plain
    coding = b"Content-Encoding: gzip\r\n" if is_coded else b""
    reply = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (coding, len(sent), sent)
    closing = reply.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    async with (
        site(replying(reply, closing), ssl=trusted if is_tls else None) as here,
        late_client() as mine,
    ):
        asked = replace(post(url_of(here, is_tls=is_tls)), reply_bytes_max=len(plain))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):  # the second time on connections that have paused
                outcomes = await asyncio.gather(*(mine.request(asked) for _ in range(8)))
                bodies = [got.body for got in outcomes if isinstance(got, HttpReply)]
                assert bodies == [plain] * 8
        assert here.connections == 8


async def test_a_request_that_is_cancelled_while_its_reply_waits_leaves_nothing() -> None:
    outcomes: list[Outcome] = []
    async with client() as mine:
        mine.read_budget = used_up()
        connection = Connection(mine, ("127.0.0.1", 1, False))
        connection.connection_made(Wire())
        exchange = Exchange(connection.server, 100, outcomes.append)
        connection.begin(exchange, b"", b"")
        buffer = connection.get_buffer(-1)
        buffer[: len(REPLY)] = REPLY
        connection.buffer_updated(len(REPLY))
        assert len(mine.read_budget._waiting) == 1
        exchange.cancel()
        assert not mine.read_budget._waiting
        assert not mine._connections
        for _ in range(3):
            await asyncio.sleep(0)
    assert not outcomes
