"""A cached value that callers share; they also share the call that refreshes it.

Reference: features.md (Heartbeats and health); decision fairness-and-long-work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class CachedAnswer(Generic[Answer]):
    """A cached value with a maximum age.

    Args:
        ask: returns a new value; one call is in flight at a time.
        age_max_s: how long a value is used, seconds after `ask` returned it.
        clock: returns monotonic time in seconds.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Answer]],
        *,
        age_max_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._age_max_s = age_max_s
        self._clock = clock
        self._refreshing = asyncio.Lock()
        self._cached: tuple[float, Answer] | None = None

    async def get(self) -> Answer:
        """Return the cached value; refresh it first if it is too old.

        Raises: the exception of `ask`. The error is not cached, so the next caller calls `ask`
        again.
        """
        async with self._refreshing:
            cached = self._cached
            if cached is None or self._clock() - cached[0] >= self._age_max_s:
                answer = await self._ask()
                cached = self._cached = (self._clock(), answer)
            return cached[1]
