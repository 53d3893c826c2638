"""Waits for what the processes of a deployment do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], deadline_s: float = 120.0) -> None:
    """Wait for a condition; the deadline is for a broken program, not for a slow machine."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)
