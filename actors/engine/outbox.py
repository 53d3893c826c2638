"""Finished workflow ids, queued per gateway that waits for them.

One long poll per gateway empties its outbox; no message is sent per workflow. The outbox is
bounded: a gateway that stops polling loses the oldest ids and finds those workflows in the rows.
contract.md section 6 (`Prefer: wait`).
"""

from __future__ import annotations

import asyncio
from collections import deque

OUTBOX_SIZE_MAX = 100_000
WATCHERS_MAX = 1_024


class Outboxes:
    """Finished workflow ids by watcher."""

    def __init__(self) -> None:
        self._boxes: dict[str, deque[str]] = {}
        self._waiting: dict[str, asyncio.Event] = {}

    def put(self, workflow_id: str, watchers: set[str]) -> None:
        """Queue a finished workflow for each of its watchers."""
        for watcher in watchers:
            box = self._boxes.get(watcher)
            if box is None:
                if len(self._boxes) >= WATCHERS_MAX:
                    self._boxes.pop(next(iter(self._boxes)))
                box = self._boxes[watcher] = deque(maxlen=OUTBOX_SIZE_MAX)
            box.append(workflow_id)
            if watcher in self._waiting:
                self._waiting[watcher].set()

    async def take(self, watcher: str, timeout_s: float) -> list[str]:
        """Return the watcher's finished workflows; wait at most `timeout_s` for the first."""
        if not self._boxes.get(watcher):
            event = self._waiting.setdefault(watcher, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), timeout_s)
            except TimeoutError:
                return []
            finally:
                self._waiting.pop(watcher, None)
        return list(self._boxes.pop(watcher, ()))
