"""Planning the registered prices of capabilities.

Reference: money.md (Prices, Per-token prices).
"""

from __future__ import annotations

from typing import Any, assert_never

from core.market.pricing import FixedPrice, TokenPrice
from core.money import MICRO_PER_CENT
from core.records.audit import AuditEventType
from ledger.prices.price_commands import SetPrice
from ledger.tables.market_tables import PRICES
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import plans


@plans(SetPrice, outlives_credential=True)
def plan_set_price(command: SetPrice, batch: Batch) -> Result:
    """Register what a capability costs where an agent's card names no price."""
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
    # Owners reserve by it: they are notified as of a card.
    batch.is_directory_changed = True
    batch.record(AuditEventType.CAPABILITY_PRICED, ("capability", command.capability_id), **payload)
    return {"updatedMs": batch.now_ms}
