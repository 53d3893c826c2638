"""Alarms an operator of money that is stuck: escrows held although their workflow's time is over.

An owner ends a workflow at its deadline, whatever has become of its agents; a restarted or adopted
one does so at once. So there is nothing to be found, unless something is broken that nobody has
thought of, and then somebody has to look. It repairs nothing. money.md case 43.
"""

from __future__ import annotations

import asyncio
import logging
import time

from ledger.reads.reader import LedgerReader
from ledger.workflows.overdue import Overdue, held_past_deadline

log = logging.getLogger("callboard.escrows")

LOOK_S = 60.0
# Longer than a lost owner's workflows need to find another.
GRACE_MS = 60_000
IDS_SHOWN = 10


class EscrowWatch:
    """Looks once a minute for escrows that should have been released.

    Args:
        reader: of the committed rows.
    """

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._was_overdue = False

    def __repr__(self) -> str:
        return f"<EscrowWatch was_overdue={self._was_overdue}>"

    async def run(self) -> None:
        """Look for ever; first after a minute, when whatever was down has caught up."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(time.time_ns() // 1_000_000)
            except Exception:  # the edge of the loop: one bad look must not end the watch
                log.exception("escrows were not looked at")

    async def look(self, now_ms: int) -> Overdue:
        """Say in the log what is held too long, and once when nothing is any more."""
        found = await held_past_deadline(self._reader, now_ms - GRACE_MS, limit=IDS_SHOWN)
        if found.count:
            oldest = " ".join(found.oldest_ids)
            log.error("escrow held past its deadline count=%d oldest=%s", found.count, oldest)
        elif self._was_overdue:
            log.info("no escrow is held past its deadline any more")
        self._was_overdue = found.count > 0
        return found
