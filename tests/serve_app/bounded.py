"""Runs a test's coroutine for a bounded time, so that a broken program fails its test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

# For a broken program, not for a slow machine: what is run here takes three seconds at most.
WAIT_S_MAX = 20.0


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in a loop of its own.

    Raises:
        TimeoutError: what it waits for does not come.
    """

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await scenario()

    asyncio.run(bounded())
