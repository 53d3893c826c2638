"""Work that is asked for often runs once at a time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from core.errors import ErrorCode, ServiceError
from ledger.merged_runs import MergedRuns


class Work:
    """Counts its runs; each ends when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.ends: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def run(self) -> None:
        """Run once."""
        self.begun += 1
        failure = await self.ends.get()
        if failure is not None:
            raise failure


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_asked_for_during_a_run_is_one_more_run() -> None:
    work = Work()
    runs = MergedRuns("test", work.run)
    for _ in range(3):
        runs.soon()
    await turns()
    assert work.begun == 1
    for _ in range(3):
        runs.soon()
    await turns()
    assert work.begun == 1, "one at a time"
    work.ends.put_nowait(None)
    await turns()
    assert work.begun == 2
    work.ends.put_nowait(None)
    await turns()
    assert work.begun == 2
    runs.soon()
    await turns()
    assert work.begun == 3
    await runs.close()


@pytest.mark.parametrize(
    ("failure", "level"),
    [
        (RuntimeError("unforeseen"), logging.ERROR),
        (ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "foreseen"), logging.WARNING),
    ],
)
async def test_run_that_fails_keeps_no_other_from_beginning(
    failure: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    runs = MergedRuns("test", work.run)
    runs.soon()
    await turns()
    runs.soon()
    work.ends.put_nowait(failure)
    await turns()
    assert work.begun == 2
    assert [record.levelno for record in caplog.records] == [level]
    await runs.close()
