"""A database that a module's tests share, and an auditor who looks at the books after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from ledger.embedded.server import EmbeddedPostgres
from ledger.features.offers import OfferIndex
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database, copied_database
from tests.ledger.checking import Auditor
from tests.ledger.making import NextWriter, begin, open_store


@pytest.fixture
def auditor(database: Database) -> Iterator[Auditor]:
    """Sees everything (a superuser's connection); every test must leave sound books behind."""
    watching = Auditor(database.superuser_url)
    yield watching
    watching.check()
    watching.close()


@pytest.fixture(scope="module")
def shared_database(
    request: pytest.FixtureRequest, postgres: EmbeddedPostgres, migrated_template: str
) -> Iterator[Database]:
    """A migrated database for tests that leave nothing behind or do not mind each other."""
    name = "shared_" + request.module.__name__.rpartition(".")[2]
    with copied_database(postgres, migrated_template, name) as made:
        yield made


@pytest.fixture
async def next_writer(database: Database, auditor: Auditor) -> AsyncIterator[NextWriter]:
    """Open the test's ledger as its next writer, which reads the rows anew and ends the last one.

    The books must be sound when the test ends.
    """
    async with AsyncExitStack() as stack:

        async def open_next() -> LedgerStore:
            opened = await open_store(database.service_url)
            stack.push_async_callback(opened.close)
            return opened

        yield open_next


@pytest.fixture
async def empty_store(next_writer: NextWriter) -> LedgerStore:
    """The test's ledger, empty."""
    return await next_writer()


@pytest.fixture
async def store(empty_store: LedgerStore) -> LedgerStore:
    """The test's ledger, with a payer who has money and a member that holds every shard."""
    await begin(empty_store)
    return empty_store


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[LedgerReader]:
    """A reader of the test's ledger."""
    async with LedgerReader(database.service_url, pool_size=2) as opened:
        yield opened


@pytest.fixture
async def offers(database: Database) -> AsyncIterator[OfferIndex]:
    """The index of what agents offer, of the test's ledger."""
    index = OfferIndex(database.service_url)
    yield index
    await index.close()
