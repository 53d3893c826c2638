"""Measures the turns of a process's event loop and counts its ticks as a sign of life.

A tick is due every `TICK_MS`; its delay is the length of the turns before it. Other threads can
read the count of ticks while the loop is blocked: a growing count means that the loop works, a
constant count that the process is frozen or stuck.
design.md section 3 (no turn of an event loop lasts > 10 ms). Decisions 0091 and 0092.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger("callboard.turns")

TICK_MS: Final = 50
LONG_TURN_MS: Final = 10
# Shorter turns are counted only: on a busy machine the scheduler alone causes them.
LOGGED_TURN_MS: Final = 250


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """Counters since the watchdog was started.

    `turns`: ticks. `long`: ticks more than `LONG_TURN_MS` late. `longest_ms`: the longest delay.
    """

    turns: int
    long: int
    longest_ms: int


class TurnWatchdog:
    """Measures the turns of the running loop; must be created on that loop.

    Args:
        name: the process's name, for the log.
        now_s: a clock, seconds; None: the loop's own.
        on_long: receives the seconds of each long turn.
    """

    def __init__(
        self,
        name: str,
        now_s: Callable[[], float] | None = None,
        *,
        on_long: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time if now_s is None else now_s
        self._on_long = on_long
        self._turns = self._long = self._longest_ms = 0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<TurnWatchdog {self._name} {self.statistics()}>"

    @property
    def turns(self) -> int:
        """Return the count of ticks; any thread may read it."""
        return self._turns

    def statistics(self) -> TurnStatistics:
        """Return the counters."""
        return TurnStatistics(self._turns, self._long, self._longest_ms)

    def start(self) -> None:
        """Schedule the next tick."""
        due_s = self._now_s() + TICK_MS / 1000
        self._timer = self._loop.call_later(TICK_MS / 1000, self.tick, due_s)

    def stop(self) -> None:
        """Cancel the next tick."""
        if self._timer is not None:
            self._timer.cancel()

    def tick(self, due_s: float) -> None:
        """Count a tick that was due at this time, and schedule the next."""
        late_ms = int((self._now_s() - due_s) * 1000)
        self._turns += 1
        if late_ms > LONG_TURN_MS:
            self._long += 1
            self._on_long(late_ms / 1000)
            self._longest_ms = max(self._longest_ms, late_ms)
            if late_ms > LOGGED_TURN_MS:
                log.warning("long turn of the loop process=%s ms=%d", self._name, late_ms)
        self.start()
