"""The books of one workflow, added up in exact decimals from the entries of its escrow.

Reference: money.md (Settlement).
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
    """Add up one workflow.

    Args:
        entries: every ledger entry of the workflow, as its payer reads them.
    """
    sums = dict.fromkeys(("escrow_hold", "escrow_release"), _ZERO)
    lines: dict[str, dict[str, Decimal]] = {"node_payment": {}, "protocol_fee": {}}
    for entry in entries:
        # Through text: a JSON number becomes a float, its shortest text is the amount as sent.
        amount = Decimal(str(entry["amount"]))
        if entry["kind"] in lines:
            line = lines[entry["kind"]]
            line[entry["nodeId"]] = line.get(entry["nodeId"], _ZERO) + amount
        else:
            sums[entry["kind"]] += amount
    return Books(
        held=sums["escrow_hold"],
        paid=lines["node_payment"],
        fees=lines["protocol_fee"],
        refunded=sums["escrow_release"],
    )
