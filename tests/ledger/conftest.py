"""A database that a module's tests share, and an auditor who looks at the books after each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from ledger.embedded.server import EmbeddedPostgres
from ledger.errors import LedgerIntegrityError
from ledger.features.offers import OfferIndex
from ledger.reads.reader import LedgerReader
from ledger.writer.group_commit import GroupCommit
from ledger.writer.store import LedgerStore
from tests.conftest import Database, copied_database
from tests.ledger.checking import Auditor
from tests.ledger.making import AT, GENESIS, NextWriter, begin, open_store
from tests.ledger.writers import DEADLINE_S, Clock, Start, WatchedWriter


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
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a silent database up soon."""
    monkeypatch.setattr("ledger.writer.group_commit.COMMIT_TIMEOUT_S", 1.0)


@pytest.fixture
def fatal() -> list[LedgerIntegrityError]:
    """What the writers of a test were stopped by."""
    return []


@pytest.fixture
def clock() -> Clock:
    """The clock of the test's writers."""
    return Clock()


@pytest.fixture
async def start(
    database: Database,
    auditor: Auditor,
    clock: Clock,
    fatal: list[LedgerIntegrityError],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Start]:
    """Start writers, with other constants of their module; all are stopped after the test."""
    started: list[GroupCommit] = []

    async def start_one(**constants: float) -> GroupCommit:
        for name, value in constants.items():
            monkeypatch.setattr(f"ledger.writer.group_commit.{name.upper()}", value)
        commits = WatchedWriter(
            database.service_url,
            genesis=GENESIS,
            on_fatal=fatal.append,
            now_ms=lambda: AT,
            boot_ms=clock,
        )
        await commits.start()
        started.append(commits)
        return commits

    yield start_one
    async with asyncio.timeout(DEADLINE_S):
        for commits in started:
            await commits.stop()


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
