"""Reading the books as a writer begins, or begins again after a batch that was rolled back.

What is small and asked for by every batch is read whole: the head and the owners. money.md section
4.
"""

from __future__ import annotations

from typing import Any

import psycopg

from ledger.errors import LedgerFenced
from ledger.writer.cache_loading import load_needs
from ledger.writer.read_set import Needs
from ledger.writer.state_cache import (
    FEE_ADDRESS,
    WORLD_ADDRESS,
    Books,
    Head,
)

Connection = psycopg.AsyncConnection[Any]


async def read_books(connection: Connection, epoch: int) -> Books:
    """Return the committed state.

    Raises:
        LedgerFenced: another writer has taken over since this epoch.
    """
    cursor = await connection.execute(
        "SELECT entry_seq, audit_seq, hash, (SELECT max(id) FROM callboard.account), epoch,"
        " (SELECT created_ms FROM callboard.audit ORDER BY id DESC LIMIT 1)"
        " FROM callboard.head"
    )
    row = await cursor.fetchone()
    assert row is not None
    if row[4] != epoch:
        raise LedgerFenced(f"ledger writer fenced off: epoch {epoch}, the ledger is at {row[4]}")
    head = Head(
        epoch=epoch,
        entry_seq=row[0],
        audit_seq=row[1],
        hash=row[2],
        account_seq=row[3],
        latest_ms=row[5] or 0,
    )
    books = Books(head)
    await load_needs(connection, books, Needs(addresses={WORLD_ADDRESS, FEE_ADDRESS}))
    owners = await connection.execute("SELECT name, epoch FROM callboard.owner")
    books.owners.update(await owners.fetchall())
    return books
