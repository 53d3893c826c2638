"""Requests of the market, as data like those of `calls.py`: prices, stakes, invoices, disputes, …

Every write carries an idempotency key of its own, so that it is safe to send again.
Reference: money.md (Entries, Invoices, Disputes and refunds, Quotas).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callboard.calls import Call, Steps, _keyed, _one, _segment, sending
from callboard.replies import Credits
from core.records.api.shape import Json

# -- prices, stakes, reputation, quotas ------------------------------------------------------------


def set_price(
    capability_id: str,
    *,
    price_cents: int | None = None,
    input_rate: Credits | None = None,
    output_rate: Credits | None = None,
) -> Steps:
    """Register a capability's price: cents a node, or credits per token; for administrators.

    Args:
        price_cents: whole cents.
        input_rate: credits per input token; with `output_rate`, instead of cents.
    """
    body: Json = {} if price_cents is None else {"price_cents": price_cents}
    if input_rate is not None or output_rate is not None:
        rates = {"inputRate": input_rate, "outputRate": output_rate}
        body["pricing"] = {"model": "per-token", **rates}
    return _one(Call("PUT", f"/v1/capabilities/{_segment(capability_id)}/price", body=body))


@sending("POST", "/v1/stakes", amount_credits="amount")
def deposit_stake(amount_credits: Credits, *, agent_did: str | None = None) -> None:
    """Put credits at stake for an agent, the caller unless another is named."""


@sending("POST", "/v1/stakes/unstake", amount_credits="amount")
def withdraw_stake(amount_credits: Credits, *, agent_did: str | None = None) -> None:
    """Take back stake that is not locked."""


@sending("POST", "/v1/agents/{agent_did}/collect", amount_credits="amount")
def collect(agent_did: str, *, amount_credits: Credits | None = None) -> None:
    """Move free credits from an agent's wallet to its owner's; all of them without an amount."""


@sending("POST", "/v1/stakes/slash")
def slash_stake(agent_did: str, workflow_id: str, node_id: str, reason: str) -> None:
    """Take what an agent has locked for a node, for its payer; for administrators."""


@sending("POST", "/v1/reputation/rebuild")
def rebuild_reputation(*, check: bool = False) -> None:
    """Compare every agent's counts with history; unless only checked, set them to it."""


def set_quota(
    did: str,
    *,
    workflows_per_day: int | None = None,
    concurrent_workflows: int | None = None,
    spend_per_day_cents: int | None = None,
) -> Steps:
    """Limit what a payer may publish; what is left out has no limit. For administrators."""
    body = {
        "maxWorkflowsPerDay": workflows_per_day,
        "maxConcurrentWorkflows": concurrent_workflows,
        "maxSpendPerDayCents": spend_per_day_cents,
    }
    return _one(Call("POST", f"/v1/quotas/{_segment(did)}", body=body, headers=_keyed(None)))


@sending("POST", "/v1/quotas/{did}/check")
def check_quota(did: str, *, estimated_spend_cents: int | None = None) -> None:
    """Ask whether a payer may publish now. Reference: money.md (Quotas)."""


# -- invoices, disputes, feedback ------------------------------------------------------------------


@sending("POST", "/v1/invoices")
def create_invoice(
    *,
    payer_did: str | None = None,
    period_start: str | None = None,
    period_end: str | None = None,
    workflow_id: str | None = None,
) -> None:
    """Issue an invoice over a period (two ISO times) or a workflow. Reference: money.md
    (Invoices)."""


@sending("POST", "/v1/invoices/{invoice_id}/pay")
def pay_invoice(invoice_id: str) -> None:
    """Mark a pending invoice paid; for administrators."""


@sending("POST", "/v1/invoices/{invoice_id}/void")
def void_invoice(invoice_id: str) -> None:
    """Void a pending invoice; for administrators."""


@sending("POST", "/v1/disputes")
def open_dispute(
    dispute_type: str,
    description: str,
    *,
    workflow_id: str | None = None,
    node_id: str | None = None,
    respondent_did: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Complain about a workflow's work or pay. Reference: money.md (Disputes and refunds)."""


@sending("POST", "/v1/disputes/{dispute_id}/resolve", refund_credits="creditsRefunded")
def resolve_dispute(
    dispute_id: str, status: str, resolution: str, *, refund_credits: Credits | None = None
) -> None:
    """Decide a dispute, perhaps with a refund to the payer; for administrators."""


@sending("POST", "/v1/workflows/{workflow_id}/feedback")
def give_feedback(
    workflow_id: str,
    agent_did: str,
    rating: float,
    *,
    scale: int | None = None,
    comment: str | None = None,
) -> None:
    """Rate an agent's work in a workflow.

    Args:
        rating: 0 to 1, or 1 to 5.
        scale: 1 or 5, what the rating is out of; needed for one star of five.
    """


# -- tasks and auctions ----------------------------------------------------------------------------


@sending("POST", "/v1/tasks/publish", budget_credits="budget")
def publish_task(
    description: str,
    *,
    budget_credits: Credits | None = None,
    selection: str | None = None,
    auction_window_ms: int | None = None,
) -> None:
    """Publish one task described in words; `[cap.id]` before them names its capability.

    Args:
        budget_credits: what it may cost.
        selection: `best`, or `auction`.
        auction_window_ms: how long live bids are taken.
    """


@sending(
    "POST", "/v1/tasks/{task_id}/bid", amount_credits="bidAmount", stake_credits="stakeOffered"
)
def bid_for_task(
    task_id: str,
    amount_credits: Credits,
    *,
    node_id: str | None = None,
    eta_ms: int | None = None,
    stake_credits: Credits | None = None,
    agent_did: str | None = None,
) -> None:
    """Bid for a task whose node is auctioned, sealed, as with `bid`.

    Args:
        amount_credits: what the agent asks for.
        node_id: which node, where the task is a workflow of several.
        eta_ms: how long it expects to take.
        stake_credits: the most it puts at stake for this node; as much as is asked if absent.
        agent_did: who bids; the caller if absent.
    """


@sending("GET", "/v1/auctions/{workflow_id}/{node_id}")
def auction(workflow_id: str, node_id: str) -> None:
    """Read the auction of a node; its bids when it has closed."""


@sending(
    "POST",
    "/v1/auctions/{workflow_id}/{node_id}/bids",
    amount_credits="bidAmount",
    stake_credits="stakeOffered",
)
def bid(
    workflow_id: str,
    node_id: str,
    amount_credits: Credits,
    *,
    eta_ms: int | None = None,
    stake_credits: Credits | None = None,
    agent_did: str | None = None,
) -> None:
    """Bid for a node, sealed. Reference: money.md (Auctions).

    Args:
        amount_credits: what the agent asks for.
        eta_ms: how long it expects to take.
        stake_credits: the most it puts at stake for this node; as much as is asked if absent.
        agent_did: who bids; the caller if absent.
    """
