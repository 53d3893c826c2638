"""Committed rows of the market: prices.

Reads like those of `queries.py`, over the same pool: plain dicts keyed by column. Spec: Capability
price, Per-token pricing; contract.md section 6 (More reads).
"""

from __future__ import annotations

import sqlalchemy as sql

from ledger.queries import LedgerReader, RowDict
from ledger.schema import capability_price


async def price_row(reader: LedgerReader, capability_id: str) -> RowDict | None:
    """Return a capability's registered price: cents, or two rates as decimal texts."""
    query = sql.select(capability_price).where(capability_price.c.capability_id == capability_id)
    rows = await reader.rows(query)
    return rows[0] if rows else None
