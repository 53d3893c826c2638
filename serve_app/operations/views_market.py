"""Rows of the market turned into the specification's records, as JSON.

Reference: money.md (Accounts, Entries, Escrow, Stakes, Reputation, Quotas).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from core.market.reputation import Tally, score
from core.market.sharing.quota import QuotaLimits, QuotaUsage
from core.money import CURRENCY, credits_number
from core.records.api.market import Auction, BidShown, Round
from ledger.reads.reader import RowDict
from ledger.reads.stored import Balance
from serve_app.operations.views import iso_time, shown

Row = Mapping[str, Any]


def balance_record(did: str, balance: Balance) -> dict[str, Any]:
    """Return what a DID can spend, and what its running workflows hold."""
    amount = credits_number(balance.balance_micro)
    return {
        "ownerDid": did,
        "balance": amount,
        "credits": amount,
        "currency": CURRENCY,
        "pending": credits_number(balance.pending_micro),
    }


def stake_record(
    agent_did: str, free_micro: int, locked_micro: int, updated_ms: int | None
) -> dict[str, Any]:
    """Return an agent's stake."""
    return {
        "agentDid": agent_did,
        "stakedAmount": credits_number(free_micro + locked_micro),
        "lockedAmount": credits_number(locked_micro),
        "currency": CURRENCY,
        "updatedAt": iso_time(updated_ms),
    }


def reputation_record(
    agent_did: str, tally: Tally, updated_ms: int | None, *, latency_ms_max: int
) -> dict[str, Any]:
    """Return an agent's reputation; one without history is neutral."""
    return {
        "agentDid": agent_did,
        "overallScore": score(tally, latency_ms_max=latency_ms_max),
        "successRate": tally.success_rate,
        "completionRate": tally.completion_rate,
        "avgLatencyMs": tally.latency_ms_avg,
        "totalTasks": tally.total,
        "successfulTasks": tally.successful,
        "failedTasks": tally.failed,
        "cancelledTasks": tally.cancelled,
        "updatedAt": iso_time(updated_ms),
    }


def counts_record(tally: Tally) -> dict[str, int]:
    """Return an agent's counts as they are."""
    paid = tally.counted(asks_price=True)
    return {
        "successful": tally.successful,
        "failed": tally.failed,
        "cancelled": tally.cancelled,
        "latencyMs": tally.latency_ms_sum,
        "paidSuccessful": paid.successful,
        "paidFailed": paid.failed,
        "paidCancelled": paid.cancelled,
        "paidLatencyMs": paid.latency_ms_sum,
    }


def limits_record(limits: QuotaLimits | None) -> dict[str, int | None] | None:
    """Return a quota's limits, null without a quota."""
    if limits is None:
        return None
    return {
        "maxWorkflowsPerDay": limits.workflows_per_day,
        "maxConcurrentWorkflows": limits.workflows_concurrent,
        "maxSpendPerDayCents": limits.spend_cents_per_day,
    }


def usage_record(usage: QuotaUsage) -> dict[str, int]:
    """Return what is used of a quota."""
    return {
        "dailyWorkflows": usage.workflows_today,
        "dailySpendCents": usage.spend_cents_today,
        "concurrentWorkflows": usage.workflows_running,
    }


def auction_record(
    rounds: Sequence[Row], bids: Sequence[RowDict], may_read: Callable[[RowDict], bool]
) -> dict[str, Any]:
    """Return a node's auction: its last round's terms and end, and all rounds with their bids.

    Args:
        rounds: at least one, in their order.
        bids: of closed rounds, the lowest first.
        may_read: whether the caller may read a bid; the others are counted.
    """
    last = rounds[-1]
    each = [{**shown(Round, row), **_bids_of(row, bids, may_read)} for row in rounds]
    return shown(Auction, last, node_id=last["node"], rounds=each)


def _bids_of(
    row: Row, bids: Iterable[RowDict], may_read: Callable[[RowDict], bool]
) -> dict[str, Any]:
    """Return the bids of a round, none while it is open, each with why it could not win."""
    excluded: Mapping[str, str] = row["excluded"] or {}
    made = [bid for bid in bids if bid["round"] == row["round"]]
    listed = [
        shown(
            BidShown,
            bid,
            bid_amount=credits_number(bid["amount_micro"]),
            excluded=excluded.get(bid["agent_did"]),
        )
        for bid in made
        if may_read(bid)
    ]
    return {
        "bids": None if row["status"] == "open" else listed,
        "unlistedBids": len(made) - len(listed),
    }
