"""The ledger as a runner sees it: knows which commands of each shard have no outcome yet.

A shard is handed over when none of its commands is open. A command that the ledger refuses as STALE
tells that its shard is another member's now; that shard is dropped before the command's own
callback runs, so that the callback finds the workflow as not driven here. The commands of restored
pages are counted besides, so that few of them are open. Implements `LedgerPort`.
Decision workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from actors.ports import LedgerPort
from core.shards.shard import shard_of
from ledger.commands import Command, Outcome, OutcomeStatus


class ShardLedger:
    """Counts the open commands of each shard.

    Args:
        ledger: commits the commands.
        on_stale: receives the shard of a command that was refused as STALE, with the epoch that the
            command carried.
    """

    def __init__(self, ledger: LedgerPort, on_stale: Callable[[int, int], None]) -> None:
        self._ledger = ledger
        self._on_stale = on_stale
        self._open: dict[int, int] = {}
        self._settled: dict[int, asyncio.Future[None]] = {}
        self._is_counting = False
        self._counted = 0
        self._answered = asyncio.Event()

    def has_room(self, payer: str) -> bool:
        """Implement `LedgerPort`."""
        return self._ledger.has_room(payer)

    def submit(self, command: Command, done: Callable[[Outcome], None], payer: str = "") -> None:
        """Implement `LedgerPort` for the commands of workflows."""
        of: Any = command  # a command of a workflow, of which a runner has no others
        shard, epoch = shard_of(of.workflow_id), of.shard_epoch
        self._open[shard] = self._open.get(shard, 0) + 1
        if self._is_counting:
            self._counted += 1
            done = partial(self._answer_counted, done)
        self._ledger.submit(command, partial(self._close, shard, epoch, done), payer)

    def _close(
        self, shard: int, epoch: int, done: Callable[[Outcome], None], outcome: Outcome
    ) -> None:
        try:
            if outcome.status is OutcomeStatus.STALE:
                self._on_stale(shard, epoch)
            done(outcome)
        finally:  # what `done` submits is counted before this one is not
            self._open[shard] -= 1
            if not self._open[shard]:
                del self._open[shard]
                waiting = self._settled.pop(shard, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)

    def _answer_counted(self, done: Callable[[Outcome], None], outcome: Outcome) -> None:
        self._counted -= 1
        self._answered.set()
        done(outcome)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is submitted in this block, which may not await."""
        self._is_counting = True
        try:
            yield
        finally:
            self._is_counting = False

    async def wait_counted(self, most: int) -> None:
        """Return when at most so many of the counted commands have no outcome."""
        while self._counted > most:
            self._answered.clear()
            await self._answered.wait()

    async def settled(self, shard: int) -> None:
        """Return when no command of a shard is without its outcome."""
        if shard not in self._open:
            return
        waiting = self._settled.get(shard)
        if waiting is None:
            waiting = self._settled[shard] = asyncio.get_running_loop().create_future()
        await asyncio.shield(waiting)
