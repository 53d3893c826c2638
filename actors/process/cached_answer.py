"""A cached value that callers share: one refresh at a time, at most one per maximum age.

Reference: features.md (Heartbeats and health); decision fairness-and-long-work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class CachedAnswer(Generic[Answer]):
    """A value with a maximum age.

    Args:
        ask: returns a new value; one call is under way at a time.
        age_max_s: how long a value is returned, counted from the end of its call.
        clock: monotonic seconds.
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
        """Return the value, refreshed if it is too old.

        Raises: the exception of the call, which is not cached: the next waiting caller calls again.
        """
        async with self._refreshing:
            cached = self._cached
            if cached is None or self._clock() - cached[0] >= self._age_max_s:
                answer = await self._ask()
                cached = self._cached = (self._clock(), answer)
            return cached[1]
