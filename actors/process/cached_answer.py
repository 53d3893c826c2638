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
        self._asking: asyncio.Task[Answer] | None = None
        self._told: tuple[float, Answer] | None = None

    def __repr__(self) -> str:
        return f"<CachedAnswer is_asking={self._asking is not None}>"

    async def get(self) -> Answer:
        """Return the answer, asked for now if the last one is too old.

        Raises: whatever the call raises; all that wait for it get it, and it is not kept.
        """
        told = self._told
        if told is not None and self._clock() - told[0] < self._age_max_s:
            return told[1]
        if self._asking is None:
            # A task of its own: the first asker may leave.
            self._asking = asyncio.ensure_future(self._refresh())
            self._asking.add_done_callback(self._is_asked)
        return await asyncio.shield(self._asking)

    async def _refresh(self) -> Answer:
        answer = await self._ask()
        self._told = (self._clock(), answer)
        return answer

    def _is_asked(self, task: asyncio.Task[Answer]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # also when all that asked have left
