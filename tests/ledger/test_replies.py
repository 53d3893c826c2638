"""Kept replies: the first one stays, another request is told apart, old ones go."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import psycopg
import pytest

from core.errors import ErrorCode, ServiceError
from ledger.connections.old_rows import OldRows
from ledger.connections.pools import OperationalPool
from ledger.replies import ReplyStore, SweepPool, removal_of_replies
from tests.conftest import Database

HASH = hashlib.sha256(b"a body").digest()
OTHER = hashlib.sha256(b"another").digest()
DAY_S = 86_400


@pytest.fixture
async def replies(database: Database) -> AsyncIterator[ReplyStore]:
    """The replies of the test's database."""
    store = ReplyStore(database.service_url, kept_s=DAY_S)
    yield store
    await store.close()


def small_pool(database: Database) -> OperationalPool:
    """Return a pool by which old rows are removed."""
    return SweepPool(database.service_url)


async def keep_since(
    replies: ReplyStore, database: Database, key: str, since_s: int, reply: bytes = b"reply"
) -> None:
    """Keep a reply that was given some seconds ago."""
    await replies.open("p", key, HASH)
    await replies.keep("p", key, HASH, reply)
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE callboard.http_reply SET expires_ms = expires_ms - %s WHERE key = %s",
            (since_s * 1_000, key),
        )


def keys_left(database: Database) -> list[str]:
    with psycopg.connect(database.superuser_url) as connection:
        rows = connection.execute("SELECT key FROM callboard.http_reply ORDER BY key").fetchall()
    return [key for (key,) in rows]


async def test_a_key_is_taken_once_however_many_ask_at_once(replies: ReplyStore) -> None:
    found = await asyncio.gather(*(replies.open("p", "k", HASH) for _ in range(20)))
    assert [row.is_new for row in found].count(True) == 1
    assert {(row.request_hash, row.reply) for row in found} == {(HASH, None)}


async def test_a_dropped_key_is_free_and_a_kept_reply_is_not_dropped(replies: ReplyStore) -> None:
    await replies.open("p", "k", HASH)
    await replies.drop("p", "k")
    assert (await replies.open("p", "k", OTHER)).is_new
    await replies.keep("p", "k", OTHER, b"kept")
    await replies.drop("p", "k")
    assert (await replies.open("p", "k", OTHER)).reply == b"kept"


async def test_a_reply_is_kept_although_its_key_was_dropped_meanwhile(replies: ReplyStore) -> None:
    await replies.open("p", "k", HASH)
    await replies.drop("p", "k")
    await replies.keep("p", "k", HASH, b"late")
    assert (await replies.open("p", "k", HASH)).reply == b"late"


async def test_replies_are_swept_after_a_day_and_not_before(
    replies: ReplyStore, database: Database
) -> None:
    for key in ("old", "young"):
        await keep_since(replies, database, key, DAY_S + 60 if key == "old" else DAY_S - 60)
    await replies.old.remove()
    assert (await replies.open("p", "old", OTHER)).is_new
    assert (await replies.open("p", "young", HASH)).reply == b"reply"


async def test_a_statement_removes_few_replies_the_oldest_first(
    replies: ReplyStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One removed 10,000 rows of any size, within the time of a caller's request."""
    pool = small_pool(database)
    monkeypatch.setattr("ledger.replies.SWEPT_ROWS_MAX", 3)
    monkeypatch.setattr("ledger.replies.SWEPT_BYTES_MAX", 1_000)
    old = OldRows("replies", pool, removal_of_replies())
    for number, size in enumerate([10, 10, 10, 999, 2, 2, 2_000, 1]):
        await keep_since(replies, database, f"{number}", DAY_S + 600 - number, b"x" * size)
    left = []
    while await old.remove_some():
        left.append("".join(keys_left(database)))
    assert left == ["34567", "567", "7", ""]
    await pool.close()


async def test_a_removal_is_neither_a_callers_wait_nor_its_failure(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request removed first, and failed after five seconds when that took longer."""
    may_end, begun = asyncio.Event(), 0

    class SlowRows(OldRows):
        async def remove_some(self) -> int:
            nonlocal begun
            begun += 1
            await may_end.wait()
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "the removal took too long")

    pool = small_pool(database)
    store = ReplyStore(database.service_url, kept_s=DAY_S)
    monkeypatch.setattr("ledger.connections.old_rows.PAUSE_S", -1.0)
    store.old = SlowRows("replies", pool, removal_of_replies())
    assert (await store.open("p", "a", HASH)).is_new
    assert (await store.open("p", "b", HASH)).is_new
    assert begun == 1, "one removal at a time"
    may_end.set()
    while begun == 1:
        assert not (await store.open("p", "a", HASH)).is_new
    await store.close()
    await pool.close()


async def test_a_reply_at_hand_is_left_to_the_next_sweep(
    replies: ReplyStore, database: Database
) -> None:
    for key in ("held", "free"):
        await keep_since(replies, database, key, DAY_S + 60)
    with psycopg.connect(database.superuser_url) as other:
        other.execute("SELECT 1 FROM callboard.http_reply WHERE key = 'held' FOR UPDATE")
        await replies.old.remove()
        assert keys_left(database) == ["held"]
    await replies.old.remove()
    assert keys_left(database) == []
