"""Lets the requests of a replica wait for the ends of workflows, and wakes them by notices.

This module does not know the processes that send the notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from actors.transport.messages import WorkflowEnd
from core.shards.shard import shard_of


class Ended(NamedTuple):
    """A notice that a workflow has ended.

    `told`: the end as the workflow's owner sent it. None: read the workflow's rows instead.
    """

    told: WorkflowEnd | None = None


class EndWaiters:
    """The waiting requests of each workflow.

    Args:
        kept_max: the maximum number of stored ids of ended workflows that no request waits for yet.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._waiting: dict[str, set[asyncio.Future[Ended]]] = {}
        self._kept: dict[str, None] = {}

    @contextmanager
    def awaited(self, workflow_id: str) -> Iterator[asyncio.Future[Ended]]:
        """Yield a future that is done when the notice of the workflow's end arrives.

        If the notice arrived before this call and is still stored, the future is done at once.
        """
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(workflow_id, set())
        waiting.add(future)
        if workflow_id in self._kept:
            del self._kept[workflow_id]
            future.set_result(Ended())
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting:
                del self._waiting[workflow_id]

    def awaited_in(self, shards: Collection[int]) -> list[str]:
        """Return the ids of the workflows of these shards that requests wait for."""
        return [name for name in self._waiting if shard_of(name) in shards]

    def tell(self, workflow_id: str, told: WorkflowEnd | None = None) -> None:
        """Wake the requests that wait for a workflow that has ended."""
        futures = self._waiting.get(workflow_id)
        if futures is None:
            # The notice arrived before the reply to the publish, or the client has disconnected.
            # Only the id is stored: a stored `told` would hold the workflow's results in memory.
            self._kept[workflow_id] = None
            while len(self._kept) > self._kept_max:
                del self._kept[next(iter(self._kept))]
            return
        for future in futures:
            if not future.done():
                future.set_result(Ended(told))
