"""Restores the stored workflows of a member: all of a shard, or single workflows on request.

A scan reads the rows of shards page by page, earliest deadlines first, and restores each page in
slices. Meanwhile the runner drives its workflows and accepts new ones. The next page waits until at
most `AHEAD_MAX` steps of earlier pages have no outcome. The page waits for no other commands: the
queued commands of running workflows would delay the restore of all stored workflows. Each read is
retried until it succeeds, because no caller repeats the request. Requests that arrive during a read
share the next read. Shards that are taken during a scan share the next scan.
Decisions fairness-and-long-work, ledger-writer and workflow-owners-and-shards.
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
# Maximum number of workflows in one read by ids.
IDS_MAX: Final = 100
# The next page waits while more steps of earlier pages than this have no outcome. A payer's new
# publishes queue behind these steps, and other payers' commands wait until they are committed.
AHEAD_MAX: Final = 200


class Restorer:
    """Restores the workflows of one member in background tasks.

    Args:
        runner: drives the restored workflows.
        held: the shards of the member.
        rows: returns a reader of the unfinished workflows in the given shards.
        refresh: refreshes the directory; raises `ServiceError` if that fails.
        ledger: the ledger port of the runner, which counts the steps of restored pages.
        is_skipped: says whether a child process drives a workflow. Then it is not restored here.
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
        # Number of workflows restored so far; any thread may read it.
        self.count = 0
        # Shards that wait for the next scan, and shards of the current scan.
        self._wanted: set[int] = set()
        self._scanning: set[int] = set()
        self._scanned: list[asyncio.Future[None]] = []
        self._requested: dict[str, None] = {}  # workflow ids in the order of their requests
        self._scan: asyncio.Task[None] | None = None
        self._single: asyncio.Task[None] | None = None

    @property
    def is_scanning(self) -> bool:
        """Whether a scan is running. During a scan, some unfinished workflows may not be driven."""
        return self._scan is not None

    def is_restoring(self, workflow_id: str) -> bool:
        """Say whether a workflow's shard is being restored, so the workflow may be undriven."""
        return self.is_restoring_shard(shard_of(workflow_id))

    def is_restoring_shard(self, shard: int) -> bool:
        """Say whether a shard waits for a scan or is in the current scan."""
        return shard in self._scanning or shard in self._wanted

    def restore_shards(self, shards: Collection[int]) -> asyncio.Future[None]:
        """Start to restore all undriven workflows of these shards.

        Returns:
            A future that is done when they are restored.
        """
        self._wanted.update(shards)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scanned.append(done)
        if self._scan is None:
            self._scan = asyncio.create_task(self._scan_all())
        return done

    def restore_one(self, workflow_id: str) -> None:
        """Start to restore one workflow from its rows."""
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
                except Exception:  # the edge of the task: it still serves later requests
                    log.exception("workflows not restored count=%d", len(ids))
        finally:
            self._single = None

    async def restore_ids(self, ids: Sequence[str]) -> None:
        """Read at most `IDS_MAX` workflows by id and restore them; return when that is done."""
        # Refresh the directory first, because a revocation may be the reason for this read.
        await read_until_success(self._refresh)
        with self._runner.reads.open() as changed_ids:
            shards = sorted({shard_of(workflow_id) for workflow_id in ids})
            rows, epochs = self._rows(shards), self._epochs_of(shards)
            workflows = await read_until_success(partial(rows.by_ids, ids))
            found = {stored.id for stored in workflows}
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
            shard = shard_of(stored.id)
            if self._held.epoch(shard) != epochs[shard]:
                # This member has lost the shard since the read. It may have taken the shard again,
                # but another member may have driven these workflows. A later scan reads them again.
                continue
            if self._held.is_frozen(stored.id):
                continue  # the shard is being given away; if it is kept, a scan restores it
            if self._is_skipped(stored.id):
                continue
            try:
                with counting():
                    self.count += self._runner.restore_stored(stored, changed_ids)
            except Exception:  # the edge of one workflow: the others are still restored
                log.exception("workflow not restored workflow=%s", stored.id)
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
