"""The clock of a process: wall time that never goes back, and callbacks on its event loop.

Records carry wall time, and spans are differences of it, so it may not step back under a span. The
clock follows the machine's wall time forwards; when that steps back, this one goes on by monotonic
time, slowed down until wall time has caught up. Decision process-liveness-and-standby.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from actors.ports import Timer

# While wall time is behind, the clock counts nine of ten monotonic milliseconds.
_SLOWED: Final = (9, 10)
_MS: Final = 1_000_000

log = logging.getLogger("callboard.process")


def monotonic_ms() -> int:
    """Return monotonic time in milliseconds, for spans that one process measures."""
    return time.monotonic_ns() // _MS


def wall_ms() -> int:
    """Return the machine's wall time, Unix milliseconds."""
    return time.time_ns() // _MS


async def every(seconds: float, work: Callable[[], Awaitable[object]], name: str) -> None:
    """Do some work until cancelled, and pause after each time; a failure is logged."""
    while True:
        try:
            await work()
        except Exception:  # the edge of the loop: a failure must not end it
            log.exception("%s failed", name)
        await asyncio.sleep(seconds)


class SteadyTime:
    """Unix time in milliseconds that never goes back.

    Args:
        wall_ns: the machine's wall time, nanoseconds, which may step.
        monotonic_ns: its monotonic time, nanoseconds.
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
        """Return Unix time in milliseconds, never less than before."""
        wall_ns, read_ns = self._wall_ns(), self._monotonic_ns()
        if wall_ns < self._last_ns:
            counted, of = _SLOWED
            wall_ns = self._last_ns + (read_ns - self._read_ns) * counted // of
        self._last_ns, self._read_ns = wall_ns, read_ns
        return wall_ns // _MS


class LoopClock:
    """Implements `actors.ports.Clock` on the running event loop.

    Args:
        steady: the time; None: the machine's.
    """

    # Returns Unix time in milliseconds, never less than before.
    now_ms: Callable[[], int]

    def __init__(self, steady: SteadyTime | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_ms = (SteadyTime() if steady is None else steady).now_ms

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer:
        """Call back at that time, or at once when it has passed."""
        delay_s = max(0, at_ms - self.now_ms()) / 1000
        return self._loop.call_later(delay_s, callback, *arguments)
