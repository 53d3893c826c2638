"""Rows of the market turned into the specification's records, as JSON.

Spec: Account, Entry, Escrow, Stake, Reputation, Balance response, Quota check result; contract.md
section 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.market.reputation import Tally, score
from core.market.sharing.quota import QuotaLimits, QuotaUsage
from core.money import CURRENCY, MICRO_PER_CENT, cents_ceil, credits_number
from ledger.reads.stored import Balance
from serve_app.operations.views import entry_record, iso_time

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


def account_record(row: Row) -> dict[str, Any]:
    """Return an account."""
    return {
        "id": row["id"],
        "ownerDid": row["owner_did"],
        "balance": credits_number(row["balance"]),
        "currency": row["currency"],
        "createdAt": iso_time(row["created_ms"]),
    }


def history_record(row: Row) -> dict[str, Any]:
    """Return an entry as an event of its owner's history: its kind, and its sign for the wallet."""
    return {
        **entry_record(row),
        "type": row["kind"],
        "change": credits_number(row["change"]),
    }


def escrow_record(row: Row) -> dict[str, Any]:
    """Return an escrow, the specification's members in its own spelling."""
    return {
        "workflow_id": str(row["workflow_id"]),
        "payer_did": row["payer_did"],
        "amount": credits_number(row["amount"]),
        "status": row["status"],
        "remaining": credits_number(row["remaining_micro"]),
        "currency": CURRENCY,
        "feeBps": row["fee_bps"],
        "createdAt": iso_time(row["created_ms"]),
        "releasedAt": iso_time(row["released_ms"]),
    }


def budget_record(
    workflow_id: str, payer_did: str, max_micro: int, spent_micro: int, held_micro: int
) -> dict[str, Any]:
    """Return a workflow's budget in whole cents: what may be and what is left rounded down, what is
    spent rounded up."""
    return {
        "workflowId": workflow_id,
        "payerDid": payer_did,
        "maxCents": max_micro // MICRO_PER_CENT,
        "spentCents": cents_ceil(spent_micro),
        "remainingCents": max(0, max_micro - spent_micro) // MICRO_PER_CENT,
        "heldCredits": credits_number(held_micro),
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
    return {
        "successful": tally.successful,
        "failed": tally.failed,
        "cancelled": tally.cancelled,
        "latencyMs": tally.latency_ms_sum,
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


def auction_record(rounds: Sequence[Row], bids: Sequence[Row]) -> dict[str, Any]:
    """Return a node's auction: its last round's terms and end, and all rounds with their bids.

    Args:
        rounds: at least one, in their order.
        bids: of closed rounds.
    """
    last = rounds[-1]
    return {
        "workflowId": last["workflow_id"],
        "nodeId": last["node"],
        "capabilityId": last["capability_id"],
        **_round_record(last),
        "rounds": [
            {
                **_round_record(row),
                "bids": None
                if row["status"] == "open"
                else [
                    _bid_record(bid, row["excluded"] or {})
                    for bid in bids
                    if bid["round"] == row["round"]
                ],
            }
            for row in rounds
        ],
    }


def _round_record(row: Row) -> dict[str, Any]:
    return {
        "round": row["round"],
        "status": row["status"],
        "reserveCredits": credits_number(row["reserve_micro"]),
        "stakeBps": row["stake_bps"],
        "openedAt": iso_time(row["opened_ms"]),
        "closesAt": iso_time(row["closes_ms"]),
        "closedAt": iso_time(row["closed_ms"]),
        "winnerDid": row["winner_did"],
        "priceCredits": (
            None if row["price_micro"] is None else credits_number(row["price_micro"])
        ),
    }


def _bid_record(row: Row, excluded: Mapping[str, str]) -> dict[str, Any]:
    stake_micro = row["stake_offered_micro"]
    return {
        "agentDid": row["agent_did"],
        "bidAmount": credits_number(row["amount_micro"]),
        "etaMs": row["eta_ms"],
        "stakeOffered": None if stake_micro is None else credits_number(stake_micro),
        "receivedAt": iso_time(row["received_ms"]),
        "isStanding": row["is_standing"],
        "excluded": excluded.get(row["agent_did"]),
    }
