"""Limits an attack to a share of a core, its cost in the service included.

The measuring process measures the CPU and sets a rate; the attacking process starts that many units
a second. A unit is a request, or a round of requests. Decision 0113.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from ctypes import c_double, c_longlong
from multiprocessing import get_context
from typing import Protocol, cast

TICK_S = 0.1
# A deviation from the cap is corrected within this time.
HORIZON_S = 2.0
UNIT_CPU_S_MIN = 20e-6


class Shared(Protocol):
    """A number shared by two processes (`multiprocessing.Value`)."""

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
    """Return how many units a second an attack may start.

    Args:
        cap: the share of a core that the attack may use on average.
        elapsed_s: seconds since its start.
        spent_s: CPU seconds of the attacker and of the service on its behalf.
        started: units started so far.
        rate: the current rate; the new one is at most twice as high.
        first_rate: the rate before the first measurement.
    """
    if started == 0:
        return first_rate
    unit_s = max(spent_s / started, UNIT_CPU_S_MIN)
    spare_s = cap * elapsed_s - spent_s
    wanted = (cap + spare_s / HORIZON_S) / unit_s
    return max(0.0, min(wanted, 2 * rate + first_rate))


class Gate:
    """The attacker's side: a rate limiter of units.

    Args:
        rate: units a second, set by the measuring process.
        started: counts the started units.
    """

    def __init__(self, rate: Shared, started: Shared) -> None:
        self._rate = rate
        self._started = started
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tokens = 1.0

    async def take(self) -> None:
        """Return when the next unit may start."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def pace(self) -> None:
        """Release units at the rate, until cancelled."""
        before = time.monotonic()
        while True:
            now = time.monotonic()
            gained = self._rate.value * (now - before)
            before = now
            # Unused units accumulate for one tick at most.
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
    """Return a rate and a count shared by two processes; each has one writer."""
    context = get_context("spawn")
    # Without a lock, `Value` returns the value itself, not the wrapper that its stub declares.
    rate = cast(Shared, context.Value(c_double, 0.0, lock=False))
    return rate, cast(Shared, context.Value(c_longlong, 0, lock=False))
