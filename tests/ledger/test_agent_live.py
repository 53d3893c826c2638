"""Heartbeats and probes as rows: the newest counts, and only those that are due are probed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import LiteralString

import psycopg
import pytest

from core.errors import ErrorCode, ServiceError
from core.market.agent_liveness import HEARTBEAT_TTL_MS, NO_SIGNALS
from ledger.features.agent_live import (
    PROBE_PAUSE_MS,
    Heartbeat,
    LivenessStore,
    liveness_of,
    probes_due,
)
from ledger.features.directory import LIVE
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import all_of, card, new_key
from tests.ledger.test_timeouts import TIMEOUT_S, frozen


@pytest.fixture
async def live(database: Database) -> AsyncIterator[LivenessStore]:
    """The operational table of the test's database."""
    store = LivenessStore(database.service_url)
    yield store
    await store.close()


def age(database: Database, did: str, column: LiteralString, by_ms: int) -> None:
    """Make a time of an agent's row earlier."""
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        changed = connection.execute(
            f"UPDATE callboard.agent_live SET {column} = {column} - %s WHERE did = %s",
            (by_ms, did),
        )
        assert changed.rowcount == 1


async def test_the_newest_heartbeat_of_a_batch_and_of_all_batches_counts(
    live: LivenessStore, reader: LedgerReader, database: Database
) -> None:
    before_ms = time.time_ns() // 1_000_000
    batch = [
        Heartbeat("did:x:a", "busy", 0.9, 7, "1.0", 12.5),
        Heartbeat("did:x:b", "draining"),
        Heartbeat("did:x:a", "idle", 0.1),
    ]
    stored = await live.store_heartbeats(batch)
    assert [one.before for one in stored] == [NO_SIGNALS] * 3
    (again,) = await live.store_heartbeats([Heartbeat("did:x:a", "idle", 0.1)])
    assert (again.before.status, again.before.load) == ("idle", 0.1)
    assert again.at_ms >= stored[0].at_ms == again.before.heartbeat_ms
    rows = {row["did"]: row for row in await all_of(LIVE.pages(reader.lookups))}
    assert (rows["did:x:a"]["status"], rows["did:x:a"]["load"]) == ("idle", 0.1)
    assert before_ms <= rows["did:x:a"]["heartbeat_ms"] <= time.time_ns() // 1_000_000 + 1
    await live.store_heartbeats([Heartbeat("did:x:b", "busy", 0.5, 3, "2", 4.0)])
    await live.store_heartbeats([Heartbeat("did:x:b", "idle")])
    rows = {row["did"]: row for row in await all_of(LIVE.pages(reader.lookups))}
    row = rows["did:x:b"]
    assert (row["status"], row["load"]) == ("idle", None)
    assert (row["queue_depth"], row["version"]) == (3, "2"), "what was not told again stays"


async def test_a_probe_stands_beside_the_heartbeat(
    live: LivenessStore, reader: LedgerReader
) -> None:
    await live.store_heartbeats([Heartbeat("did:x:a", "busy", 0.5)])
    for is_ok in (False, False, True):
        await live.store_probes([("did:x:a", is_ok), ("did:x:b", not is_ok)])
    rows = {row["did"]: row for row in await all_of(LIVE.pages(reader.lookups))}
    assert (rows["did:x:a"]["probe_failures"], rows["did:x:b"]["probe_failures"]) == (0, 1)
    found = liveness_of(rows["did:x:a"])
    assert (found.status, found.load, found.is_probe_ok) == ("busy", 0.5, True)
    assert found.heartbeat_ms is not None
    assert found.probe_ms is not None
    assert found.probe_ms >= found.heartbeat_ms
    assert liveness_of(rows["did:x:b"]).heartbeat_ms is None


async def test_who_is_overdue_or_named_is_probed_and_then_left_alone_for_a_while(
    store: LedgerStore, database: Database, live: LivenessStore, reader: LedgerReader
) -> None:
    dids = [f"did:x:{name}" for name in "abcd"]
    await store.commit([card(did, key=new_key()) for did in dids], 1)
    await store.commit([card("did:x:nowhere", endpoint="")], 1)
    await live.store_heartbeats([Heartbeat(did, "idle") for did in [*dids, "did:x:nowhere"]])

    async def due(*named: str) -> list[str]:
        return sorted(did for did, _ in await probes_due(reader, named, limit=10))

    assert await due() == []
    for did in ("did:x:a", "did:x:nowhere"):
        age(database, did, "heartbeat_ms", HEARTBEAT_TTL_MS + 1_000)
    assert await due("did:x:b", "did:x:unknown") == ["did:x:a", "did:x:b"]
    assert await probes_due(reader, [], limit=10) == [("did:x:a", "http://127.0.0.1:9")]
    await live.store_probes([("did:x:a", False)])
    assert await due() == []
    age(database, "did:x:a", "probe_ms", PROBE_PAUSE_MS + 1_000)
    assert await due() == ["did:x:a"]
    await live.store_probes([("did:x:a", False)])
    age(database, "did:x:a", "probe_ms", PROBE_PAUSE_MS + 1_000)
    assert await due() == [], "after two failures the pause is twice as long"
    age(database, "did:x:a", "probe_ms", PROBE_PAUSE_MS)
    assert await due() == ["did:x:a"]


@pytest.mark.slow
async def test_heartbeats_give_a_silent_server_up(
    database: Database, auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LivenessStore, "timeout_s", TIMEOUT_S)
    store = LivenessStore(database.service_url)
    await store.store_heartbeats([Heartbeat("did:x:a", "idle")])
    with frozen(auditor, "callboard-liveness"):
        with pytest.raises(ServiceError) as caught:
            await store.store_heartbeats([Heartbeat("did:x:a", "busy")])
        assert caught.value.code is ErrorCode.LEDGER_UNAVAILABLE
        await store.store_heartbeats([Heartbeat("did:x:a", "busy")])  # over a new connection
    await store.close()


async def test_a_notice_is_no_part_of_what_stores_heartbeats(
    live: LivenessStore, reader: LedgerReader, database: Database
) -> None:
    """Commits with notices wait for each other: heartbeats waited for the writer's standby."""
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
    await live.store_heartbeats([Heartbeat("did:x:a", "idle", 0.5)])
    await live.store_probes([("did:x:a", True)])
    (row,) = await all_of(LIVE.pages(reader.lookups))
    assert (row["load"], row["probe_ok"]) == (0.5, True)


async def test_the_operational_role_reads_nothing_but_its_own(database: Database) -> None:
    options = "-c role=ops_writer -c search_path=callboard"
    with (
        psycopg.connect(database.service_url, options=options) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT * FROM agent")
