"""Notices of changed cards, prices and revocations: at once by LISTEN, else by polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from core.market.pricing import FixedPrice
from ledger.commands import Command
from ledger.prices.price_commands import SetPrice
from ledger.reads.directory_tail import DATED, DirectoryTail, Look
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import (
    AT,
    CREDIT,
    PAYER,
    api_key,
    card,
    deposit,
    new_key,
    open_with_member,
    revoke,
    unrevoke,
)

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0


def price() -> SetPrice:
    """Register a capability's price."""
    return SetPrice(
        key=new_key(), actor_did=PAYER, capability_id="cap.x.v1", price=FixedPrice(CREDIT)
    )


def since() -> list[int]:
    """Look at all dated rows."""
    return [0] * len(DATED)


async def next_change(looks: AsyncIterator[Look]) -> int:
    """Return the id of the next change of a card, a price or a revocation."""
    async for look in looks:
        if look.is_new:
            return look.audit_id
    raise AssertionError("a tail never ends")


async def test_change_is_noticed_without_waiting_for_a_poll(database: Database) -> None:
    store, _ = await open_with_member(database.service_url)
    async with DirectoryTail(database.service_url, since, poll_s=1000) as tail:
        notices = aiter(tail)
        for change in (card(), price(), revoke(), unrevoke()):
            following = asyncio.ensure_future(next_change(notices))
            await store.commit([deposit(CREDIT), change], AT)
            seen = await asyncio.wait_for(following, DEADLINE_S)
            assert seen == store.cache.head.audit_seq
        await notices.aclose()  # type: ignore[attr-defined]
    await store.close()


async def test_other_commits_are_no_notice(database: Database, auditor: Auditor) -> None:
    store, _ = await open_with_member(database.service_url)
    async with DirectoryTail(database.service_url, since, poll_s=0.01) as tail:
        notices = aiter(tail)
        following = asyncio.ensure_future(next_change(notices))
        await store.commit([deposit(CREDIT)], AT)
        # No owner looks at keys: each of them would cost every owner its reads.
        await store.commit([api_key("k", b"k" * 32)], AT)
        await store.commit([card()], AT)
        assert await asyncio.wait_for(following, DEADLINE_S) == store.cache.head.audit_seq
        await notices.aclose()  # type: ignore[attr-defined]
    await store.close()


@pytest.mark.parametrize("change", [card, price, revoke, unrevoke])
async def test_change_during_a_reconnect_is_noticed(
    database: Database, auditor: Auditor, change: Callable[[], Command]
) -> None:
    """A revocation was not, for 5 s: only cards, prices and keys were looked for."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([card()] if change is not unrevoke else [card(), revoke()], AT)
    async with DirectoryTail(database.service_url, since, poll_s=0.05) as tail:
        notices = aiter(tail)
        following = asyncio.ensure_future(next_change(notices))
        killed = auditor.one(
            "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity"
            " WHERE application_name = 'callboard-tail' AND datname = current_database()"
        )
        assert killed == 1
        await store.commit([change()], AT)
        assert await asyncio.wait_for(following, DEADLINE_S) == store.cache.head.audit_seq
        assert tail.reconnects == 1
        await notices.aclose()  # type: ignore[attr-defined]
    await store.close()


async def test_a_look_has_another_mark_for_each_change_of_a_dated_row(
    database: Database, auditor: Auditor
) -> None:
    """Also for a row that is dated before others, and for one that keeps its date."""
    store, _ = await open_with_member(database.service_url)
    marks: list[tuple[str, ...]] = []
    changes = [
        "INSERT INTO callboard.agent_live (did, status, heartbeat_ms, updated_ms)"
        f" VALUES ('did:x:a', 'healthy', 1, {AT}), ('did:x:b', 'healthy', 1, {AT})",
        "UPDATE callboard.agent_live SET status = 'degraded' WHERE did = 'did:x:b'",
        f"UPDATE callboard.agent_live SET updated_ms = {AT - 1} WHERE did = 'did:x:a'",
    ]
    async with DirectoryTail(database.service_url, since, poll_s=0.01) as tail:
        looks = aiter(tail)
        marks.append((await anext(looks)).marks)
        assert (await anext(looks)).marks == marks[-1]
        for change in changes:
            auditor.connection.execute(change)  # type: ignore[call-overload]
            marks.append((await anext(looks)).marks)
            assert (await anext(looks)).marks == marks[-1]
        await looks.aclose()  # type: ignore[attr-defined]
    assert len({mark[0] for mark in marks}) == 4
    assert len({mark[1:] for mark in marks}) == 1
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
    store, _ = await open_with_member(database.service_url)
    with auditor.connection.transaction():
        auditor.connection.execute("LOCK TABLE callboard.audit_event")
        entering = asyncio.ensure_future(DirectoryTail(database.service_url, since).__aenter__())
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
