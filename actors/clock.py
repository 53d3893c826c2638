"""The real clock of a process: wall time, and callbacks on its event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from actors.ports import Timer


class LoopClock:
    """Implements `actors.ports.Clock` on the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def call_at(self, at_ms: int, callback: Callable[..., None], *arguments: Any) -> Timer:
        """Call back at that time, at once when it has passed."""
        delay_s = max(0, at_ms - self.now_ms()) / 1000
        return self._loop.call_later(delay_s, callback, *arguments)
