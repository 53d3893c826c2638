"""One piece of work in the background, at most once at a time, however often it is asked for.

Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from core.errors import ServiceError

log = logging.getLogger("callboard.ledger")


class MergedRuns:
    """Runs of one piece of work; what is asked for during a run is one more run after it.

    Args:
        name: for messages.
        work: does it; an exception is logged, and the next run is not kept from beginning. A
            `ServiceError` is a warning: the work is left to a later run.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._work = work
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def soon(self) -> None:
        """Let a run begin after now."""
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def done(self) -> None:
        """Return when a run has ended that began after now, whatever came of it."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        self.soon()
        await ended

    async def close(self) -> None:
        """End the run that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                waiting, self._waiting = self._waiting, []
                try:
                    await self._work()
                except ServiceError as error:
                    log.warning("work ended name=%s error=%r", self._name, error)
                except Exception:  # the edge of the task: later runs have nothing to do with it
                    log.exception("work failed name=%s", self._name)
                finally:
                    for ended in waiting:
                        # One who has waited may have left.
                        if not ended.done():
                            ended.set_result(None)
        finally:
            self._task = None
