"""Committed rows of the market: prices.

Reads like those of `reader.py`, over the same pool: plain dicts keyed by column. Reference:
money.md (Prices, Per-token prices).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import sqlalchemy as sql

from core.market.pricing import FixedPrice, Price, TokenPrice
from core.money import MICRO_PER_CENT
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import capability_price


async def price_row(reader: LedgerReader, capability_id: str) -> RowDict | None:
    """Return a capability's registered price: cents, or two rates as decimal texts."""
    query = sql.select(capability_price).where(capability_price.c.capability_id == capability_id)
    return await reader.row(query)


async def registered_prices(
    reader: LedgerReader, capability_ids: Sequence[str]
) -> dict[str, Price]:
    """Return the registered prices of those capabilities that have one."""
    known = capability_price.c.capability_id.in_(capability_ids)
    rows = await reader.rows(sql.select(capability_price).where(known))
    return {row["capability_id"]: price_of_row(row) for row in rows}


def has_price(row: RowDict) -> bool:
    """Say whether a row of a capability has its registered price joined to it."""
    return row["price_cents"] is not None or row["input_rate"] is not None


def price_of_row(row: RowDict) -> Price:
    """Return a registered price."""
    if row["price_cents"] is not None:
        return FixedPrice(row["price_cents"] * MICRO_PER_CENT)
    return TokenPrice(Decimal(row["input_rate"]), Decimal(row["output_rate"]))
