"""Heartbeats of a replica: who is told of what, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from core.market.agent_liveness import NO_SIGNALS, Liveness
from ledger.features.agent_live import Heartbeat, LivenessStore, StoredHeartbeat
from ledger.reads.reader import LedgerReader
from serve_app.operations.agents.heartbeat_store import Heartbeats

NOW_MS = 1_800_000_000_000
WELL = Liveness("healthy", 0.1, NOW_MS - 1_000)
UNWELL = Liveness("draining", 0.1, NOW_MS - 1_000)


class Table:
    """A store that keeps nothing and says what was there before."""

    def __init__(self, before: Liveness) -> None:
        self.before = before

    async def store_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> list[StoredHeartbeat]:
        return [StoredHeartbeat(NOW_MS, self.before)] * len(heartbeats)


class Owners:
    """Owners of workflows that count how often they are told."""

    def __init__(self) -> None:
        self.told = 0

    async def tell(self) -> None:
        self.told += 1


def heartbeats_of(before: Liveness, owners: Owners) -> Heartbeats:
    """Return the heartbeats of a replica whose agents were all last known so."""
    store, reader = cast(LivenessStore, Table(before)), cast(LedgerReader, None)
    return Heartbeats(store, reader, 1_000, owners.tell)


@pytest.mark.parametrize(
    ("before", "status", "registered_ms", "is_told"),
    [
        (NO_SIGNALS, "healthy", 0, False),
        (NO_SIGNALS, "unhealthy", 0, True),
        (WELL, "busy", 0, False),
        (WELL, "offline", 0, True),
        (UNWELL, "maintenance", 0, False),
        (UNWELL, "offline", 0, True),
        (UNWELL, "idle", 0, True),
        # Too old to count, and of an earlier registration.
        (Liveness("healthy", 0.1, NOW_MS - 61_000), "healthy", 0, True),
        (UNWELL, "healthy", NOW_MS - 500, False),
        (Liveness(probe_ms=NOW_MS - 1_000, is_probe_ok=False), "healthy", 0, True),
    ],
)
async def test_owners_are_told_when_an_agents_availability_changes(
    before: Liveness, status: str, registered_ms: int, is_told: bool
) -> None:
    owners = Owners()
    await heartbeats_of(before, owners).store(Heartbeat("did:x:a", status), registered_ms)
    assert owners.told == int(is_told)


async def test_many_changes_at_once_share_what_owners_are_told() -> None:
    owners = Owners()
    heartbeats = heartbeats_of(WELL, owners)
    changes = (heartbeats.store(Heartbeat(f"did:x:{n}", "error"), 0) for n in range(500))
    await asyncio.gather(*changes)
    assert 1 <= owners.told <= 3
