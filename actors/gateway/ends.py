"""Requests of one replica that wait for the ends of workflows, and the notices that wake them.

Knows nothing of who sends the notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from actors.transport.messages import WorkflowEnd
from core.shards.shard import shard_of


class Ended(NamedTuple):
    """A workflow has ended. `told`: what its owner told with that; None: its rows are read."""

    told: WorkflowEnd | None = None


class Ends:
    """Who waits for which workflow.

    Args:
        kept_max: most notices that are kept for a request that does not wait yet.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._waiting: dict[str, set[asyncio.Future[Ended]]] = {}
        self._kept: dict[str, None] = {}

    @contextmanager
    def awaited(self, workflow_id: str) -> Iterator[asyncio.Future[Ended]]:
        """Give a future that is done once the workflow's end is told of, or was before."""
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
        """Return the workflows of these shards that are waited for."""
        return [name for name in self._waiting if shard_of(name) in shards]

    def tell(self, workflow_id: str, told: WorkflowEnd | None = None) -> None:
        """Wake who waits for a workflow that has ended."""
        futures = self._waiting.get(workflow_id)
        if futures is None:
            # The notice has come before the reply to the publish, or its client has left: what was
            # told would lie here with it.
            self._kept[workflow_id] = None
            while len(self._kept) > self._kept_max:
                del self._kept[next(iter(self._kept))]
            return
        for future in futures:
            if not future.done():
                future.set_result(Ended(told))
