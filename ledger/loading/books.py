"""Reading the books as a writer begins, or begins again after a batch that was rolled back.

What is small and asked for by every batch is read whole: the head, owners, revocations. money.md
section 4.
"""

from __future__ import annotations

from typing import Any

import psycopg

from ledger.errors import LedgerFenced
from ledger.loading.load import load_needs
from ledger.planning.books import FEE_ADDRESS, WORLD_ADDRESS, Books, Head, Revocation
from ledger.planning.needs import Needs

Connection = psycopg.AsyncConnection[Any]


async def read_books(connection: Connection, epoch: int) -> Books:
    """Return the committed state.

    Raises:
        LedgerFenced: another writer has taken over since this epoch.
    """
    cursor = await connection.execute(
        "SELECT entry_seq, audit_seq, hash, (SELECT max(id) FROM callboard.account), epoch"
        " FROM callboard.head"
    )
    row = await cursor.fetchone()
    assert row is not None
    if row[4] != epoch:
        raise LedgerFenced(f"ledger writer fenced off: epoch {epoch}, the ledger is at {row[4]}")
    books = Books(
        Head(epoch=epoch, entry_seq=row[0], audit_seq=row[1], hash=row[2], account_seq=row[3])
    )
    await load_needs(connection, books, Needs(addresses={WORLD_ADDRESS, FEE_ADDRESS}))
    owners = await connection.execute("SELECT name, epoch FROM callboard.owner")
    books.owners.update(await owners.fetchall())
    revoked = await connection.execute(
        "SELECT did, revoked_by_did, expires_ms FROM callboard.revocation WHERE ended_ms IS NULL"
    )
    books.revoked = {did: Revocation(*fields) for did, *fields in await revoked.fetchall()}
    return books
