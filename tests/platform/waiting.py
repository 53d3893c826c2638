"""Waits for what the processes of a deployment, or tasks of the test's own loop, do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count

# Turns of the loop in which `until` does not sleep: what its own loop does is seen at once.
_TURNS = 100


def wait_until(condition: Callable[[], bool], deadline_s: float = 120.0) -> None:
    """Wait for a condition; the deadline is for a broken program, not for a slow machine."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)


async def until(condition: Callable[[], object], deadline_s: float = 60.0) -> None:
    """Let the loop go on until a condition holds; the deadline is for a broken program."""
    async with asyncio.timeout(deadline_s):
        for turn in count():
            if condition():
                return
            await asyncio.sleep(0 if turn < _TURNS else 0.005)
