"""A clock that jumps from one due callback to the next: hours of waiting take no time.

Implements `actors.ports.Clock`. Callbacks due at the same millisecond run in the order in which
they were set, so that a seed alone decides everything.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

START_MS = 1_700_000_000_000


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
    """Virtual milliseconds."""

    def __init__(self) -> None:
        self._now_ms = START_MS
        self._due: list[tuple[int, int, VirtualTimer]] = []
        self._count = 0

    def __repr__(self) -> str:
        return f"<VirtualClock +{self._now_ms - START_MS} ms, {len(self._due)} due>"

    def now_ms(self) -> int:
        """Return the virtual time."""
        return self._now_ms

    def call_at(self, at_ms: int, callback: Callable[..., Any], *arguments: Any) -> VirtualTimer:
        """Call back at that time, or as the next thing when it has passed."""
        timer = VirtualTimer(callback, arguments)
        self._count += 1
        heapq.heappush(self._due, (max(at_ms, self._now_ms), self._count, timer))
        return timer

    def call_in(self, delay_ms: int, callback: Callable[..., Any], *arguments: Any) -> VirtualTimer:
        """Call back after a delay in milliseconds."""
        return self.call_at(self._now_ms + delay_ms, callback, *arguments)

    def run(self) -> None:
        """Run until nothing is due any more."""
        due = self._due
        while due:
            at_ms, _, timer = heapq.heappop(due)
            if timer.callback is not None:
                self._now_ms = at_ms
                timer.callback(*timer.arguments)

    def run_until(self, at_ms: int, *, while_not: Callable[[], bool] = lambda: False) -> None:
        """Run what is due until a time, which it is then, or until the condition holds."""
        due = self._due
        while due and due[0][0] <= at_ms and not while_not():
            now_ms, _, timer = heapq.heappop(due)
            if timer.callback is not None:
                self._now_ms = now_ms
                timer.callback(*timer.arguments)
        if not while_not():
            self._now_ms = max(self._now_ms, at_ms)
