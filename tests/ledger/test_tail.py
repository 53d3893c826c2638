"""Notices of what owners choose by, and looks at what has changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any, Final

import psycopg
import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from core.market.pricing import FixedPrice, TokenPrice
from ledger.agents.agent_commands import RebuildReputation
from ledger.agents.agent_live import Heartbeat, LivenessStore
from ledger.commands import Command
from ledger.prices.price_commands import SetPrice
from ledger.prices.price_reads import price_of_row
from ledger.reads.directory_tail import CHAINED, DATED, DATED_MAX, Asked, DirectoryTail, Look
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import (
    AGENT,
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


def price(capability_id: str = "cap.x.v1", micro: int = CREDIT) -> SetPrice:
    """Register a capability's price."""
    return SetPrice(
        key=new_key(), actor_did=PAYER, capability_id=capability_id, price=FixedPrice(micro)
    )


def recounted() -> RebuildReputation:
    """Count an agent's outcomes anew."""
    return RebuildReputation(
        key=new_key(),
        actor_did=PAYER,
        changes=((AGENT, 1, 0, 0, 100),),
        read_audit_id=2**60,
    )


START: Final = Asked([0] * len(CHAINED), [0] * len(DATED), [None] * len(DATED))


def after(look: Look, asked: Asked = START) -> Asked:
    """Return what a follower asks for that has made use of a look."""
    ids = [
        rows[-1]["changed_id"] if rows else known
        for rows, known in zip(look.chained, asked.after, strict=True)
    ]
    return Asked(ids, asked.since_ms, [look.unseen] * len(DATED))


@pytest.fixture
async def tail(database: Database) -> AsyncIterator[DirectoryTail]:
    """A tail of the database."""
    made = DirectoryTail(database.service_url)
    yield made
    await made.close()


async def test_change_is_noticed_without_waiting_for_a_poll(
    database: Database, tail: DirectoryTail
) -> None:
    store, _ = await open_with_member(database.service_url)
    asked = after(await tail.look(START))
    changes = (card(), price(), revoke(), unrevoke(), recounted())
    kinds = ("agents", "prices", "revocations", "revocations", "reputations")
    for change, kind in zip(changes, kinds, strict=True):
        waiting = asyncio.ensure_future(tail.wait_notice(10 * DEADLINE_S))
        await store.commit([deposit(CREDIT), change], AT)
        await asyncio.wait_for(waiting, DEADLINE_S)
        look = await tail.look(asked)
        found = dict(zip((*CHAINED, *DATED), (*look.chained, *look.dated), strict=True))
        assert [name for name, rows in found.items() if rows] == [kind]
        asked = after(look, asked)
    await store.close()


async def test_a_heartbeat_is_noticed_if_choices_depend_on_it(
    database: Database, tail: DirectoryTail
) -> None:
    asked = after(await tail.look(START))
    store = LivenessStore(database.service_url)
    for load in (0.1, 0.2):
        waiting = asyncio.ensure_future(tail.wait_notice(10 * DEADLINE_S))
        await store.store_heartbeats([Heartbeat(AGENT, "healthy", load=load)])
        await asyncio.wait_for(waiting, DEADLINE_S)
        look = await tail.look(asked)
        assert [live.load for _, live, _ in look.dated[0] or ()] == [load]
        asked = after(look, asked)
    await store.store_heartbeats([Heartbeat(AGENT, "healthy", load=0.2)])
    assert (await tail.look(asked)).dated[0], "the time of the heartbeat is another one"
    assert not tail.is_noticed
    await store.close()


