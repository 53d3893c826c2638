"""The check of the books: each wrong row is named, and none is while the ledger is in use.

Reference: money.md (Checking the books).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from core.workflow.events import StakeUnlocked
from ledger.features.books import BooksCheck, Disagreement
from ledger.features.invoices import with_content
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from ledger.schema import engine_url
from ledger.writer.group_commit import GroupCommit
from tests.conftest import Database
from tests.ledger.checking import wrong_row
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    GENESIS,
    PAYER,
    Flow,
    card,
    deposit,
    hold_all,
    open_with_member,
    succeeded,
)
from tests.ledger.test_invoices import of_workflow
from tests.ledger.test_stakes import stake
from tests.ledger.test_stakes_at_risk import STARTED, opened

LOCKED = CREDIT // 2


@dataclass
class Books:
    """A ledger with money in each of its tables, and a session that may break its rows."""

    running: str
    ended: str
    invoice: str
    line: int
    session: AsyncConnection

    async def read(self, statement: sql.Executable, values: Mapping[str, Any]) -> list[RowDict]:
        return [dict(row) for row in (await self.session.execute(statement, values)).mappings()]


async def fill(database: Database) -> tuple[str, str, str, int]:
    store = await open_with_member(database.service_url)
    running, ended = Flow(hold=10 * CREDIT), Flow(hold=3 * CREDIT)
    owned = [card(), deposit(CREDIT, owner_did=AGENT), stake(CREDIT), ended.publish()]
    started = running.publish(records=(STARTED, *opened(micro=LOCKED)))
    for commands in (owned, [started, ended.pay(2 * CREDIT), ended.end()]):
        outcomes = await store.commit(commands, AT)
        assert all(one.error is None for one in outcomes), outcomes
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        invoice = await with_content(reader, of_workflow(ended.id))
        (issued,) = await store.commit([invoice], AT + 1)
        assert issued.error is None
        assert await wrong_row(BooksCheck(reader.rows)) is None, "as the service reads"
    await store.close()
    return running.id, ended.id, invoice.invoice_id, invoice.payments[0][0]


@pytest.fixture(scope="module")
def filled(shared_database: Database) -> tuple[str, str, str, int]:
    return asyncio.run(fill(shared_database))


@pytest.fixture
async def books(
    shared_database: Database, filled: tuple[str, str, str, int]
) -> AsyncIterator[Books]:
    """What a test breaks is undone after it."""
    engine = create_async_engine(engine_url(shared_database.superuser_url))
    async with engine.connect() as session, session.begin() as begun:
        for table in ("account", "entry", "escrow", "invoice", "invoice_line"):
            await session.execute(sql.text(f"ALTER TABLE callboard.{table} DISABLE TRIGGER ALL"))
        yield Books(*filled, session)
        await begun.rollback()
    await engine.dispose()


async def test_sound_books_agree_whatever_the_size_of_a_page(books: Books) -> None:
    for page_rows in (1, 2, 5_000):
        check = BooksCheck(books.read)
        check.page_rows = page_rows
        assert await wrong_row(check) is None
        assert check.entries == 9
        # The world, the fee, two wallets, two parts of a stake, two escrows.
        assert check.rows == {"account": 8, "escrow": 2, "stake": 1, "invoice": 1}


MORE = "UPDATE callboard.{} SET {} = {} + 1"
# What breaks a row, and its name: table, key, column, stored, expected.
BREAKS = {
    "a wallet": (
        "UPDATE callboard.account SET balance = balance + 7 WHERE address = '{wallet}'",
        ("account", "{wallet}", "balance", "1900007", "1900000"),
    ),
    "what was issued": (
        "UPDATE callboard.account SET balance = balance + 1 WHERE address = 'world'",
        ("account", "world", "balance", "-100999999", "-101000000"),
    ),
    "the fees": (
        "UPDATE callboard.account SET balance = balance - 1 WHERE address = 'fee'",
        ("account", "fee", "balance", "99999", "100000"),
    ),
    "an entry": (
        "UPDATE callboard.entry SET amount = amount - 1 WHERE kind = 'protocol_fee'",
        ("account", "fee", "balance", "100000", "99999"),
    ),
    "an entry that is gone": (
        "DELETE FROM callboard.entry WHERE kind = 'escrow_release'",
        ("account", "wallet:did:test:payer", "balance", "88000000", "87000000"),
    ),
    "an escrow's account": (
        "UPDATE callboard.account SET balance = balance - 1 WHERE address = 'escrow:{running}'",
        ("account", "escrow:{running}", "balance", "9999999", "10000000"),
    ),
    "an account that is gone": (
        "DELETE FROM callboard.account WHERE address = '{wallet}'",
        ("account", "{agent}", "id", "no row", "{agent}"),
    ),
    "an escrow's amount": (
        "UPDATE callboard.escrow SET amount = amount + 1 WHERE workflow_id = '{running}'",
        ("escrow", "{running}", "amount", "10000001", "10000000"),
    ),
    "an escrow's payer": (
        "UPDATE callboard.escrow SET payer_did = 'did:test:other' WHERE workflow_id = '{ended}'",
        ("escrow", "{ended}", "payer_did", "did:test:other", PAYER),
    ),
    "an escrow that is released too early": (
        "UPDATE callboard.escrow SET status = 'released' WHERE workflow_id = '{running}'",
        ("escrow", "{running}", "status", "released", "held"),
    ),
    "an escrow that is held too long": (
        "UPDATE callboard.escrow SET status = 'held' WHERE workflow_id = '{ended}'",
        ("escrow", "{ended}", "status", "held", "released"),
    ),
    "a workflow that ended with money left": (
        "UPDATE callboard.workflow SET status = 'success', completed_ms = 1 WHERE id = '{running}';"
        "UPDATE callboard.escrow SET status = 'released' WHERE workflow_id = '{running}'",
        ("escrow", "{running}", "rest", "10000000", "0"),
    ),
    "a stake's account": (
        "UPDATE callboard.stake SET free_account_id = 2",
        ("stake", AGENT, "free_address", "fee", f"stake:{AGENT}"),
    ),
    "a stake's share": (
        "UPDATE callboard.stake_share SET micro = micro + 1",
        ("stake", AGENT, "shares", "1000001", "1000000"),
    ),
    "a lock that no node has": (
        "UPDATE callboard.node SET stake_micro = 0",
        ("stake", AGENT, "locked", "500000", "0"),
    ),
    "a node that has more locked": (
        "UPDATE callboard.node SET stake_micro = stake_micro + 1 WHERE stake_micro > 0",
        ("stake", AGENT, "locked", "500000", "500001"),
    ),
    "an invoice's sum": (
        MORE.format("invoice", "subtotal_micro", "subtotal_micro"),
        ("invoice", "{invoice}", "subtotal_micro", "2000001", "2000000"),
    ),
    "an invoice's cents": (
        "UPDATE callboard.invoice SET subtotal_cents = 201, total_cents = 202",
        ("invoice", "{invoice}", "subtotal_cents", "201", "200"),
    ),
    "an invoice's fee": (
        "UPDATE callboard.invoice SET protocol_fee_cents = 0, total_cents = 200",
        ("invoice", "{invoice}", "protocol_fee_cents", "0", "1"),
    ),
    "an invoice's line": (
        MORE.format("invoice_line", "amount_micro", "amount_micro"),
        ("invoice", "{invoice}", "line", "[{line}, 2000001]", "[{line}, 2000000]"),
    ),
}


@pytest.mark.parametrize("broken", BREAKS)
async def test_a_wrong_row_is_named(books: Books, broken: str) -> None:
    change, expected = BREAKS[broken]
    wallet = f"wallet:{AGENT}"
    find = sql.text("SELECT id FROM callboard.account WHERE address = :wallet")
    (row,) = await books.read(find, {"wallet": wallet})
    names = {**vars(books), "agent": row["id"], "wallet": wallet}
    for statement in change.format(**names).split(";"):
        await books.session.execute(sql.text(statement))
    found = await wrong_row(BooksCheck(books.read))
    assert found == Disagreement(*(text.format(**names) for text in expected))


async def test_no_row_is_wrong_while_the_ledger_is_in_use(
    database: Database, reader: LedgerReader
) -> None:
    """Small pages, so that most rows change between the pages of a check."""
    commits = GroupCommit(database.service_url, genesis=GENESIS, on_fatal=lambda _: None)
    await commits.start()
    epoch = await hold_all(commits)
    await commits.submit([deposit(200 * CREDIT), deposit(9 * CREDIT, owner_did=AGENT), card()])
    await commits.submit([stake(9 * CREDIT)])

    async def work() -> None:
        for _ in range(6):
            flow = Flow(epoch, hold=3 * CREDIT)
            published = flow.publish(records=(STARTED, *opened(micro=LOCKED)))
            paid = flow.advance(StakeUnlocked("a", 1, AGENT, LOCKED), *succeeded("a", CREDIT))
            for command in (published, paid, flow.end()):
                (outcome,) = await commits.submit([command])
                assert outcome.error is None, outcome

    working = asyncio.gather(*(work() for _ in range(5)))
    checks = 0

    def in_small_pages(reader: LedgerReader) -> BooksCheck:
        check = BooksCheck(reader.rows)
        check.page_rows = 7
        return check

    while not working.done() or not checks:
        assert await wrong_row(in_small_pages(reader)) is None
        checks += 1
    await working
    await commits.stop()
    assert await wrong_row(in_small_pages(reader)) is None
