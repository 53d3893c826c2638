"""Heartbeats on their way in: checked against the registry, written in batches.

However many arrive at once, one query finds whose they are and one statement stores them: each
waits only for the batch before it. One that changes whether its agent takes work is sent to the
owners of workflows before it is answered, at most every `CHANGE_PAUSE_S`, so that an agent that
changes all the time does not keep them busy.
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
    """One per replica.

    Args:
        store: where they are written.
        reader: where it is read whose agents they are of.
        capacity: most that may wait; beyond it calls are OVERLOADED.
        tell_owners: returns when the owners of workflows know what is stored.
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
        """Return an agent's row as of `agent_claims`; None for an unknown one.

        Raises:
            ServiceError: OVERLOADED or LEDGER_UNAVAILABLE.
        """
        return await self._claims.request(did)

    async def store(self, heartbeat: Heartbeat, registered_ms: int) -> None:
        """Store a heartbeat; returns when it is in force.

        Args:
            registered_ms: when the agent's card was stored: what was heard before does not count.

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
