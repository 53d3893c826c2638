"""Registered prices: operators set them per capability; they apply if a card has no price.

Reference: money.md (Prices, Per-token prices).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, assert_never

import sqlalchemy as sql

from core.market.pricing import FixedPrice, Price, TokenPrice
from core.money import MICRO_PER_CENT
from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import capability_price
from ledger.tables.market_tables import PRICES
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import plans


class SetPrice(AuthorizedCommand, frozen=True, kw_only=True):
    """Register the price of a capability for agents whose card has no price.

    Result: {"updatedMs": int}.
    """

    capability_id: str
    price: Price


@plans(SetPrice, outlives_credential=True)
def plan_set_price(command: SetPrice, batch: Batch) -> Result:
    """Store the registered price of a capability."""
    row: dict[str, Any] = {
        "capability_id": command.capability_id,
        "set_by_did": command.actor_did,
    }
    match command.price:
        case FixedPrice(micro):
            row["price_cents"] = micro // MICRO_PER_CENT
            payload: dict[str, Any] = {"priceCents": row["price_cents"]}
        case TokenPrice(input_rate, output_rate):
            row["input_rate"] = format(input_rate, "f")
            row["output_rate"] = format(output_rate, "f")
            payload = {"inputRate": row["input_rate"], "outputRate": row["output_rate"]}
        case _:
            assert_never(command.price)
    batch.put(PRICES, command.capability_id, row)
    # Owner processes reserve credits by this price, so their directories must load it.
    batch.is_directory_changed = True
    batch.record(AuditEventType.CAPABILITY_PRICED, ("capability", command.capability_id), **payload)
    return {"updatedMs": batch.now_ms}


# Reads of registered prices.


async def price_row(reader: LedgerReader, capability_id: str) -> RowDict | None:
    """Return a capability's registered price (cents, or two rates as decimal texts), or None."""
    query = sql.select(capability_price).where(capability_price.c.capability_id == capability_id)
    return await reader.row(query)


async def registered_prices(
    reader: LedgerReader, capability_ids: Sequence[str]
) -> dict[str, Price]:
    """Return the registered prices by capability; capabilities without one are left out."""
    known = capability_price.c.capability_id.in_(capability_ids)
    rows = await reader.rows(sql.select(capability_price).where(known))
    return {row["capability_id"]: price_of_row(row) for row in rows}


def has_price(row: RowDict) -> bool:
    """Say whether a capability's row has a registered price joined to it."""
    return row["price_cents"] is not None or row["input_rate"] is not None


def price_of_row(row: RowDict) -> Price:
    """Return the registered price of a row."""
    if row["price_cents"] is not None:
        return FixedPrice(row["price_cents"] * MICRO_PER_CENT)
    return TokenPrice(Decimal(row["input_rate"]), Decimal(row["output_rate"]))
