"""The clock of a process: wall time that never goes back, and callbacks on its event loop.

Records contain wall time, and durations are differences of wall times, so the clock must not go
back. While the machine's wall time goes forward, the clock shows it. If the wall time steps back,
the clock continues with slowed monotonic time until the wall time has caught up.
Decision process-liveness-and-standby.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from actors.ports import Timer

# While wall time is behind the clock, the clock counts 9 of 10 monotonic milliseconds.
_SLOWED: Final = (9, 10)
_MS: Final = 1_000_000

log = logging.getLogger("callboard.process")


def monotonic_ms() -> int:
    """Return monotonic time in milliseconds, for durations within one process."""
    return time.monotonic_ns() // _MS


def wall_ms() -> int:
    """Return the machine's wall time, Unix milliseconds."""
    return time.time_ns() // _MS


async def every(seconds: float, work: Callable[[], Awaitable[object]], name: str) -> None:
    """Call `work` repeatedly until cancelled, with a pause after each call; log failures.

    Args:
        seconds: the pause between the end of a call and the next call.
        work: the function to call.
        name: the name of the work, for log messages.
    """
    while True:
        try:
            await work()
        except Exception:  # the edge of the loop: a failure must not end it
            log.exception("%s failed", name)
        await asyncio.sleep(seconds)


class SteadyTime:
    """Unix time in milliseconds that never goes back.

    Args:
        wall_ns: returns the machine's wall time, nanoseconds; it may step back.
        monotonic_ns: returns the machine's monotonic time, nanoseconds.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._last_ns = wall_ns()
        self._read_ns = monotonic_ns()

    def now_ms(self) -> int:
        """Return Unix time in milliseconds, never less than the last returned time."""
        wall_ns, read_ns = self._wall_ns(), self._monotonic_ns()
        if wall_ns < self._last_ns:
            counted, of = _SLOWED
            wall_ns = self._last_ns + (read_ns - self._read_ns) * counted // of
        self._last_ns, self._read_ns = wall_ns, read_ns
        return wall_ns // _MS


class LoopClock:
    """Implements `actors.ports.Clock` on the running event loop.

    Args:
        steady: the time source; None: the machine's time.
    """

    # Returns Unix time in milliseconds, never less than the last returned time.
    now_ms: Callable[[], int]

    def __init__(self, steady: SteadyTime | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_ms = (SteadyTime() if steady is None else steady).now_ms

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer:
        """Call `callback` at a time, Unix milliseconds; a past time means the next turn."""
        delay_s = max(0, at_ms - self.now_ms()) / 1000
        return self._loop.call_later(delay_s, callback, *arguments)
