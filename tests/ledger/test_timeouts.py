"""A server that says nothing: who waits for it is told so in time, and finds it again later.

A backend of Postgres is stopped (SIGSTOP), which is what a frozen machine looks like from here: the
connection stands and no answer comes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from core.errors import ServiceError
from ledger.blobs import BlobStore
from ledger.operational import OperationalStore
from ledger.reads.reader import LedgerReader
from ledger.replies import ReplyStore
from ledger.writer.group_commit import GroupCommit
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import CREDIT, GENESIS, PAYER, deposit
from tests.ledger.writers import unavailable
from tests.platform.waiting import until

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0
# What a server that answers never takes, on a busy machine either.
TIMEOUT_S = 0.5


@contextmanager
def frozen(auditor: Auditor, application: str) -> Iterator[None]:
    """Stop the backends of an application in this database for the length of the block."""
    pids = [
        row[0]
        for row in auditor.connection.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE application_name = %s AND datname = current_database()",
            (application,),
        )
    ]
    assert pids, f"no connection of {application}"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_reader_gives_a_silent_server_up_and_connects_anew(
    database: Database, auditor: Auditor
) -> None:
    async with LedgerReader(database.service_url, pool_size=1, timeout_s=TIMEOUT_S) as reader:
        await reader.ping()
        with frozen(auditor, "callboard-reader"):
            with unavailable():
                await asyncio.wait_for(reader.ping(), DEADLINE_S)
            await asyncio.wait_for(reader.ping(), DEADLINE_S)  # over a new connection


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each store one connection and a short timeout."""
    for kind in (OperationalStore, BlobStore, ReplyStore):
        monkeypatch.setattr(kind, "size", 1)
        monkeypatch.setattr(kind, "timeout_s", TIMEOUT_S)


@pytest.mark.usefixtures("impatient")
async def test_rate_blocks_give_a_silent_server_up(database: Database, auditor: Auditor) -> None:
    store = OperationalStore(database.service_url)

    async def take() -> int:
        asked = store.take_rate_block("p", "read", wanted=1, limit=9)
        return (await asyncio.wait_for(asked, DEADLINE_S)).calls

    assert await take() == 1
    with frozen(auditor, "callboard-operational"):
        with pytest.raises(ServiceError):
            await take()
        assert await take() == 1
    await store.close()


@pytest.mark.usefixtures("impatient")
async def test_large_result_gives_a_silent_server_up(database: Database, auditor: Auditor) -> None:
    """It waited for ever, and its agent's order with it."""
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        store = BlobStore(database.service_url, reader)
        name = await store.put(b"[1]")
        with frozen(auditor, "callboard-blobs"):
            with unavailable():
                await asyncio.wait_for(store.put(b"[2]"), DEADLINE_S)
            assert await asyncio.wait_for(store.put(b"[1]"), DEADLINE_S) == name
        await store.close()


@pytest.mark.usefixtures("impatient")
async def test_kept_replies_give_a_silent_server_up(database: Database, auditor: Auditor) -> None:
    store = ReplyStore(database.service_url, kept_s=60)
    await store.keep("p", "k", b"h" * 32, b"{}")
    with frozen(auditor, "callboard-replies"):
        with pytest.raises(ServiceError):
            await asyncio.wait_for(store.drop("p", "k"), DEADLINE_S)
        assert (await asyncio.wait_for(store.open("p", "k", b"h" * 32), DEADLINE_S)).reply == b"{}"
    await store.close()


async def test_commit_to_a_silent_server_has_no_outcome_and_its_repeat_has_one(
    database: Database, auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent into the silence may still be carried out: the key keeps it from doubling."""
    monkeypatch.setattr("ledger.writer.group_commit.COMMIT_TIMEOUT_S", TIMEOUT_S)
    commits = GroupCommit(database.service_url, genesis=GENESIS, on_fatal=lambda _: None)
    await commits.start()
    command = deposit(CREDIT)
    with frozen(auditor, "callboard-ledger"), unavailable():
        await asyncio.wait_for(commits.submit([command]), DEADLINE_S)
    await until(lambda: commits.statistics().is_open)
    (outcome,) = await commits.submit([command])
    assert outcome.error is None
    assert commits.statistics().reopened == 1
    assert auditor.balance(PAYER) == CREDIT
    await commits.stop()
