"""Brings stored workflows back to the runner of their owner: all of them, or those it asks for.

Rows are read page by page, those with the earliest deadlines first; while a page is taken up, in
slices, the next is read. The runner drives
what it has meanwhile, and new workflows come in between. Every read is repeated by itself until it
succeeds, however long Postgres is away: nothing asks again. Workflows that are asked for while a
read is under way share the next one. Spec: design.md section 3 (Recovery). Decision 0091.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from actors.engine.runner import Runner
from actors.process.slices import Slices
from core.errors import ServiceError
from ledger.reads.stored import StoredWorkflow
from ledger.workflows.unfinished import PageKey

log = logging.getLogger("callboard.owner")

Found = TypeVar("Found")

READ_RETRY_S: Final = 0.5
# Workflows of one read by ids.
IDS_MAX: Final = 100
# Restored steps that wait for the ledger, beyond which the next page waits: publishes wait behind
# them.
AHEAD_MAX: Final = 1_000


class Rows(Protocol):
    """Reads the rows of unfinished workflows."""

    async def page(self, after: PageKey | None) -> tuple[Sequence[StoredWorkflow], PageKey | None]:
        """Return some workflows by deadline, and where the next page begins, None at the end."""

    async def by_ids(self, ids: Sequence[str]) -> Sequence[StoredWorkflow]:
        """Return those of these workflows that are unfinished and the owner's."""


class Restorer:
    """Restores workflows of one owner, in the background.

    Args:
        runner: what drives them.
        rows: where they are.
        refresh: knows the agents as they are now; raises `ServiceError` when it cannot.
        wait_room: returns when at most so many commands wait for the ledger.
    """

    def __init__(
        self,
        runner: Runner,
        rows: Rows,
        *,
        refresh: Callable[[], Awaitable[None]],
        wait_room: Callable[[int], Awaitable[None]],
    ) -> None:
        self._runner = runner
        self._rows = rows
        self._refresh = refresh
        self._wait_room = wait_room
        self._count = 0
        self._is_scan_wanted = False
        self._scanned: list[asyncio.Future[None]] = []
        self._wanted: dict[str, None] = {}  # in order
        self._scan: asyncio.Task[None] | None = None
        self._single: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Restorer restored={self._count} scanning={self.is_scanning}>"

    @property
    def count(self) -> int:
        """Return how many workflows were restored since this was made; any thread may read it."""
        return self._count

    @property
    def is_scanning(self) -> bool:
        """Whether workflows may be unfinished and not driven yet."""
        return self._scan is not None

    def all_soon(self) -> asyncio.Future[None]:
        """Restore everything that is owned and not driven; returns what is done when it is."""
        self._is_scan_wanted = True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scanned.append(done)
        if self._scan is None:
            self._scan = asyncio.create_task(self._scan_all())
        return done

    def soon(self, workflow_id: str) -> None:
        """Read one workflow and take it up."""
        self._wanted[workflow_id] = None
        if self._single is None:
            self._single = asyncio.create_task(self._read_wanted())

    async def close(self) -> None:
        """End every task."""
        tasks = [task for task in (self._scan, self._single) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for done in self._scanned:
            done.cancel()

    # -- everything -------------------------------------------------------------------------------

    async def _scan_all(self) -> None:
        try:
            while self._is_scan_wanted:
                self._is_scan_wanted = False
                waiting, self._scanned = self._scanned, []
                try:
                    await self._scan_once()
                except Exception:  # the edge of the task: what is stored must not stay undriven
                    log.exception("scan failed and is begun anew")
                    self._scanned += waiting
                    self._is_scan_wanted = True
                    await asyncio.sleep(READ_RETRY_S)
                    continue
                for done in waiting:
                    if not done.done():
                        done.set_result(None)
        finally:
            self._scan = None

    async def _scan_once(self) -> None:
        after: PageKey | None = None
        reading = self._begin_page(after)
        try:
            while True:
                touched, page = reading
                workflows, after = await page
                if after is not None:
                    reading = self._begin_page(after)
                await self._take_up(workflows, touched)
                if after is None:
                    return
                await self._wait_room(AHEAD_MAX)
        finally:
            reading[1].cancel()
            self._runner.end_read(reading[0])

    def _begin_page(
        self, after: PageKey | None
    ) -> tuple[set[str], asyncio.Task[tuple[Sequence[StoredWorkflow], PageKey | None]]]:
        touched = self._runner.begin_read()
        return touched, asyncio.create_task(until_read(partial(self._rows.page, after)))

    # -- single ones ------------------------------------------------------------------------------

    async def _read_wanted(self) -> None:
        try:
            while self._wanted:
                ids = list(self._wanted)[:IDS_MAX]
                for workflow_id in ids:
                    del self._wanted[workflow_id]
                try:
                    await self._read_ids(ids)
                except Exception:  # the edge of the task: the next ones are read all the same
                    log.exception("workflows not read again count=%d", len(ids))
        finally:
            self._single = None

    async def _read_ids(self, ids: Sequence[str]) -> None:
        # What is known of agents now: a revocation may be why they are read.
        await until_read(self._refresh)
        touched = self._runner.begin_read()
        workflows = await until_read(partial(self._rows.by_ids, ids))
        found = {stored.workflow_id for stored in workflows}
        for workflow_id in ids:
            if workflow_id not in found and workflow_id not in touched:
                self._runner.not_found(workflow_id)
        await self._take_up(workflows, touched)

    async def _take_up(self, workflows: Sequence[StoredWorkflow], touched: set[str]) -> None:
        slices = Slices()
        try:
            for stored in workflows:
                try:
                    self._count += self._runner.take_up(stored, touched)
                except Exception:  # the edge of one workflow: the others have nothing to do with it
                    log.exception("workflow not taken up workflow=%s", stored.workflow_id)
                await slices.pause()
        finally:
            self._runner.end_read(touched)


async def until_read(read: Callable[[], Awaitable[Found]]) -> Found:
    """Read until it succeeds, however long Postgres is away."""
    while True:
        try:
            return await read()
        except ServiceError as error:
            log.warning("rows not read reason=%s", error)
        except Exception:  # the edge to Postgres: nothing asks again, so it is never given up
            log.exception("rows not read")
        await asyncio.sleep(READ_RETRY_S)
