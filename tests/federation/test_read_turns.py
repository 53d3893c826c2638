"""What a client reads in one turn of the loop is bounded, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from msgspec.structs import replace

from federation import read_turns
from federation.http_connection import HttpReply
from federation.read_turns import RESUMED_MAX, TURN_BYTES_MAX, ReadTurns
from tests.federation.test_http_client import PATIENCE_S, client, post, replying, site

BOTH_LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]
PIECE = 32 * 1024


class Source:
    """Something to read from, of which each read brings `PIECE` bytes."""

    def __init__(self, turns: ReadTurns) -> None:
        self._turns = turns
        self.is_paused = False
        self.reads = 0

    def pause_reading(self) -> None:
        """Pause."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Go on, with one read."""
        self.is_paused = False
        self.read()

    def read(self) -> None:
        """Read once."""
        self.reads += 1
        self._turns.count(self, PIECE)


async def test_what_is_read_beyond_the_bound_of_a_turn_waits_for_later_ones() -> None:
    turns = ReadTurns()
    sources = [Source(turns) for _ in range(3 * RESUMED_MAX)]
    most = TURN_BYTES_MAX // PIECE

    def reads() -> int:
        return sum(source.reads for source in sources)

    for number in range(10 * most):
        source = sources[number % len(sources)]
        if not source.is_paused:
            source.read()
    assert reads() == most + len(sources)
    assert all(source.is_paused for source in sources)
    for turn in range(1, 4):
        await asyncio.sleep(0)
        resumed = turn * RESUMED_MAX
        assert reads() == most + len(sources) + resumed
    assert not any(source.is_paused for source in sources), "the longest paused first"


async def test_a_connection_that_raises_stops_no_other_that_has_paused() -> None:
    """None of them read again."""
    turns, raised = ReadTurns(), asyncio.Event()

    class Broken(Source):
        def resume_reading(self) -> None:
            raise RuntimeError("a defect")

    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda *_: raised.set())
    sources = [Broken(turns), *(Source(turns) for _ in range(RESUMED_MAX))]
    turns.count(sources[0], TURN_BYTES_MAX)
    for source in sources:
        source.read()
    assert all(source.is_paused for source in sources)
    for _ in range(3):
        await asyncio.sleep(0)
    loop.set_exception_handler(before)
    assert raised.is_set()
    assert [source.is_paused for source in sources] == [True] + [False] * RESUMED_MAX


async def test_small_reads_are_not_counted() -> None:
    turns = ReadTurns()
    source = Source(turns)
    for _ in range(1_000):
        turns.count(source, 1_000)
    assert not source.is_paused
    assert turns._next is None


@pytest.mark.parametrize("anyio_backend", BOTH_LOOPS)
@pytest.mark.parametrize("is_coded", [False, True])
async def test_replies_that_pause_are_whole(
    monkeypatch: pytest.MonkeyPatch, is_coded: bool
) -> None:
    monkeypatch.setattr(read_turns, "TURN_BYTES_MAX", 2 * PIECE)
    monkeypatch.setattr(read_turns, "RESUMED_MAX", 2)
    plain = bytes(range(256)) * 2_000
    sent = gzip.compress(plain) if is_coded else plain
    coding = b"Content-Encoding: gzip\r\n" if is_coded else b""
    reply = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (coding, len(sent), sent)
    async with site(replying(reply, reply)) as here, client() as mine:
        asked = replace(post(here.url), reply_bytes_max=len(plain))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):  # the second time on connections that have paused
                outcomes = await asyncio.gather(*(mine.request(asked) for _ in range(8)))
                bodies = [got.body for got in outcomes if isinstance(got, HttpReply)]
                assert bodies == [plain] * 8
