"""Probes the health of agents that have an overdue heartbeat or an open circuit.

The timekeeper runs the prober. The prober stores its results in the operational table of agents,
which owners and replicas read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from actors.process.loop_clock import every
from core.settings import Settings
from federation.health_probe import HealthProbe
from federation.name_resolver import NameResolver
from ledger.features.agent_live import PROBE_PAUSE_MS, LivenessStore, probes_due
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.probes")

ROUND_S = 1.0
PROBES_AT_ONCE = 16
PROBES_PER_ROUND = 64


class Prober:
    """Probes due agents in rounds; must be created inside its event loop.

    Args:
        settings: the database URL, the service name and the egress policy.
        reader: reads which agents are due.
        names: resolves the host names of agents; `close` closes it.
    """

    def __init__(self, settings: Settings, reader: LedgerReader, names: NameResolver) -> None:
        self._reader = reader
        self._store = LivenessStore(settings.database_url)
        self._probe = HealthProbe(settings.egress_allow, settings.service, names)
        self._turns = asyncio.Semaphore(PROBES_AT_ONCE)
        self._named: set[str] = set()
        # The loop time of the next probe of each agent whose probe could not be made. No result is
        # stored for these agents, so without a pause they would come first in every round.
        self._untried: dict[str, float] = {}

    def request_probes(self, dids: Iterable[str]) -> None:
        """Include agents in the next round, because an owner's circuit for them is open."""
        self._named.update(dids)

    async def run(self) -> None:
        """Run rounds until cancelled."""
        await every(ROUND_S, self.round, "round of probes")

    async def round(self) -> list[tuple[str, bool]]:
        """Probe the agents that are due; return (DID, is healthy) for each probed agent."""
        named, self._named = self._named, set()
        now_s = asyncio.get_running_loop().time()
        self._untried = {did: at_s for did, at_s in self._untried.items() if at_s > now_s}
        due = await probes_due(self._reader, named, self._untried, limit=PROBES_PER_ROUND)
        if not due:
            return []
        probed = await asyncio.gather(*(self._probe_agent(did, endpoint) for did, endpoint in due))
        found = [(did, is_healthy) for did, is_healthy in probed if is_healthy is not None]
        again_s = now_s + PROBE_PAUSE_MS / 1_000
        self._untried.update((did, again_s) for did, is_healthy in probed if is_healthy is None)
        await self._store.store_probes(found)
        log.info("probed agents=%d healthy=%d", len(found), sum(is_ok for _, is_ok in found))
        return found

    async def close(self) -> None:
        """Close every connection."""
        await self._probe.close()
        await self._store.close()

    async def _probe_agent(self, did: str, endpoint: str) -> tuple[str, bool | None]:
        async with self._turns:
            return did, await self._probe.is_healthy(endpoint)
