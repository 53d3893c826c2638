"""Checks the books continuously, in pages with pauses between them; stores the newest result.

Reference: money.md (Checking the books).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

from actors.process.loop_clock import wall_ms
from core.metric_families import Key
from ledger.features.books import BooksCheck, Disagreement
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.books")

# The pause after a page lasts this many times as long as the page took.
PAUSES_PER_PAGE: Final = 9
REST_S: Final = 600.0
# The pause before the first check, and after a check that failed, perhaps because Postgres is down.
SHORT_REST_S: Final = 10.0


class BooksResult(NamedTuple):
    """The result of a check of the books.

    `started_ms`, `checked_ms`: when the check began and ended, Unix milliseconds; None: no check
    has ended yet. `up_to_entry`: the id of the last checked entry. `rows`: the number of checked
    rows by table. `problem`: the first wrong row; None: no row is wrong.
    """

    started_ms: int | None = None
    checked_ms: int | None = None
    up_to_entry: int = 0
    rows: Mapping[str, int] = {}
    problem: Disagreement | None = None


class BooksWatch:
    """Runs one check of the books after another.

    Args:
        reader: reads committed rows.
    """

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._requested = asyncio.Event()
        # The result of the newest check that has ended.
        self.result = BooksResult()

    def series(self) -> dict[Key, float]:
        """Return the metrics of the newest result; empty before the first result."""
        found = self.result
        if found.checked_ms is None:
            return {}
        return {
            ("callboard_books_agree",): found.problem is None,
            ("callboard_books_checked_entry",): found.up_to_entry,
            ("callboard_books_checked_timestamp_seconds",): found.checked_ms / 1_000,
        }

    def request(self) -> int:
        """Request a check; it begins at once, or when the running check has ended.

        Returns: the time of the request, Unix milliseconds.
        """
        self._requested.set()
        return wall_ms()

    async def run(self) -> None:
        """Check until cancelled."""
        rest_s = SHORT_REST_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._requested.wait()
            self._requested.clear()
            rest_s = REST_S
            try:
                await self.check_once()
            except Exception:  # the edge of the loop: a failure must not end it
                log.exception("check of the books failed")
                rest_s = SHORT_REST_S

    async def check_once(self) -> None:
        """Check all books; log an alarm for the first row that disagrees."""
        started_ms = wall_ms()
        problem: Disagreement | None = None
        check = BooksCheck(self._reader.rows)
        began_s = time.monotonic()
        async with aclosing(check.pages()) as pages:
            async for found in pages:
                problem = found
                await asyncio.sleep(PAUSES_PER_PAGE * (time.monotonic() - began_s))
                began_s = time.monotonic()
        self.result = BooksResult(started_ms, wall_ms(), check.entries, check.rows, problem)
        if problem is None:
            log.info("books agree entries=%d rows=%s", check.entries, check.rows)
        else:
            log.error("books disagree %s", problem)
