"""The books of one workflow: exact sums of the entries of its escrow.

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
    """The credits that a workflow held, and how they were distributed.

    `paid` and `fees` have an amount for each node.
    """

    held: Decimal
    paid: Mapping[str, Decimal]
    fees: Mapping[str, Decimal]
    refunded: Decimal

    @property
    def paid_in_all(self) -> Decimal:
        """The credits that all agents received."""
        return sum(self.paid.values(), _ZERO)

    @property
    def fees_in_all(self) -> Decimal:
        """The protocol fees of all nodes."""
        return sum(self.fees.values(), _ZERO)

    @property
    def is_balanced(self) -> bool:
        """Whether the hold equals the sum of payments, fees and refund."""
        return self.held == self.paid_in_all + self.fees_in_all + self.refunded


def books_of(entries: Iterable[Mapping[str, Any]]) -> Books:
    """Return the books of one workflow.

    Args:
        entries: all ledger entries of the workflow, as the payer reads them.
    """
    sums = dict.fromkeys(("escrow_hold", "escrow_release"), _ZERO)
    lines: dict[str, dict[str, Decimal]] = {"node_payment": {}, "protocol_fee": {}}
    for entry in entries:
        # The amount was parsed as a float, whose `str` is the decimal that the service sent.
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
