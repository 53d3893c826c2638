"""How an owner follows rows that carry the time of their change."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from actors.directory.agent_directory import Directory
from actors.directory.directory_sync import HEARD_PAUSE_MS_MAX, DirectorySync, _Poll
from core.market.agent_liveness import HEARTBEAT_TTL_MS
from core.workflow.actions import SelectAgent
from core.workflow.events import AgentSelected
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AGENT, card, open_store

pytestmark = pytest.mark.anyio

AT = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


async def test_row_dated_by_a_clock_that_was_ahead_hides_no_later_change() -> None:
    """Else no heartbeat is seen for a year, however often it is sent."""
    rows = {"did:test:first": AT + YEAR_MS}
    seen: list[str] = []

    async def read(since_ms: int | None) -> AsyncIterator[list[int]]:
        found = {did: at for did, at in rows.items() if since_ms is None or at >= since_ms}
        seen.extend(found)
        yield list(found.values())

    poll = _Poll(read, now_ms=lambda: AT)
    await poll.read_changes()
    rows["did:test:second"] = AT
    await poll.read_changes()
    assert "did:test:second" in seen


async def test_rows_are_read_when_a_look_at_them_differs_and_after_a_failed_read() -> None:
    reads: list[int | None] = []
    newest_ms = AT
    is_away = False

    async def read(since_ms: int | None) -> AsyncIterator[list[int]]:
        if is_away:
            raise ConnectionError
        reads.append(since_ms)
        yield [newest_ms]

    poll = _Poll(read, now_ms=lambda: AT)
    await poll.read_changes()
    await poll.read_if_new("one")
    assert len(reads) == 2, "its window has changed with the first read"
    await poll.read_if_new("one")
    assert len(reads) == 2
    is_away = True
    with pytest.raises(ConnectionError):
        await poll.read_if_new("two")
    is_away = False
    await poll.read_if_new("two")
    assert len(reads) == 3
    newest_ms = AT - 1
    await poll.read_if_new("two")
    assert len(reads) == 3


async def test_agents_are_not_offline_for_a_time_in_which_nobody_stored_their_heartbeats(
    database: Database,
) -> None:
    """Else all running work fails, for want of agents, when a service comes back after a minute."""
    capability = {"id": "cap.test.echo.v1", "price_cents": 1}
    store = await open_store(database.service_url)
    await store.commit([card(card_json=json.dumps({"capabilities": [capability]}))], AT)
    await store.close()
    with connect(database.superuser_url) as connection:
        connection.execute(
            "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
            " VALUES (%s, 'healthy', %s, %s)",
            (AGENT, AT, AT),
        )
    directory = Directory(
        service="callboard", deployment_key=bytes(32), default_secret=None, max_concurrency=1
    )
    action = SelectAgent("a", "cap.test.echo.v1", None, False, (), 10**9)
    now_ms = AT + 10 * HEARTBEAT_TTL_MS
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        sync = DirectorySync(
            directory,
            reader,
            database_url=database.service_url,
            owner="owner-1",
            on_revoked=lambda: None,
            now_ms=lambda: now_ms,
        )

        def is_chosen() -> bool:
            return isinstance(directory.select(action, now_ms), AgentSelected)

        await sync.start()
        assert is_chosen(), "the owner has listened for no time"
        silent_until_ms = now_ms + HEARTBEAT_TTL_MS
        while now_ms <= silent_until_ms:
            now_ms += HEARD_PAUSE_MS_MAX
            await sync.refresh()
        assert not is_chosen(), "it has listened for the time of a heartbeat"
        now_ms += 2 * HEARTBEAT_TTL_MS
        await sync.refresh()
        assert is_chosen(), "the database was away"
        await sync.close()
