"""Compares what a peer charged for our orders with what the peer's account here received.

An order is a workflow of one node that an attempt here published at the peer. No I/O, no clock.
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


# An order whose charged and received amounts differ: its id, the order here, and the order there.
# None stands for an order that this side does not know.
Difference = tuple[str, OrderHere | None, OrderThere | None]


@dataclass
class Comparison:
    """The sums over all orders of a period that have ended on both sides, and the differences.

    `order_count`: the ended orders that the peer knows. `open_orders`: the number of orders that
    are open on at least one side. `lost_micro`: what the peer charged for attempts that failed
    here, less what its account received for them. `differences`: the orders whose amounts differ
    for any other reason.
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

    An order belongs to the period in which its attempt ended here. An order without an ended
    attempt here belongs to the period in which it was published.

    Args:
        here, there: the orders known on each side, by order id; orders of other periods are
            ignored.
        open_ids: the ids of orders whose attempts have not ended here.
        start_ms, end_ms: the period, Unix milliseconds; `end_ms` is excluded.
    """
    found = Comparison()
    for order_id in sorted(here.keys() | there.keys()):
        ours, theirs = here.get(order_id), there.get(order_id)
        at_ms = ours.ended_ms if ours else theirs.created_ms if theirs else 0
        if not start_ms <= at_ms < end_ms:
            continue
        if order_id in open_ids or (theirs is not None and not theirs.is_ended):
            found.open_orders += 1
            continue
        charged_micro = theirs.charged_micro if theirs else 0
        received_micro = ours.received_micro if ours else 0
        found.order_count += theirs is not None
        found.charged_micro += charged_micro
        found.received_micro += received_micro
        has_failed_here = ours is not None and ours.outcome != "success"
        if has_failed_here and charged_micro > received_micro:
            found.lost_micro += charged_micro - received_micro
        elif charged_micro != received_micro:
            found.differences.append((order_id, ours, theirs))
    return found
