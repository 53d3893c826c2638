"""Logs an alarm for stuck money: escrows that are still held after their workflow's deadline.

An owner ends each workflow at its deadline, also after a restart or a takeover. A held escrow past
its deadline is therefore a defect that an operator must examine. The watch repairs nothing.
Reference: money.md (Escrow).
"""

from __future__ import annotations

import asyncio
import logging

from actors.process.loop_clock import every, wall_ms
from ledger.features.workflow_reads import Overdue, held_past_deadline
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.escrows")

CHECK_INTERVAL_S = 60.0
# An escrow counts as stuck this long after the deadline. A takeover of workflows takes less time.
GRACE_MS = 60_000
IDS_SHOWN = 10


class EscrowWatch:
    """Checks once a minute for escrows that should have been released.

    Args:
        reader: reads committed rows.
    """

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._was_overdue = False

    async def run(self) -> None:
        """Check until cancelled. The first check is after a minute, so a restart can catch up."""
        await asyncio.sleep(CHECK_INTERVAL_S)
        await every(CHECK_INTERVAL_S, lambda: self.check_once(wall_ms()), "check of escrows")

    async def check_once(self, now_ms: int) -> Overdue:
        """Return the overdue escrows, and log them; log once when none is overdue any more."""
        found = await held_past_deadline(self._reader, now_ms - GRACE_MS, limit=IDS_SHOWN)
        if found.count:
            oldest = " ".join(found.oldest_ids)
            log.error("escrow held past its deadline count=%d oldest=%s", found.count, oldest)
        elif self._was_overdue:
            log.info("no escrow is held past its deadline any more")
        self._was_overdue = found.count > 0
        return found
