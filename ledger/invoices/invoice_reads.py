"""Committed invoices and what stands on them. Reference: money.md (Invoices)."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import columns, entry, invoice, invoice_line

LINES_SHOWN_MAX: Final = 1_000
REFUND_KINDS: Final = ("refund", "fee_refund", "stake_refund")


async def invoice_row(reader: LedgerReader, invoice_id: str) -> RowDict | None:
    """Return an invoice's row by its id."""
    return await reader.row(sql.select(invoice).where(invoice.c.id == invoice_id))


async def invoice_rows(
    reader: LedgerReader,
    *,
    payer_did: str | None,
    status: str | None,
    limit: int,
    offset: int,
    before_id: str | None,
) -> list[RowDict]:
    """Return invoices, newest first; of everybody when `payer_did` is None."""
    return await reader.listed(
        sql.select(invoice), "id", before_id, limit=limit, offset=offset, is_newest_first=True,
        payer_did=payer_did, status=status,
    )  # fmt: skip


async def line_rows(reader: LedgerReader, invoice_id: str) -> list[RowDict]:
    """Return the first lines of an invoice with their entries, and in each how many there are.

    `amount_micro` of a payment is gross; of a refund it counts against the rest.
    """
    query = (
        sql.select(
            *columns(invoice_line, "entry_id amount_micro"),
            *columns(entry, "kind workflow_id node_id created_ms"),
            sql.func.count().over().label("line_count"),
        )
        .join(entry, entry.c.id == invoice_line.c.entry_id)
        .where(invoice_line.c.invoice_id == invoice_id)
        .order_by(invoice_line.c.entry_id)
        .limit(LINES_SHOWN_MAX)
    )
    return await reader.rows(query)
