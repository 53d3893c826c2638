"""Large results: stored once by hash, never changed, and known by rows that refer to them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sql

from core.errors import ErrorCode, ServiceError
from ledger.blobs import BlobStore
from ledger.reads.reader import LedgerReader
from tests.conftest import Database

LARGE = b'{"text":"' + b"x" * 900_000 + b'"}'


@pytest.fixture
async def blobs(database: Database) -> AsyncIterator[BlobStore]:
    """The test's blobs."""
    async with LedgerReader(database.service_url, pool_size=2) as reader:
        store = BlobStore(database.service_url, reader)
        yield store
        await store.close()


async def test_what_was_put_is_read_by_its_hash(blobs: BlobStore) -> None:
    name = await blobs.put(LARGE)
    assert name == "sha256:" + hashlib.sha256(LARGE).hexdigest()
    absent = "sha256:" + "0" * 64
    assert await blobs.get([name, absent]) == {name: LARGE}
    assert await blobs.get([]) == {}


async def test_the_same_bytes_are_stored_once_however_often_they_come(
    blobs: BlobStore, database: Database
) -> None:
    names = await asyncio.gather(*(blobs.put(LARGE) for _ in range(6)))
    assert len(set(names)) == 1
    with psycopg.connect(database.superuser_url) as connection:
        count = connection.execute("SELECT count(*) FROM callboard.blob").fetchone()
    assert count == (1,)


async def test_bytes_that_the_database_altered_are_not_returned(
    blobs: BlobStore, database: Database
) -> None:
    name = await blobs.put(b"[1]")
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE callboard.blob DROP CONSTRAINT blob_is_its_hash")
        connection.execute("UPDATE callboard.blob SET bytes = '[2]'")
    with pytest.raises(ValueError, match="another hash"):
        await blobs.get([name])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE callboard.blob SET bytes = ''",
        "DELETE FROM callboard.blob",
        "SELECT 1 FROM callboard.blob",
    ],
)
async def test_who_writes_blobs_may_only_insert(database: Database, statement: str) -> None:
    with psycopg.connect(database.service_url) as connection:
        connection.execute("SET ROLE ops_writer")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


async def test_bytes_under_a_wrong_hash_are_refused(database: Database) -> None:
    with psycopg.connect(database.service_url) as connection:
        connection.execute("SET ROLE ops_writer")
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(
                "INSERT INTO callboard.blob (hash, bytes) VALUES (%s, %s)", (b"0" * 32, b"[]")
            )


async def test_blobs_are_on_disk_when_put_returns(blobs: BlobStore) -> None:
    shown = await blobs.rows(sql.text("SHOW synchronous_commit"))
    assert shown == [{"synchronous_commit": "on"}]


async def test_the_loop_turns_between_two_bodies_that_are_checked() -> None:
    """8 MiB were hashed in one turn."""
    bodies = [str(number).encode() for number in range(5)]
    rows = [{"hash": hashlib.sha256(body).digest(), "bytes": body} for body in bodies]
    turns = 0

    class Reader:
        async def rows(self, _: object) -> list[dict[str, bytes]]:
            asyncio.get_running_loop().call_soon(turn)
            return rows

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns < len(rows):
            asyncio.get_running_loop().call_soon(turn)

    reader: Any = Reader()
    store = BlobStore("postgresql://", reader)
    found = await store.get(["sha256:" + hashlib.sha256(body).hexdigest() for body in bodies])
    assert list(found.values()) == bodies
    assert turns == len(rows)
    await store.close()


async def test_an_absent_database_is_said_to_be_away() -> None:
    url = "postgresql://callboard_service@127.0.0.1:1/nothing"
    async with LedgerReader(url, pool_size=1) as reader:
        store = BlobStore(url, reader)
        with pytest.raises(ServiceError) as refused:
            await store.put(b"{}")
        assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE
