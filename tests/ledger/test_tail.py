"""Notices of changed cards and keys: at once by LISTEN, else by polling, none lost."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from ledger.reads.directory_tail import DirectoryTail
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import AT, CREDIT, api_key, card, deposit, open_with_owner

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0


async def test_change_is_noticed_without_waiting_for_a_poll(database: Database) -> None:
    store, _ = await open_with_owner(database.service_url)
    async with DirectoryTail(database.service_url, poll_s=1000) as tail:
        notices = aiter(tail)
        for change in (card(), api_key("k", b"k" * 32)):
            following = asyncio.ensure_future(anext(notices))
            await store.commit([deposit(CREDIT), change], AT)
            seen = await asyncio.wait_for(following, DEADLINE_S)
            assert seen == store.cache.head.audit_seq
        await notices.aclose()  # type: ignore[attr-defined]
    await store.close()


async def test_other_commits_are_no_notice(database: Database, auditor: Auditor) -> None:
    store, _ = await open_with_owner(database.service_url)
    async with DirectoryTail(database.service_url, poll_s=0.01) as tail:
        notices = aiter(tail)
        following = asyncio.ensure_future(anext(notices))
        await store.commit([deposit(CREDIT)], AT)
        await store.commit([card()], AT)
        assert await asyncio.wait_for(following, DEADLINE_S) == store.cache.head.audit_seq
        await notices.aclose()  # type: ignore[attr-defined]
    await store.close()


async def test_change_during_a_reconnect_is_noticed(database: Database, auditor: Auditor) -> None:
    store, _ = await open_with_owner(database.service_url)
    async with DirectoryTail(database.service_url, poll_s=0.05) as tail:
        notices = aiter(tail)
        following = asyncio.ensure_future(anext(notices))
        killed = auditor.one(
            "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity"
            " WHERE application_name = 'callboard-tail' AND datname = current_database()"
        )
        assert killed == 1
        await store.commit([card()], AT)
        assert await asyncio.wait_for(following, DEADLINE_S) == store.cache.head.audit_seq
        assert tail.reconnects == 1
        await notices.aclose()  # type: ignore[attr-defined]
    await store.close()


async def test_who_is_cancelled_while_it_enters_leaves_no_connection(
    database: Database, auditor: Auditor
) -> None:
    """An owner may be closed while its feeds are still connecting."""
    tails = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'callboard-tail' AND datname = current_database()"
    )
    waiting = f"{tails} AND wait_event_type = 'Lock'"
    store, _ = await open_with_owner(database.service_url)
    with auditor.connection.transaction():
        auditor.connection.execute("LOCK TABLE callboard.audit_event")
        entering = asyncio.ensure_future(DirectoryTail(database.service_url).__aenter__())
        with connect(database.superuser_url) as watching:
            await until(watching, waiting, 1)
            entering.cancel()
            await asyncio.wait([entering])
    assert entering.cancelled()
    with connect(database.superuser_url) as watching:
        await until(watching, tails, 0)
    await store.close()


async def until(watching: psycopg.Connection[Any], query: str, wanted: int) -> None:
    """Return when a query gives this number."""
    async with asyncio.timeout(DEADLINE_S):
        while watching.execute(query).fetchone() != (wanted,):  # type: ignore[arg-type]
            await asyncio.sleep(0.01)
