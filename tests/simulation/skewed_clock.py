"""Virtual time: it jumps from one due callback to the next, so that hours of waiting take no time.

Implements `actors.ports.Clock`. Callbacks due at the same microsecond run in the order in
which they were set, so that a seed alone decides everything.
"""

from __future__ import annotations

import heapq
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
