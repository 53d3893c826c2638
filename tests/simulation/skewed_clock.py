"""Virtual time: it jumps from one due callback to the next, so that hours of waiting take no time.

Implements `actors.ports.Clock`. Callbacks due at the same microsecond run in the order in
which they were set, so that a seed alone decides everything.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

START_MS = 1_700_000_000_000
US = 1_000  # microseconds of a millisecond


class VirtualTimer:
    """A callback that is due later; cancelled ones are skipped when their time comes."""

    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        """Forget the callback."""
        self.callback = None


class VirtualClock:
    """Virtual time, in milliseconds for the world and in microseconds for event loops."""

    def __init__(self) -> None:
        self.now_us = START_MS * US
        self._due: list[tuple[int, int, VirtualTimer]] = []
        self._count = 0

    def __repr__(self) -> str:
        return f"<VirtualClock +{self.now_ms() - START_MS} ms, {len(self._due)} due>"

    def now_ms(self) -> int:
        """Return the virtual time."""
        return self.now_us // US

    def call_at(self, at_ms: int, callback: Callable[..., Any], *arguments: Any) -> VirtualTimer:
        """Call back at that time, or as the next thing when it has passed."""
        return self.call_at_us(at_ms * US, callback, *arguments)

    def call_in(self, delay_ms: int, callback: Callable[..., Any], *arguments: Any) -> VirtualTimer:
        """Call back after a delay in milliseconds."""
        return self.call_at_us(self.now_us + delay_ms * US, callback, *arguments)

    def call_at_us(self, at_us: int, callback: Callable[..., Any], *arguments: Any) -> VirtualTimer:
        """As `call_at`, with the time in microseconds."""
        timer = VirtualTimer(callback, arguments)
        self._count += 1
        heapq.heappush(self._due, (max(at_us, self.now_us), self._count, timer))
        return timer

    def run(self) -> None:
        """Run until nothing is due any more."""
        due = self._due
        while due:
            at_us, _, timer = heapq.heappop(due)
            if timer.callback is not None:
                self.now_us = at_us
                timer.callback(*timer.arguments)

    def run_until(self, at_ms: int, *, while_not: Callable[[], bool] = lambda: False) -> None:
        """Run what is due until a time, which it is then, or until the condition holds."""
        due = self._due
        while due and due[0][0] <= at_ms * US and not while_not():
            at_us, _, timer = heapq.heappop(due)
            if timer.callback is not None:
                self.now_us = at_us
                timer.callback(*timer.arguments)
        if not while_not():
            self.now_us = max(self.now_us, at_ms * US)


class MachineClock:
    """The clock of one machine: it runs at a rate of its own and stands still while suspended.

    `boot_us` runs on meanwhile, as CLOCK_BOOTTIME does. What is due while the machine is suspended
    is due later by as much, as with CLOCK_MONOTONIC.

    Args:
        clock: the true time.
        rate: microseconds of this clock in one of the true time.
        offset_us: by which it is ahead at the start.
    """

    def __init__(self, clock: VirtualClock, rate: float = 1.0, offset_us: int = 0) -> None:
        self._clock = clock
        self.rate = rate
        self._began_us = clock.now_us
        self._offset_us = offset_us
        self._suspended_us = 0  # of its own time, in all
        self._since_us: int | None = None  # its boot time when it was suspended
        self._kept: list[tuple[int, VirtualTimer]] = []

    def __repr__(self) -> str:
        return f"<MachineClock rate={self.rate:.3f} suspended={self.is_suspended}>"

    @property
    def is_suspended(self) -> bool:
        """Whether it stands still."""
        return self._since_us is not None

    @property
    def boot_us(self) -> int:
        """The time that runs always."""
        return self._offset_us + math.floor((self._clock.now_us - self._began_us) * self.rate)

    @property
    def now_us(self) -> int:
        """The time that stands still while the machine is suspended."""
        now_us = self.boot_us if self._since_us is None else self._since_us
        return now_us - self._suspended_us

    def suspend(self) -> None:
        """Stand still."""
        assert self._since_us is None
        self._since_us = self.boot_us

    def resume(self) -> None:
        """Run on."""
        assert self._since_us is not None
        self._suspended_us += self.boot_us - self._since_us
        self._since_us = None
        kept, self._kept = self._kept, []
        for at_us, timer in kept:
            self._set(at_us, timer)

    def call_at_us(self, at_us: int, callback: Callable[..., Any], *arguments: Any) -> VirtualTimer:
        """Call back at that time of this clock, or as the next thing when it has passed."""
        timer = VirtualTimer(callback, arguments)
        self._set(at_us, timer)
        return timer

    def _set(self, at_us: int, timer: VirtualTimer) -> None:
        left_us = math.ceil(max(0, at_us - self.now_us) / self.rate)
        self._clock.call_at_us(self._clock.now_us + left_us, self._come_due, at_us, timer)

    def _come_due(self, at_us: int, timer: VirtualTimer) -> None:
        if timer.callback is None:
            return
        if self.is_suspended:
            self._kept.append((at_us, timer))
        elif self.now_us < at_us:  # it stood still in between
            self._set(at_us, timer)
        else:
            timer.callback(*timer.arguments)
