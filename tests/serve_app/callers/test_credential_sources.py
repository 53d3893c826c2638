"""Keys and rate blocks out of the real database, and what is said when it is away."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import ErrorCode, ServiceError
from ledger.operational import OperationalStore
from ledger.reads.reader import LedgerReader
from serve_app.callers.credential_sources import find_keys_in
from tests.conftest import Database

NOBODY_LISTENS = "postgresql://nobody@127.0.0.1:1/nothing"


def test_blocks_of_two_stores_never_exceed_the_limit(database: Database) -> None:
    async def scenario() -> list[int]:
        stores = [OperationalStore(database.service_url) for _ in range(2)]
        try:
            takes = [store.take_rate_block for store in stores]
            blocks = await asyncio.gather(
                *(takes[number % 2]("alice", "write", 7, 30) for number in range(10))
            )
            return sorted(block.calls for block in blocks)
        finally:
            for store in stores:
                await store.close()

    assert asyncio.run(scenario()) == [0, 0, 0, 0, 0, 2, 7, 7, 7, 7]


async def test_an_unknown_key_is_found_by_nobody(database: Database) -> None:
    async with LedgerReader(database.service_url) as reader:
        assert await find_keys_in(reader)([b"\0" * 32, b"\1" * 32]) == [None, None]


async def test_without_a_database_one_is_told_to_come_again() -> None:
    reader, store = LedgerReader(NOBODY_LISTENS), OperationalStore(NOBODY_LISTENS)
    for question in (
        find_keys_in(reader)([b"\0" * 32]),
        store.take_rate_block("alice", "read", 1, 1),
    ):
        with pytest.raises(ServiceError) as refusal:
            await question
        assert refusal.value.code is ErrorCode.LEDGER_UNAVAILABLE
    await reader.close()
    await store.close()