async def test_other_commits_are_no_notice(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    store, _ = await open_with_member(database.service_url)
    asked = after(await tail.look(START))
    await store.commit([deposit(CREDIT)], AT)
    # No owner looks at keys: each of them would cost every owner its reads.
    await store.commit([api_key("k", b"k" * 32)], AT)
    look = await tail.look(asked)
    assert not tail.is_noticed
    assert not any((*look.chained, *look.dated))
    await store.close()


@pytest.mark.parametrize("change", [card, price, revoke, unrevoke])
async def test_change_during_a_reconnect_is_found(
    database: Database, tail: DirectoryTail, auditor: Auditor, change: Callable[[], Command]
) -> None:
    """A revocation was not, for 5 s: only cards, prices and keys were looked for."""
    store, _ = await open_with_member(database.service_url)
    await store.commit([card()] if change is not unrevoke else [card(), revoke()], AT)
    asked = after(await tail.look(START))
    waiting = asyncio.ensure_future(tail.wait_notice(10 * DEADLINE_S))
    await asyncio.sleep(0)  # it listens
    killed = auditor.one(
        "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity"
        " WHERE application_name = 'callboard-tail' AND datname = current_database()"
    )
    assert killed == 1
    await store.commit([change()], AT)
    await asyncio.wait_for(waiting, DEADLINE_S)
    # At once: who has changed it is answered after this look.
    look = await tail.look(asked)
    assert [rows[-1]["changed_id"] for rows in look.chained if rows] == [store.cache.head.audit_seq]
    assert tail.connects == 2
    await store.close()


async def test_a_ledger_that_cannot_be_reached_is_said_to_be_unavailable() -> None:
    tail = DirectoryTail("postgresql://nowhere@127.0.0.1:1/none")
    with pytest.raises(ServiceError) as refused:
        await tail.look(START)
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE
    await tail.close()


async def test_a_dated_row_is_found_once_and_also_when_it_is_committed_late(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    """Also one that is dated before others, and one that keeps its date."""

    def seen(look: Look) -> list[str]:
        return sorted(did for did, _, _ in look.dated[0] or ())

    asked = after(await tail.look(START))
    with connect(database.superuser_url) as late, late.transaction():
        late.execute(
            "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
            f" VALUES ('did:x:late', 'healthy', 1, {AT - 1})"
        )
        auditor.connection.execute(
            "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
            f" VALUES ('did:x:a', 'healthy', 1, {AT}), ('did:x:b', 'healthy', 1, {AT})"
        )
        look = await tail.look(asked)
        assert seen(look) == ["did:x:a", "did:x:b"]
        asked = after(look, asked)
    look = await tail.look(asked)
    assert "did:x:late" in seen(look)
    asked = after(look, asked)
    assert seen(await tail.look(asked)) == []
    auditor.connection.execute("UPDATE agent_live SET status = 'degraded' WHERE did = 'did:x:b'")
    assert seen(await tail.look(asked)) == ["did:x:b"]
    old = Asked(asked.after, [AT + 1] * len(DATED), [None] * len(DATED))
    assert seen(await tail.look(old)) == []


async def test_after_a_reconnect_rows_of_lower_transactions_are_found(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    """A crash takes transactions back that were not durable: their numbers are given again."""
    look = await tail.look(START)
    connection, counter = look.unseen.split()
    asked = after(look._replace(unseen=f"{connection} {int(counter) + 1_000}"))
    auditor.connection.execute(
        "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
        f" VALUES ('did:x:a', 'unhealthy', 1, {AT})"
    )
    assert not (await tail.look(asked)).dated[0], "seen before, as far as that connection tells"
    await tail.close()
    assert [did for did, _, _ in (await tail.look(asked)).dated[0] or ()] == ["did:x:a"]


async def test_the_number_of_a_lost_socket_is_left_to_who_has_it_next(
    database: Database, tail: DirectoryTail
) -> None:
    """libpq closes it; who opened a connection in the pause before the next look was cut off."""
    loop = asyncio.get_running_loop()
    await tail.look(START)
    assert tail._connection is not None
    number = tail._connection.fileno()
    waiting = asyncio.ensure_future(tail.wait_notice(10 * DEADLINE_S))
    with connect(database.superuser_url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'callboard-tail'"
        )
    await asyncio.wait_for(waiting, DEADLINE_S)
    ends = os.pipe()
    os.dup2(ends[0], number)
    loop.add_reader(number, list)
    await tail.look(START)
    assert loop.remove_reader(number)
    for one in {number, *ends}:
        os.close(one)


async def test_very_many_dated_rows_are_not_read_at_once(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    for more in (DATED_MAX, 1):
        auditor.connection.execute(
            "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
            " SELECT 'did:x:' || %s || '-' || n, 'healthy', 1, 1 FROM generate_series(1, %s) n",
            (more, more),
        )
        rows = (await tail.look(START)).dated[0]
        assert (rows is None) == (more == 1)


async def test_prices_set_later_are_told_once(database: Database, tail: DirectoryTail) -> None:
    store, _ = await open_with_member(database.service_url)
    await store.commit([price("a.v1", 10_000), price("b.v1", 20_000)], AT)
    look = await tail.look(START)
    asked = after(look)
    assert [(row["capability_id"], row["price_cents"]) for row in look.chained[1]] == [
        ("a.v1", 1),
        ("b.v1", 2),
    ]
    assert not (await tail.look(asked)).chained[1]
    rates = TokenPrice(Decimal("0.000000100000000001"), Decimal(2))
    by_token = replace(price("b.v1"), price=rates)
    await store.commit([price("a.v1", 30_000), price("a.v1", 40_000), by_token], AT - 60_000)
    rows = (await tail.look(asked)).chained[1]
    assert [price_of_row(row) for row in rows] == [FixedPrice(40_000), rates]
    await store.close()


async def test_who_is_cancelled_while_it_looks_leaves_no_connection(
    database: Database, tail: DirectoryTail, auditor: Auditor
) -> None:
    """An owner may be closed while its feeds are still connecting."""
    tails = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'callboard-tail' AND datname = current_database()"
    )
    waiting = f"{tails} AND wait_event_type = 'Lock'"
    with auditor.connection.transaction():
        auditor.connection.execute("LOCK TABLE callboard.audit_event")
        looking = asyncio.ensure_future(tail.look(START))
        with connect(database.superuser_url) as watching:
            await until(watching, waiting, 1)
            looking.cancel()
            await asyncio.wait([looking])
    assert looking.cancelled()
    with connect(database.superuser_url) as watching:
        await until(watching, tails, 0)


async def until(watching: psycopg.Connection[Any], query: str, wanted: int) -> None:
    """Return when a query gives this number."""
    async with asyncio.timeout(DEADLINE_S):
        while watching.execute(query).fetchone() != (wanted,):  # type: ignore[arg-type]
            await asyncio.sleep(0.01)
