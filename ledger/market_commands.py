"""The market's commands: prices.

They come and go like those of `commands.py`, which joins them into one union. Spec: Capability
price, Per-token pricing; contract.md section 6 (Capability prices).
"""

from __future__ import annotations

from dataclasses import dataclass

from core.market.pricing import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPrice:
    """Register what a capability costs where an agent's card names no price of its own.

    Result: {"updatedMs": int}.
    """

    key: str
    actor_did: str
    capability_id: str
    price: Price


MarketCommand = SetPrice
