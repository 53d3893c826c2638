"""Slices, the watchdog of turns, the clock: what they measure, under clocks of the tests own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from actors.process.loop_clock import SteadyTime
from actors.process.loop_watchdog import TurnWatchdog
from actors.process.slices import Slices, run_in_slices
from tests.platform.waiting import until

MS = 1_000_000


class Ticking:
    """A clock in nanoseconds that each piece of work moves."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


async def turns_of(pieces: int, piece_ms: float, slice_ms: int) -> tuple[int, float]:
    """Work in slices; return how often the loop turned and the longest stretch without a turn."""
    clock, turns, longest_ns, since_ns = Ticking(), 0, 0, 0

    async def count() -> None:
        nonlocal turns, longest_ns, since_ns
        while True:
            longest_ns, since_ns = max(longest_ns, clock.ns - since_ns), clock.ns
            turns += 1
            await asyncio.sleep(0)

    def work() -> Iterator[None]:
        for _ in range(pieces):
            clock.ns += int(piece_ms * MS)
            yield

    counter = asyncio.create_task(count())
    await asyncio.sleep(0)
    await run_in_slices(work(), Slices(slice_ms, now_ns=clock.now_ns))
    await asyncio.sleep(0)
    counter.cancel()
    return turns, longest_ns / MS


@pytest.mark.parametrize(
    ("pieces", "piece_ms", "most_ms"), [(1_000, 1.0, 5.0), (10_000, 0.1, 5.1), (20, 8.0, 8.0)]
)
async def test_no_stretch_of_work_is_longer_than_a_slice_and_its_last_piece(
    pieces: int, piece_ms: float, most_ms: float
) -> None:
    turns, longest_ms = await turns_of(pieces, piece_ms, 5)
    assert longest_ms <= most_ms
    assert turns >= pieces * piece_ms / most_ms


async def test_short_work_does_not_turn_the_loop() -> None:
    turns, _ = await turns_of(10, 0.1, 5)
    assert turns <= 2


async def test_watchdog_stands_still_while_its_loop_is_held() -> None:
    watchdog = TurnWatchdog("test")
    watchdog.start()
    await until(lambda: watchdog.turns >= 2)
    before = watchdog.turns
    sum(range(1_000_000))  # holds the loop
    assert watchdog.turns == before
    watchdog.stop()


@pytest.mark.parametrize("step_ms", [-1, -60_000, -(10**9)])
def test_clock_never_goes_back_and_goes_on_when_wall_time_steps_back(step_ms: int) -> None:
    """A latency below zero hit a CHECK of the statistics and killed the writer."""
    wall_ms, monotonic_ms = 10**12, 0
    clock = SteadyTime(lambda: wall_ms * MS, lambda: monotonic_ms * MS)
    times = [clock.now_ms()]
    wall_ms += step_ms
    for _ in range(200):
        wall_ms, monotonic_ms = wall_ms + 10, monotonic_ms + 10
        times.append(clock.now_ms())
    assert times == sorted(times)
    assert 1_800 - 1 <= times[-1] - times[0] <= 2_000, "about the time that has passed"


def test_clock_follows_wall_time_forwards_and_meets_it_again() -> None:
    wall_ms, monotonic_ms = 10**12, 0
    clock = SteadyTime(lambda: wall_ms * MS, lambda: monotonic_ms * MS)
    wall_ms += 5_000
    assert clock.now_ms() == wall_ms
    wall_ms -= 100
    for _ in range(200):
        wall_ms, monotonic_ms = wall_ms + 10, monotonic_ms + 10
        clock.now_ms()
    assert clock.now_ms() == wall_ms
