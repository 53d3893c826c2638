"""A cached value that callers share: one refresh at a time, at most one per maximum age.

Spec: Versioning 2 (health); decision fairness-and-long-work.
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
        self._refreshing: asyncio.Task[Answer] | None = None
        self._cached: tuple[float, Answer] | None = None

    def __repr__(self) -> str:
        return f"<CachedAnswer is_refreshing={self._refreshing is not None}>"

    async def get(self) -> Answer:
        """Return the value, refreshed if it is too old.

        Raises: the exception of the call, to every waiting caller; it is not cached.
        """
        cached = self._cached
        if cached is not None and self._clock() - cached[0] < self._age_max_s:
            return cached[1]
        if self._refreshing is None:
            # A task of its own, because the first caller may be cancelled.
            self._refreshing = asyncio.ensure_future(self._refresh())
            self._refreshing.add_done_callback(self._clear_refresh)
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> Answer:
        answer = await self._ask()
        self._cached = (self._clock(), answer)
        return answer

    def _clear_refresh(self, task: asyncio.Task[Answer]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # marks it as retrieved, also when every caller was cancelled
