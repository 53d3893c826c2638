"""Nonces are taken once by all processes, and forgotten when their signatures are too old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import psycopg
import pytest

from core.trust.requests.request_signature import AGE_S_MAX
from ledger.features.keys import standing_rows
from ledger.features.nonces import Nonce, NonceStore
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.making import AGENT, AT, PAYER, NextWriter, api_key, card, revoke


@pytest.fixture
async def nonces(database: Database) -> AsyncIterator[NonceStore]:
    """The nonces of the test's database."""
    store = NonceStore(database.service_url)
    yield store
    await store.close()


def nonce(text: str, created_s: int | None = None, did: str = "did:test:a") -> Nonce:
    return Nonce(did, text, int(time.time()) if created_s is None else created_s)


async def test_a_nonce_is_taken_once_by_all_stores(database: Database, nonces: NonceStore) -> None:
    other = NonceStore(database.service_url)
    one = nonce("one")
    answers = await asyncio.gather(*(store.take([one]) for store in (nonces, other) * 5))
    assert sorted(answers) == [[False]] * 9 + [[True]]
    assert await nonces.take([nonce("two"), nonce("two"), nonce("one"), nonce("three")]) == [
        True,
        False,
        False,
        True,
    ]
    assert await other.take([nonce("one", did="did:test:b")]) == [True]
    await other.close()


async def test_the_databases_clock_judges_whether_a_signature_is_of_now(
    nonces: NonceStore,
) -> None:
    now_s = int(time.time())
    far = AGE_S_MAX + 5
    assert await nonces.take([nonce("old", now_s - far), nonce("early", now_s + far)]) == [
        False,
        False,
    ]


async def test_a_signature_of_before_the_databases_start_is_refused(
    database: Database, nonces: NonceStore
) -> None:
    with psycopg.connect(database.superuser_url) as connection:
        row = connection.execute("SELECT extract(epoch FROM pg_postmaster_start_time())").fetchone()
    assert row is not None
    start_s = int(row[0])
    assert await nonces.take([nonce("before", start_s - 1)]) == [False]


async def test_old_nonces_are_swept_in_bounded_steps(
    database: Database, nonces: NonceStore
) -> None:
    assert await nonces.take([nonce("new")]) == [True]
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO callboard.request_nonce (hash, expires_s)"
            " SELECT sha256(n::text::bytea), n FROM generate_series(1, 1200) AS n"
        )
        assert await nonces.old.remove_some() == 500
        await nonces.old.remove()
        count = connection.execute("SELECT count(*) FROM callboard.request_nonce").fetchone()
    assert count == (1,)
    assert await nonces.take([nonce("new")]) == [False]


async def test_what_is_stored_of_dids(next_writer: NextWriter, database: Database) -> None:
    store = await next_writer()
    commands = [api_key("k", b"k" * 32), card(), revoke("did:test:gone")]
    assert {outcome.error for outcome in await store.commit(commands, AT)} == {None}
    asked = [PAYER, AGENT, "did:test:gone", "did:test:stranger"]
    async with LedgerReader(database.service_url) as reader:
        rows = await standing_rows(reader, asked)
    assert sorted(rows) == sorted(asked[:3])
    assert rows[PAYER]["has_keys"]
    assert (rows[AGENT]["is_active"], rows[AGENT]["owner_did"]) == (True, PAYER)
    assert rows["did:test:gone"]["is_revoked"]
