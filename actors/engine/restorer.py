"""Restores a member's stored workflows to its runner: those of shards, or single ones on request.

The restorer reads rows page by page, earliest deadlines first, and restores a page in slices.
Meanwhile the runner drives its workflows and accepts new ones. A page waits
for the outcomes of the pages' steps before it, of which few may be open, and for no other command:
what payers' running work has queued would keep everything stored from being driven. Each read is
retried until it succeeds, because no caller repeats the request. Requests that arrive during a read
share the next one, and so do shards that come to be held during a scan. Decisions
fairness-and-long-work, ledger-writer and workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, TypeVar

from actors.engine.runner import Runner
from actors.process.slices import Slices
from actors.shards.held_shards import HeldShards
from actors.shards.shard_ledger import ShardLedger
from core.errors import ServiceError
from core.shards.shard import shard_of
from ledger.features.unfinished import UnfinishedPages
from ledger.reads.stored import StoredWorkflow

log = logging.getLogger("callboard.owner")

Result = TypeVar("Result")

READ_RETRY_S: Final = 0.5
# Workflows in one read by ids.
IDS_MAX: Final = 100
# Steps of restored pages without an outcome, beyond which the next page waits: its payer's
# publishes queue behind them, and all others' behind their commit.
AHEAD_MAX: Final = 200


class Restorer:
    """Restores workflows of one member, in the background.

    Args:
        runner: drives the restored workflows.
        held: the shards of the member.
        rows: makes the reader of these shards' stored workflows, whose pages it keeps.
        refresh: refreshes the directory; raises `ServiceError` when it cannot.
        ledger: the runner's.
        is_skipped: whether a workflow is driven by a process of its own.
    """

    def __init__(
        self,
        runner: Runner,
        held: HeldShards,
        rows: Callable[[Sequence[int]], UnfinishedPages],
        *,
        refresh: Callable[[], Awaitable[None]],
        ledger: ShardLedger,
        is_skipped: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._runner = runner
        self._held = held
        self._rows = rows
        self._refresh = refresh
        self._ledger = ledger
        self._is_skipped = is_skipped
        # How many workflows were restored so far; any thread may read it.
        self.count = 0
        # Shards whose scan is wanted, and those of the scan under way.
        self._wanted: set[int] = set()
        self._scanning: set[int] = set()
        self._scanned: list[asyncio.Future[None]] = []
        self._requested: dict[str, None] = {}  # in order
        self._scan: asyncio.Task[None] | None = None
        self._single: asyncio.Task[None] | None = None

    @property
    def is_scanning(self) -> bool:
        """Whether unfinished workflows may still be undriven."""
        return self._scan is not None

    def is_restoring(self, workflow_id: str) -> bool:
        """Whether a workflow's shard is not read to its end: it may be unfinished and undriven."""
        return self.is_restoring_shard(shard_of(workflow_id))

    def is_restoring_shard(self, shard: int) -> bool:
        """Whether a shard is not read to its end."""
        return shard in self._scanning or shard in self._wanted

    def restore_shards(self, shards: Collection[int]) -> asyncio.Future[None]:
        """Restore every workflow of these shards that is not driven; the future is done then."""
        self._wanted.update(shards)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scanned.append(done)
        if self._scan is None:
            self._scan = asyncio.create_task(self._scan_all())
        return done

    def restore_one(self, workflow_id: str) -> None:
        """Read and restore one workflow in the background."""
        self._requested[workflow_id] = None
        if self._single is None:
            self._single = asyncio.create_task(self._read_requested())

    async def close(self) -> None:
        """End every task."""
        tasks = [task for task in (self._scan, self._single) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for done in self._scanned:
            done.cancel()

    # -- scan -------------------------------------------------------------------------------------

    async def _scan_all(self) -> None:
        try:
            while self._wanted or self._scanned:
                self._scanning, self._wanted = self._wanted, set()
                waiting, self._scanned = self._scanned, []
                try:
                    await self._scan_once()
                except Exception:  # the edge of the task: no stored workflow may stay undriven
                    log.exception("scan failed and is repeated")
                    self._scanned += waiting
                    self._wanted |= self._scanning
                    await asyncio.sleep(READ_RETRY_S)
                    continue
                for done in waiting:
                    if not done.done():
                        done.set_result(None)
        finally:
            self._scan = None
            self._scanning = set()

    async def _scan_once(self) -> None:
        shards = [shard for shard in sorted(self._scanning) if shard in self._held]
        if not shards:
            return
        rows, after = self._rows(shards), None
        while True:
            with self._runner.reads.open() as changed_ids:
                epochs = self._epochs_of(shards)
                workflows, after = await read_until_success(partial(rows.page, after))
                await self._restore_rows(workflows, changed_ids, epochs, self._ledger.counting)
            if after is None:
                return
            await self._ledger.wait_counted(AHEAD_MAX)

    def _epochs_of(self, shards: Iterable[int]) -> dict[int, int]:
        return {shard: self._held.epoch(shard) for shard in shards}

    # -- single workflows -------------------------------------------------------------------------

    async def _read_requested(self) -> None:
        try:
            while self._requested:
                ids = list(self._requested)[:IDS_MAX]
                for workflow_id in ids:
                    del self._requested[workflow_id]
                try:
                    await self.restore_ids(ids)
                except Exception:  # the edge of the task: later requests are read even so
                    log.exception("workflows not read again count=%d", len(ids))
        finally:
            self._single = None

    async def restore_ids(self, ids: Sequence[str]) -> None:
        """Read these workflows, at most `IDS_MAX`, and restore them; return when it is done."""
        # The directory first: a revocation may be the reason for this read.
        await read_until_success(self._refresh)
        with self._runner.reads.open() as changed_ids:
            shards = sorted({shard_of(workflow_id) for workflow_id in ids})
            rows, epochs = self._rows(shards), self._epochs_of(shards)
            workflows = await read_until_success(partial(rows.by_ids, ids))
            found = {stored.workflow_id for stored in workflows}
            for workflow_id in ids:
                if workflow_id not in found and workflow_id not in changed_ids:
                    self._runner.handle_missing_rows(workflow_id)
            await self._restore_rows(workflows, changed_ids, epochs)

    async def _restore_rows(
        self,
        workflows: Sequence[StoredWorkflow],
        changed_ids: set[str],
        epochs: Mapping[int, int],
        counting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        slices = Slices()
        for stored in workflows:
            shard = shard_of(stored.workflow_id)
            if self._held.epoch(shard) != epochs[shard]:
                # Lost since; when it has come back, another has driven these workflows meanwhile,
                # and a later scan reads them.
                continue
            if self._held.is_frozen(stored.workflow_id):
                continue  # it is given away, or restored as a whole
            if self._is_skipped(stored.workflow_id):
                continue
            try:
                with counting():
                    self.count += self._runner.restore_stored(stored, changed_ids)
            except Exception:  # the edge of one workflow: the others are restored even so
                log.exception("workflow not restored workflow=%s", stored.workflow_id)
            await slices.pause()


async def read_until_success(read: Callable[[], Awaitable[Result]]) -> Result:
    """Retry a read until it succeeds, without a limit."""
    while True:
        try:
            return await read()
        except ServiceError as error:
            log.warning("rows not read reason=%s", error)
        except Exception:  # the edge to Postgres: no caller repeats the read
            log.exception("rows not read")
        await asyncio.sleep(READ_RETRY_S)
