"""Runs a background task, never twice at the same time. Requests during a run are merged into one
following run.

This file does not know what the task does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from core.errors import ServiceError

log = logging.getLogger("callboard.ledger")


class MergedRuns:
    """Runs one background task.

    Args:
        name: the task's name in log messages.
        work: the task. An exception is logged and does not prevent later runs; a `ServiceError` is
            logged as a warning, because a later run repeats the work.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._work = work
        self._is_wanted = False
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def soon(self) -> None:
        """Request a run that begins after this call."""
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def done(self) -> None:
        """Return when a run that began after this call has ended, successful or not."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ended)
        self.soon()
        await ended

    async def close(self) -> None:
        """Cancel the current run, if there is one."""
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
                except Exception:  # the edge of the task: later runs must still happen
                    log.exception("work failed name=%s", self._name)
                finally:
                    for ended in waiting:
                        # The caller may have been cancelled.
                        if not ended.done():
                            ended.set_result(None)
        finally:
            self._task = None
