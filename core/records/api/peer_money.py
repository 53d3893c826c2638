"""The money of peers: statements, balances and the comparison of both books.

Reference: money.md (Work of peers).
"""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import Count, Credits, Did, TimeMs, Timestamp, Uuid, Yes, matching
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Maybe, MaybeNull

Month = Annotated[str, matching("20[0-9]{2}-(0[1-9]|1[0-2])", "a month such as 2026-11")]
# Differences that a check lists.
DIFFERENCES_MAX: Final = 100


class StatementQuery(PageQuery):
    """The month of a statement."""

    month: Annotated[Maybe[Month], "Month in UTC, such as 2026-11. Default: the current one."] = (
        None
    )


class CheckQuery(Body):
    """The period of a check."""

    month: Annotated[Maybe[Month], "Month in UTC, such as 2026-11. Default: the current one."] = (
        None
    )
    start_time: Annotated[
        Maybe[TimeMs], "Start of the period, included. Needs `endTime`, and no `month`."
    ] = None
    end_time: Annotated[Maybe[TimeMs], "End of the period, excluded."] = None


class PeerOrder(Record):
    """An attempt of a node that ran at a peer."""

    order_id: Annotated[str, "Id of the order: the `eventId` of the attempt."]
    workflow_id: Annotated[Uuid, "Id of the workflow here."]
    node_id: Annotated[str, "Name of the node."]
    attempt: Annotated[Count, "Number of the attempt."]
    outcome: Annotated[str, "`success`, `error`, `timeout`, `lost` or `discarded`."]
    completed_at: Timestamp
    paid_credits: Annotated[Credits, "What the payer paid, protocol fee included."]
    received_credits: Annotated[Credits, "What the clearing account received."]
    peer_workflow_id: Annotated[Maybe[str], "Id of the order's workflow at the peer."]


class Statement(Page[PeerOrder]):
    """The orders at a peer that ended in a month, newest first, and the sums of all of them."""

    plural = "orders"
    row = PeerOrder

    peer_id: Annotated[str, "Id of the peer."]
    month: Annotated[str, "The month, in UTC."]
    order_count: Annotated[Count, "Number of orders of the month."]
    paid_credits: Annotated[Credits, "What payers paid in the month, protocol fee included."]
    received_credits: Annotated[Credits, "What the clearing account received in the month."]


class PeerBalance(Record):
    """What the clearing account of a peer holds, and what this deployment has at the peer."""

    peer_id: Annotated[str, "Id of the peer."]
    clearing_did: Annotated[Did, "DID of the clearing account here."]
    clearing_credits: Annotated[Credits, "Credits in the clearing account."]
    own_did: Annotated[Did, "DID of this deployment, which pays for orders at the peer."]
    own_credits: Annotated[
        Credits | None,
        "Free credits of this deployment at the peer; null: the peer gave no answer.",
    ]
    own_pending: Annotated[
        Credits | None, "Credits that its unfinished orders hold there; null: as `ownCredits`."
    ]


class OrderDifference(Record):
    """An order whose charge at the peer is not what the clearing account received."""

    order_id: Annotated[str, "Id of the order."]
    peer_workflow_id: Annotated[MaybeNull[str], "Id of its workflow at the peer; null: none."]
    outcome: Annotated[MaybeNull[str], "Outcome of the attempt here; null: there is none."]
    charged_credits: Annotated[Credits, "What the peer charged."]
    received_credits: Annotated[Credits, "What the clearing account received."]


class PeerCheck(Record):
    """The books of a period, compared order by order."""

    peer_id: Annotated[str, "Id of the peer."]
    start_time: Annotated[Timestamp, "Start of the period."]
    end_time: Annotated[Timestamp, "End of the period, excluded."]
    agrees: Annotated[bool, "Whether there are no differences."]
    order_count: Annotated[Count, "Orders that ended on both sides."]
    open_orders: Annotated[
        Count, "Orders that have not ended on one side yet. They are not compared."
    ]
    charged_credits: Annotated[Credits, "What the peer charged for them."]
    received_credits: Annotated[Credits, "What the clearing account received for them."]
    lost_credits: Annotated[
        Credits, "Charged for attempts that did not succeed here, beyond what was paid for them."
    ]
    differences: Annotated[
        list[OrderDifference],
        f"Orders whose charge there is not what was received here, at most {DIFFERENCES_MAX}."
        " `lostCredits` are no difference.",
    ]


class Settled(Record):
    """What was moved out of a clearing account."""

    success: Yes
    id: Annotated[int, "Number of the entry."]
    clearing_did: Annotated[Did, "DID of the clearing account."]
    owner_did: Annotated[Did, "DID of the wallet that received it."]
    amount: Annotated[Credits, "Amount that was moved."]
    balance: Annotated[Credits, "Balance of the clearing account."]
    owner_balance: Annotated[Credits, "Balance of the wallet that received it."]
