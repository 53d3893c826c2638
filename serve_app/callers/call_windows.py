"""Counts calls per address in fixed windows of a minute, only in this replica's memory.

A client can get many addresses cheaply, so addresses get no rows in the database. Only a limited
number of addresses is counted separately. All further addresses share one count. The same class can
count the calls of DIDs. Decision limits-and-admission.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger.operational import WINDOW_MS

# The most addresses that a replica counts separately.
ADDRESSES_MAX: Final = 10_000


@dataclass(slots=True)
class Window:
    """The calls of one address in its current window, including the newest call."""

    used: int
    limit: int
    ends_ms: int

    @property
    def is_allowed(self) -> bool:
        """Whether the newest call is within the limit."""
        return self.used <= self.limit


class CallWindows:
    """Counts calls of one kind.

    Args:
        limit: calls per minute and address.
        addresses_max: the most addresses that are counted separately.
    """

    def __init__(self, limit: int, addresses_max: int) -> None:
        self._limit = limit
        self._addresses_max = addresses_max
        # Sorted by their begin. All windows have the same length, so they end in the same order.
        self._windows: dict[str, Window] = {}
        # The window that all addresses beyond `addresses_max` share.
        self._others = Window(0, limit, 0)

    def __repr__(self) -> str:
        return f"<CallWindows {len(self._windows)}/{self._addresses_max}>"

    def take(self, address: str, clock_ms: int) -> Window:
        """Count one call, and return its window. The call is permitted if `Window.is_allowed`.

        Args:
            address: the address.
            clock_ms: the time of a monotonic clock, milliseconds.
        """
        window = self._windows.get(address)
        if window is not None and clock_ms >= window.ends_ms:
            del self._windows[address]
            window = None
        if window is None:
            window = self._begun(address, clock_ms)
        # Counting stops at one above the limit: a higher count would make no difference.
        window.used = min(window.used + 1, self._limit + 1)
        return window

    def find(self, address: str, clock_ms: int) -> Window | None:
        """Return the current window of an address; None if the address has none."""
        window = self._windows.get(address)
        if window is None and len(self._windows) >= self._addresses_max:
            window = self._others
        return window if window is not None and clock_ms < window.ends_ms else None

    def give_back(self, address: str, clock_ms: int) -> None:
        """Undo the count of one call of an address."""
        window = self.find(address, clock_ms)
        if window is not None and window.used:
            window.used -= 1

    def _begun(self, address: str, clock_ms: int) -> Window:
        if len(self._windows) >= self._addresses_max:
            self._forget_ended(clock_ms)
        if len(self._windows) >= self._addresses_max:
            if clock_ms >= self._others.ends_ms:
                self._others = Window(0, self._limit, clock_ms + WINDOW_MS)
            return self._others
        window = Window(0, self._limit, clock_ms + WINDOW_MS)
        self._windows[address] = window
        return window

    def _forget_ended(self, clock_ms: int) -> None:
        ended = []
        for address, window in self._windows.items():
            if clock_ms < window.ends_ms:
                break
            ended.append(address)
        for address in ended:
            del self._windows[address]
