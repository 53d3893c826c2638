"""Compares the orders sent to a peer: the amounts charged there with the amounts received here.

An order is the workflow at the peer that an attempt here has published. Pure.
Reference: money.md (Work of peers).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class OrderHere(NamedTuple):
    """An attempt that ended here, with the amount that the peer's clearing account received."""

    outcome: str
    ended_ms: int
    received_micro: int


class OrderThere(NamedTuple):
    """The workflow of an order at the peer, with the amount that the peer charged for it."""

    workflow_id: str
    created_ms: int
    is_ended: bool
    charged_micro: int


# The id of an order whose charged and received amounts differ, and the order on both sides; None if
# that side does not know the order.
Difference = tuple[str, OrderHere | None, OrderThere | None]


@dataclass
class Comparison:
    """The sums over all orders of a period that have ended on both sides, and the differences.

    `order_count`: orders that the peer knows. `open_orders`: orders that have not ended on both
    sides. `lost_micro`: the part of `charged_micro` that was not received because the attempt
    failed here. `differences`: the other orders whose amounts differ.
    """

    order_count: int = 0
    open_orders: int = 0
    charged_micro: int = 0
    received_micro: int = 0
    lost_micro: int = 0
    differences: list[Difference] = field(default_factory=list)


def compare(
    here: Mapping[str, OrderHere],
    there: Mapping[str, OrderThere],
    open_ids: Collection[str],
    *,
    start_ms: int,
    end_ms: int,
) -> Comparison:
    """Compare the orders of a period.

    An order belongs to the period in which its attempt ended here. An order that is unknown here
    belongs to the period in which it was published. So each order is in exactly one period.

    Args:
        here, there: the orders known on each side, by order id; orders of other periods are
            ignored.
        open_ids: the ids of orders whose attempts have not ended here.
        start_ms, end_ms: the period, Unix milliseconds; `end_ms` is excluded.
    """
    found = Comparison()
    for order_id in sorted(here.keys() | there.keys()):
        known, other = here.get(order_id), there.get(order_id)
        at_ms = known.ended_ms if known else other.created_ms if other else 0
        if not start_ms <= at_ms < end_ms:
            continue
        if order_id in open_ids or (other is not None and not other.is_ended):
            found.open_orders += 1
            continue
        charged_micro = other.charged_micro if other else 0
        received_micro = known.received_micro if known else 0
        found.order_count += other is not None
        found.charged_micro += charged_micro
        found.received_micro += received_micro
        may_lose = known is not None and known.outcome != "success"
        if may_lose and charged_micro > received_micro:
            found.lost_micro += charged_micro - received_micro
        elif charged_micro != received_micro:
            found.differences.append((order_id, known, other))
    return found
