"""Keeps an attack at a share of a core, what it costs the service included.

The measuring process knows the CPU and sets a rate; the attacking process lets that many units of
work begin a second. A unit is what the attack repeats: a request, or a round of them.
Decision 0113.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from ctypes import c_double, c_longlong
from multiprocessing import get_context
from typing import Protocol, cast

TICK_S = 0.1
# Within this time what was used too little or too much is made up for.
HORIZON_S = 2.0
UNIT_CPU_S_MIN = 20e-6


class Shared(Protocol):
    """A number that two processes see (`multiprocessing.Value`)."""

    value: float


def next_rate(
    *,
    cap: float,
    elapsed_s: float,
    spent_s: float,
    started: int,
    rate: float,
    first_rate: float,
) -> float:
    """Return how many units a second an attack may begin.

    Args:
        cap: the share of a core that it may use on average.
        elapsed_s: since its beginning, seconds.
        spent_s: CPU seconds used by the attacker and, for it, by the service.
        started: units begun so far.
        rate: the rate so far; the new one is at most twice as high.
        first_rate: the rate while nothing is known.
    """
    if started == 0:
        return first_rate
    unit_s = max(spent_s / started, UNIT_CPU_S_MIN)
    spare_s = cap * elapsed_s - spent_s
    wanted = (cap + spare_s / HORIZON_S) / unit_s
    return max(0.0, min(wanted, 2 * rate + first_rate))


class Gate:
    """The attacker's side: units begin when they may.

    Args:
        rate: units a second, set by the measuring process.
        started: counts the units begun.
    """

    def __init__(self, rate: Shared, started: Shared) -> None:
        self._rate = rate
        self._started = started
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tokens = 1.0

    async def take(self) -> None:
        """Return when one more unit may begin."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def pace(self) -> None:
        """Let units begin, until cancelled."""
        before = time.monotonic()
        while True:
            now = time.monotonic()
            gained = self._rate.value * (now - before)
            before = now
            # What nothing waited for is not saved up, beyond one tick.
            most = max(1.0, 2 * TICK_S * self._rate.value)
            self._tokens = min(self._tokens + gained, most)
            while self._tokens >= 1 and self._waiting:
                future = self._waiting.popleft()
                if future.done():
                    continue
                self._tokens -= 1
                self._started.value += 1
                future.set_result(None)
            await asyncio.sleep(TICK_S)


def shared_numbers() -> tuple[Shared, Shared]:
    """Return a rate and a count for two processes; each is written by one of them only."""
    context = get_context("spawn")
    # Without a lock the value itself is returned, not the wrapper that its stub declares.
    rate = cast(Shared, context.Value(c_double, 0.0, lock=False))
    return rate, cast(Shared, context.Value(c_longlong, 0, lock=False))
