"""Probes the agents that nobody has heard: overdue ones, and those that an owner leaves alone.

A plain class; the timekeeper runs it. What it finds goes into the operational table, where owners
and replicas see it. contract.md section 6 (Heartbeat).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from core.settings import Settings
from federation.health import HealthProbe
from ledger.agents.agent_live import LivenessStore, probes_due
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.probes")

ROUND_S = 1.0
PROBES_AT_ONCE = 16
PROBES_PER_ROUND = 64


class Prober:
    """Looks at who is due, again and again; made inside its event loop.

    Args:
        settings: the database, the service name and the egress policy.
        reader: where it is read who is due.
    """

    def __init__(self, settings: Settings, reader: LedgerReader) -> None:
        self._reader = reader
        self._store = LivenessStore(settings.database_url)
        self._probe = HealthProbe(settings.egress_allow, settings.service)
        self._turns = asyncio.Semaphore(PROBES_AT_ONCE)
        self._named: set[str] = set()

    def __repr__(self) -> str:
        return f"<Prober named={len(self._named)}>"

    def name(self, dids: Iterable[str]) -> None:
        """Let these be looked at in the next round: an owner's circuit for them is open."""
        self._named.update(dids)

    async def run(self) -> None:
        """Make rounds until cancelled."""
        while True:
            try:
                await self.round()
            except Exception:  # the edge of the loop: one bad round must not end the looking
                log.exception("probes failed")
            await asyncio.sleep(ROUND_S)

    async def round(self) -> list[tuple[str, bool]]:
        """Probe who is due; return (did, whether it is healthy) of each."""
        named, self._named = self._named, set()
        due = await probes_due(self._reader, named, limit=PROBES_PER_ROUND)
        if not due:
            return []
        found = await asyncio.gather(*(self._look(did, endpoint) for did, endpoint in due))
        await self._store.store_probes(found)
        log.info("probed agents=%d healthy=%d", len(found), sum(is_ok for _, is_ok in found))
        return found

    async def close(self) -> None:
        """Close every connection."""
        await self._probe.close()
        await self._store.close()

    async def _look(self, did: str, endpoint: str) -> tuple[str, bool]:
        async with self._turns:
            return did, await self._probe.is_healthy(endpoint)
