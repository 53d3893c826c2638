"""Heartbeats on their way in: checked against the registry, written in batches.

However many arrive at once, one query finds whose they are and one statement stores them: each
waits only for the batch before it. contract.md section 6 (Heartbeat).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.channel import Channel
from ledger.agent_live import Heartbeat, LivenessStore, agent_claims
from ledger.queries.reader import LedgerReader, RowDict

BATCH_MAX: Final = 1_000


class Heartbeats:
    """One per replica.

    Args:
        store: where they are written.
        reader: where it is read whose agents they are of.
        capacity: most that may wait; beyond it the caller is told to come again.
    """

    def __init__(self, store: LivenessStore, reader: LedgerReader, capacity: int) -> None:
        self._reader = reader
        self._claims: Channel[str, RowDict | None] = Channel(
            "agents of heartbeats", self._find, capacity=capacity, batch_size=BATCH_MAX
        )
        self._writes: Channel[Heartbeat, None] = Channel(
            "heartbeats", store.store_heartbeats, capacity=capacity, batch_size=BATCH_MAX
        )

    def __repr__(self) -> str:
        return f"<Heartbeats {self._writes!r}>"

    async def claim(self, did: str) -> RowDict | None:
        """Return whose an agent is, its status and its token's revision; None for an unknown one.

        Raises:
            ServiceError: OVERLOADED or LEDGER_UNAVAILABLE.
        """
        return await self._claims.request(did)

    async def store(self, heartbeat: Heartbeat) -> None:
        """Store a heartbeat; returns when readers see it.

        Raises:
            ServiceError: OVERLOADED or LEDGER_UNAVAILABLE.
        """
        await self._writes.request(heartbeat)

    async def _find(self, dids: list[str]) -> Sequence[RowDict | None]:
        found = {row["did"]: row for row in await agent_claims(self._reader, set(dids))}
        return [found.get(did) for did in dids]
