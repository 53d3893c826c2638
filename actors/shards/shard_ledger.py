"""A runner's access to the ledger: counts the commands of each shard that have no outcome yet.

A shard is handed off when all of its commands have outcomes. If the ledger refuses a command as
STALE, another member holds the command's shard. The shard is dropped before the command's callback
runs, so the callback finds that the workflow is not driven here. The open commands of a restore are
also counted separately, so that the restore can limit their number. Implements `LedgerPort`.
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
        of: Any = command  # a runner submits only commands that carry a workflow id and an epoch
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
        finally:  # last, so the count stays above 0 if `done` submits the next command
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
        """Count the commands that are submitted in this block. The block must not await."""
        self._is_counting = True
        try:
            yield
        finally:
            self._is_counting = False

    async def wait_counted(self, most: int) -> None:
        """Return when at most `most` of the counted commands have no outcome."""
        while self._counted > most:
            self._answered.clear()
            await self._answered.wait()

    async def settled(self, shard: int) -> None:
        """Return when every command of a shard has its outcome."""
        if shard not in self._open:
            return
        waiting = self._settled.get(shard)
        if waiting is None:
            waiting = self._settled[shard] = asyncio.get_running_loop().create_future()
        await asyncio.shield(waiting)
