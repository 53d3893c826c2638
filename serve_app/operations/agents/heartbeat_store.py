"""Reads the agents of incoming heartbeats and stores the heartbeats, both in batches.

One query reads the agents of all queued heartbeats, and one statement stores these heartbeats. A
heartbeat is queued only while an earlier batch is in flight. If a heartbeat changes the
availability of its agent, the owner processes are notified before the reply is sent. They are
notified at most every `CHANGE_PAUSE_S`, so an agent that changes constantly does not keep them
busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from actors.transport.channel import Channel
from core.market.agent_liveness import availability, drop_older_signals
from core.records.statuses import HEARTBEAT_STATUSES
from ledger.features.agent_live import (
    Heartbeat,
    LivenessStore,
    StoredHeartbeat,
    agent_claims,
)
from ledger.reads.batch_halves import in_halves
from ledger.reads.reader import LedgerReader, RowDict

BATCH_MAX: Final = 1_000
CHANGE_PAUSE_S: Final = 0.05


class Heartbeats:
    """The incoming heartbeats of one replica.

    Args:
        store: stores the heartbeats.
        reader: reads the rows of agents.
        capacity: the most requests in each queue; further requests raise OVERLOADED.
        tell_owners: notifies the owner processes; returns when they have read the heartbeats.
    """

    def __init__(
        self,
        store: LivenessStore,
        reader: LedgerReader,
        capacity: int,
        tell_owners: Callable[[], Awaitable[None]],
    ) -> None:
        self._reader = reader
        self._tell_owners = tell_owners
        self._tell_from_s = 0.0
        self._claims: Channel[str, RowDict | None] = Channel(
            "agents of heartbeats", in_halves(self._find), capacity=capacity, batch_size=BATCH_MAX
        )
        self._writes: Channel[Heartbeat, StoredHeartbeat] = Channel(
            "heartbeats", store.store_heartbeats, capacity=capacity, batch_size=BATCH_MAX
        )
        self._changes: Channel[None, None] = Channel(
            "changes of availability", self._tell, capacity=capacity, batch_size=BATCH_MAX
        )

    async def claim(self, did: str) -> RowDict | None:
        """Return an agent's row with the columns of `agent_claims`; None for an unknown DID.

        Raises:
            ServiceError: OVERLOADED or LEDGER_UNAVAILABLE.
        """
        return await self._claims.request(did)

    async def store(self, heartbeat: Heartbeat, registered_ms: int) -> None:
        """Store a heartbeat. If the availability changes, wait until the owner processes know it.

        Args:
            heartbeat: the heartbeat.
            registered_ms: Unix time in milliseconds at which the agent's card was stored. Older
                heartbeats and probes do not count.

        Raises:
            ServiceError: OVERLOADED or LEDGER_UNAVAILABLE.
        """
        stored = await self._writes.request(heartbeat)
        before = availability(drop_older_signals(stored.before, registered_ms), stored.at_ms)
        if before is not HEARTBEAT_STATUSES[heartbeat.status]:
            await self._changes.request(None)

    async def _tell(self, waiting: list[None]) -> list[None]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._tell_from_s - loop.time()))
        await self._tell_owners()
        self._tell_from_s = loop.time() + CHANGE_PAUSE_S
        return waiting

    async def _find(self, dids: list[str]) -> Sequence[RowDict | None]:
        found = {row["did"]: row for row in await agent_claims(self._reader, set(dids))}
        return [found.get(did) for did in dids]
