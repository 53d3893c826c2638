"""The books of one workflow, added up from its ledger entries in exact decimals.

Spec: Settlement rules 1 to 4. money.md section 2 (kinds of entries).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Books:
    """What a workflow held, and where it went; credits.

    `paid` and `fees` are by node.
    """

    held: Decimal
    paid: Mapping[str, Decimal]
    fees: Mapping[str, Decimal]
    refunded: Decimal

    @property
    def paid_in_all(self) -> Decimal:
        """What the agents received together."""
        return sum(self.paid.values(), _ZERO)

    @property
    def fees_in_all(self) -> Decimal:
        """What the protocol kept."""
        return sum(self.fees.values(), _ZERO)

    @property
    def is_balanced(self) -> bool:
        """Whether every credit held is accounted for: hold = paid + fee + refund."""
        return self.held == self.paid_in_all + self.fees_in_all + self.refunded


def books_of(entries: Iterable[Mapping[str, Any]]) -> Books:
    """Add up the entries of one workflow.

    Args:
        entries: ledger entries, in any order.

    Raises:
        ValueError: an entry of a kind that has no place in a workflow's books.
    """
    held = refunded = _ZERO
    paid: dict[str, Decimal] = {}
    fees: dict[str, Decimal] = {}
    for entry in entries:
        # Through text: a JSON number becomes a float, its shortest text is the amount as sent.
        amount = Decimal(str(entry["amount"]))
        match entry["kind"]:
            case "escrow_hold":
                held += amount
            case "escrow_release":
                refunded += amount
            case "node_payment":
                paid[entry["nodeId"]] = paid.get(entry["nodeId"], _ZERO) + amount
            case "protocol_fee":
                fees[entry["nodeId"]] = fees.get(entry["nodeId"], _ZERO) + amount
            case kind:
                raise ValueError(f"entry {entry['id']} is of kind {kind!r}, in a workflow's books")
    return Books(held, paid, fees, refunded)
