"""Checks the books all day, in pages with pauses between them; keeps the newest result.

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

# A pause is so many times as long as the page before it took.
PAUSES_PER_PAGE: Final = 9
REST_S: Final = 600.0
# Before the first check, and after one that failed: Postgres is away perhaps.
SHORT_REST_S: Final = 10.0


class BooksResult(NamedTuple):
    """What a check has found. The times are Unix milliseconds; None: no check has ended yet."""

    started_ms: int | None = None
    checked_ms: int | None = None
    up_to_entry: int = 0
    rows: Mapping[str, int] = {}
    problem: Disagreement | None = None


class BooksWatch:
    """Runs one check after the other.

    Args:
        reader: of the committed rows.
    """

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._requested = asyncio.Event()
        # Of the newest check that has ended.
        self.result = BooksResult()

    def series(self) -> dict[Key, float]:
        """Return the metrics of the newest result, none before the first."""
        found = self.result
        if found.checked_ms is None:
            return {}
        return {
            ("callboard_books_agree",): found.problem is None,
            ("callboard_books_checked_entry",): found.up_to_entry,
            ("callboard_books_checked_timestamp_seconds",): found.checked_ms / 1_000,
        }

    def request(self) -> int:
        """Let a check begin when the running one has ended; return the time of the request, ms."""
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
