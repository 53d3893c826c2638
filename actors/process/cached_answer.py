"""The newest answer to one question: however many ask, it is asked once at a time, and rarely.

Spec: Versioning 2 (health); decision 0103.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class CachedAnswer(Generic[Answer]):
    """An answer that is good for a while.

    Args:
        ask: finds it out; one call is under way at a time.
        age_max_s: for how long it is told, counted from the end of its call.
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
        """Return the answer, asked for now if the last one is too old.

        Raises: whatever the call raises; all that wait for it get it, and it is not kept.
        """
        cached = self._cached
        if cached is not None and self._clock() - cached[0] < self._age_max_s:
            return cached[1]
        if self._refreshing is None:
            # A task of its own: the first asker may leave.
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
            task.exception()  # also when all that asked have left
