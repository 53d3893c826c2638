"""Kept replies: the first one stays, another request is told apart, old ones go."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import psycopg
import pytest

from ledger.replies import ReplyStore
from tests.conftest import Database

pytestmark = pytest.mark.anyio

HASH = hashlib.sha256(b"a body").digest()
OTHER = hashlib.sha256(b"another").digest()
DAY_S = 86_400


@pytest.fixture
async def replies(database: Database) -> AsyncIterator[ReplyStore]:
    """The replies of the test's database."""
    store = ReplyStore(database.service_url, kept_s=DAY_S, pool_size=5)
    yield store
    await store.close()


async def test_a_key_is_taken_once_however_many_ask_at_once(replies: ReplyStore) -> None:
    found = await asyncio.gather(*(replies.open("p", "k", HASH) for _ in range(20)))
    assert [row.is_new for row in found].count(True) == 1
    assert {(row.request_hash, row.reply) for row in found} == {(HASH, None)}


async def test_the_first_reply_is_kept(replies: ReplyStore) -> None:
    await replies.open("p", "k", HASH)
    await replies.keep("p", "k", HASH, b"first")
    await replies.keep("p", "k", HASH, b"second")
    again = await replies.open("p", "k", HASH)
    assert (again.reply, again.is_new) == (b"first", False)


async def test_another_request_finds_the_hash_of_the_first(replies: ReplyStore) -> None:
    await replies.open("p", "k", HASH)
    assert (await replies.open("p", "k", OTHER)).request_hash == HASH
    await replies.keep("p", "k", OTHER, b"of another request")
    assert (await replies.open("p", "k", HASH)).reply is None


async def test_keys_of_two_principals_are_two_keys(replies: ReplyStore) -> None:
    await replies.open("p", "k", HASH)
    assert (await replies.open("q", "k", OTHER)).is_new


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
        await replies.open("p", key, HASH)
        await replies.keep("p", key, HASH, b"reply")
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        for key, later_s in (("old", DAY_S + 60), ("young", DAY_S - 60)):
            connection.execute(
                "UPDATE callboard.http_reply SET expires_ms = expires_ms - %s WHERE key = %s",
                (later_s * 1_000, key),
            )
    await replies.sweep()
    assert (await replies.open("p", "old", OTHER)).is_new
    assert (await replies.open("p", "young", HASH)).reply == b"reply"
