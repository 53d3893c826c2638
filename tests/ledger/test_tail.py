"""Notices of what owners choose by, and looks at what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from core.errors import ErrorCode, ServiceError
from core.market.pricing import FixedPrice
from ledger.features.agent_live import Heartbeat, LivenessStore
from ledger.features.directory import KINDS, LIVE, DirectoryChanges, DirectoryTail, Since
from ledger.features.prices import SetPrice
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    all_of,
    api_key,
    card,
    deposit,
    new_key,
)
from tests.platform.waiting import until

DEADLINE_S = 60.0


def price(capability_id: str = "cap.x.v1", micro: int = CREDIT) -> SetPrice:
    """Register a capability's price."""
    return SetPrice(
        key=new_key(), actor_did=PAYER, capability_id=capability_id, price=FixedPrice(micro)
    )


def seen(look: DirectoryChanges) -> Since:
    """Return what a follower has seen that has made use of a look."""
    return {name: value for kind in KINDS for name, value in look.since(kind).items()}


def changed(look: DirectoryChanges) -> list[str]:
    """Return the kinds that have changed."""
    return [kind.name for kind in KINDS if look.has_changed(kind)]


@pytest.fixture
async def tail(database: Database) -> AsyncIterator[DirectoryTail]:
    """A tail of the database."""
    made = DirectoryTail(database.service_url)
    yield made
    await made.close()


async def test_a_heartbeat_is_noticed_if_choices_depend_on_it(
    database: Database, tail: DirectoryTail
) -> None:
    since = await follow(tail)
    store = LivenessStore(database.service_url)
    for load in (0.1, 0.2):
        waiting = asyncio.ensure_future(tail.wait_notice(10 * DEADLINE_S))
        await store.store_heartbeats([Heartbeat(AGENT, "healthy", load=load)])
        await asyncio.wait_for(waiting, DEADLINE_S)
        look = await tail.poll(since)
        assert [row["load"] for row in await all_of(tail.pages(LIVE, since))] == [load]
        since = seen(look)
    await store.store_heartbeats([Heartbeat(AGENT, "healthy", load=0.2)])
    assert changed(await tail.poll(since)) == ["live"], "the time of the heartbeat is another one"
    assert not tail.is_noticed
    await store.close()


async def test_other_commits_are_no_notice(store: LedgerStore, tail: DirectoryTail) -> None:
    since = await follow(tail)
    await store.commit([deposit(CREDIT)], AT)
    # No owner looks at keys: each of them would cost every owner its reads.
    await store.commit([api_key("k", b"k" * 32)], AT)
    look = await tail.poll(since)
    assert not tail.is_noticed
    assert not changed(look)


async def test_change_during_a_reconnect_is_found(
    store: LedgerStore, tail: DirectoryTail, auditor: Auditor
) -> None:
    """At once: who has changed it is answered after this look."""
    since = await follow(tail)
    waiting = asyncio.ensure_future(tail.wait_notice(10 * DEADLINE_S))
    killed = auditor.one(
        "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity"
        " WHERE application_name = ANY ('{callboard-tail,callboard-records}')"
        " AND datname = current_database()"
    )
    assert killed == 2
    await store.commit([card()], AT)
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert changed(await tail.poll(since)) == ["agents"]
    await until(lambda: tail.is_noticed)


async def test_a_ledger_that_cannot_be_reached_is_said_to_be_unavailable() -> None:
    tail = DirectoryTail("postgresql://nowhere@127.0.0.1:1/none")
    with pytest.raises(ServiceError) as refused:
        await tail.poll({})
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE
    await tail.close()


async def test_a_heartbeat_is_found_once_and_also_when_it_is_committed_late(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    """Also one that is dated before others, and one that keeps its date."""
    store = "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
    now_ms = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

    async def found(since: Since) -> list[str]:
        return sorted(row["did"] for row in await all_of(tail.pages(LIVE, since)))

    since = seen(await tail.poll({}))
    with connect(database.superuser_url) as late, late.transaction():
        late.execute(f"{store} VALUES ('did:x:late', 'healthy', 1, {now_ms})")
        auditor.connection.execute(
            f"{store} SELECT did, 'healthy', 1, {now_ms} FROM unnest(ARRAY[%s, %s]) did",
            ("did:x:a", "did:x:b"),
        )
        look = await tail.poll(since)
        assert changed(look) == ["live"]
        assert await found(since) == ["did:x:a", "did:x:b"]
        since = seen(look)
    look = await tail.poll(since)
    assert "did:x:late" in await found(since)
    since = seen(look)
    assert not changed(await tail.poll(since))
    auditor.connection.execute("UPDATE agent_live SET status = 'degraded' WHERE did = 'did:x:b'")
    look = await tail.poll(since)
    assert await found(since) == ["did:x:b"]
    # A clock that was ahead hides no later change.
    since = {**seen(look), "live": 2**52}
    auditor.connection.execute("UPDATE agent_live SET status = 'healthy' WHERE did = 'did:x:a'")
    assert await found(since) == ["did:x:a"]


async def test_after_a_reconnect_rows_of_lower_transactions_are_found(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    """A crash takes transactions back that were not durable: their numbers are given again."""
    since = seen(await tail.poll({}))
    since = {**since, "live": 0, "unseen": str(int(since["unseen"]) + 1_000)}
    auditor.connection.execute(
        "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
        f" VALUES ('did:x:a', 'unhealthy', 1, {AT})"
    )
    assert not changed(await tail.poll(since)), "seen before, as far as that session tells"
    await tail.close()
    assert changed(await tail.poll(since)) == ["live"]


async def test_who_is_cancelled_while_it_looks_leaves_no_connection(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    """An owner may be closed while its feeds are still connecting."""
    tails = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'callboard-records'"
        " AND datname = current_database()"
    )
    waiting = f"{tails} AND wait_event_type = 'Lock'"
    with auditor.connection.transaction():
        auditor.connection.execute("LOCK TABLE callboard.agent")
        looking = asyncio.ensure_future(tail.poll({}))
        with connect(database.superuser_url) as watching:
            await until(lambda: watching.execute(waiting).fetchone() == (1,))
            looking.cancel()
            await asyncio.wait([looking])
    assert looking.cancelled()
    with connect(database.superuser_url) as watching:
        await until(lambda: watching.execute(tails).fetchone() == (0,))


async def follow(tail: DirectoryTail) -> Since:
    """Return what a look has seen that began after the tail listened."""
    await tail.poll({})
    async with asyncio.timeout(DEADLINE_S):
        await tail.wait_notice(DEADLINE_S)
    return seen(await tail.poll({}))
