"""A capability's price where agents' cards name none.

Plain values, as `ledger/commands.py` says. Reference: money.md (Prices).
"""

from __future__ import annotations

from core.market.pricing import Price
from ledger.authority import AuthorizedCommand


class SetPrice(AuthorizedCommand, frozen=True, kw_only=True):
    """Register what a capability costs where an agent's card names no price of its own.

    Result: {"updatedMs": int}.
    """

    capability_id: str
    price: Price
