"""Processes due schedules each second: publishes a run for each, or records why no run starts.

Reference: features.md (Schedules).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from actors.cluster.due.run_starter import Cause, RunStarter, failed_note, note_of, publish_of
from actors.process.loop_clock import SteadyTime, every
from actors.routing.trigger_runs import run_of, workflow_limits
from core.errors import ServiceError
from core.settings import Settings
from core.timestamps import iso_ms
from core.triggers.due import decide_due, next_due_of
from ledger.features.triggers import due_triggers
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict

log = logging.getLogger("callboard.triggers")

ROUND_S: Final = 1.0
# The most schedules that are processed together, and the most bytes of all their templates.
DUE_MAX: Final = 1_000
TEMPLATE_BYTES_MAX: Final = 16 * 1024 * 1024


class ScheduleWatch:
    """Processes the due times of schedules.

    Args:
        settings: the deployment's settings.
        reader: reads committed rows.
        starter: publishes runs, and records skipped and failed runs.
    """

    def __init__(self, settings: Settings, reader: LedgerReader, starter: RunStarter) -> None:
        self._limits = workflow_limits(settings)
        self._reader = reader
        self._starter = starter
        self._now_ms = SteadyTime().now_ms

    async def run(self) -> None:
        """Process due schedules each second until cancelled."""
        await every(ROUND_S, self.round, "round of schedules")

    async def round(self) -> None:
        """Process due schedules until none is left, or until a schedule must be retried later."""
        while True:
            now_ms = self._now_ms()
            rows = await due_triggers(
                self._reader, at_ms=now_ms, limit=DUE_MAX, bytes_max=TEMPLATE_BYTES_MAX
            )
            if not rows:
                return
            ids = [self._starter.new_ids() for _ in rows]
            causes = await asyncio.to_thread(self._decide_all, rows, ids, now_ms)
            left = await self._starter.take(causes)
            log.info("schedules due=%d taken=%d", len(rows), len(rows) - len(left))
            if left:
                return

    def _decide_all(
        self, rows: Sequence[RowDict], ids: Sequence[tuple[str, str]], now_ms: int
    ) -> list[Cause]:
        return [self._decide(row, own, now_ms) for row, own in zip(rows, ids, strict=True)]

    def _decide(self, row: RowDict, ids: tuple[str, str], now_ms: int) -> Cause:
        """Return the result of a schedule's due time: the publish of its run, or a note."""
        due_ms, config = row["due_ms"], row["config"]
        run = run_of(row, str(due_ms), due_ms=due_ms)
        due_at = iso_ms(due_ms)
        try:
            skipped, next_due_ms, missed_until_ms = decide_due(
                due_ms,
                next_due_of(config),
                delay_ms=row["delay_ms"],
                policy=config["overlapPolicy"],
                catch_up_ms=config["catchUpWindowMs"],
                is_running=row["is_running"],
                now_ms=now_ms,
            )
        except ServiceError as error:  # the time zone is unknown now
            return Cause(run, failed_note(run, error))
        run = run_of(row, str(due_ms), due_ms=due_ms, next_due_ms=next_due_ms)
        if skipped is not None:
            note = note_of(run, "skipped", skipped, missed_until_ms=missed_until_ms)
            return Cause(run, note)
        cause = {"dueAt": due_at, "result": {"dueAt": due_at}}
        return publish_of(row, run, cause, limits=self._limits, ids=ids)
