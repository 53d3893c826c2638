"""Requests of the market, as data like those of `calls.py`: prices, stakes, invoices, disputes, …

Every write carries an idempotency key of its own, so that it is safe to send again.
Spec: Ledger records, Invoice, Dispute, Quota check result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callboard.calls import Call, Steps, _get, _keyed, _one, _post, _segment
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
    body: Json = {"price_cents": price_cents}
    if price_cents is None:
        rates = {"inputRate": input_rate, "outputRate": output_rate}
        body = {"pricing": {"model": "per-token", **rates}}
    return _one(Call("PUT", f"/v1/capabilities/{_segment(capability_id)}/price", body=body))


def deposit_stake(amount_credits: Credits, *, agent_did: str | None = None) -> Steps:
    """Put credits at stake for an agent, the caller unless another is named."""
    return _post("/v1/stakes", amount=amount_credits, agentDid=agent_did)


def withdraw_stake(amount_credits: Credits, *, agent_did: str | None = None) -> Steps:
    """Take back stake that is not locked."""
    return _post("/v1/stakes/unstake", amount=amount_credits, agentDid=agent_did)


def collect(agent_did: str, *, amount_credits: Credits | None = None) -> Steps:
    """Move free credits from an agent's wallet to its owner's; all of them without an amount."""
    path = f"/v1/agents/{_segment(agent_did)}/collect"
    body: Json = {} if amount_credits is None else {"amount": amount_credits}
    return _one(Call("POST", path, body=body, headers=_keyed(None)))


def slash_stake(agent_did: str, workflow_id: str, node_id: str, reason: str) -> Steps:
    """Take what an agent has locked for a node, for its payer; for administrators."""
    return _post(
        "/v1/stakes/slash",
        agentDid=agent_did,
        workflowId=workflow_id,
        nodeId=node_id,
        reason=reason,
    )


def rebuild_reputation(*, check: bool = False) -> Steps:
    """Compare every agent's counts with history; unless only checked, set them to it."""
    return _post("/v1/reputation/rebuild", check=check)


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


def check_quota(did: str, *, estimated_spend_cents: int | None = None) -> Steps:
    """Ask whether a payer may publish now. Spec: Quota check result."""
    return _post(f"/v1/quotas/{_segment(did)}/check", estimatedSpendCents=estimated_spend_cents)


# -- invoices, disputes, feedback ------------------------------------------------------------------


def create_invoice(
    *,
    payer_did: str | None = None,
    period_start: str | None = None,
    period_end: str | None = None,
    workflow_id: str | None = None,
) -> Steps:
    """Issue an invoice over a period (two ISO times) or a workflow. Spec: Invoice."""
    return _post(
        "/v1/invoices",
        payerDid=payer_did,
        periodStart=period_start,
        periodEnd=period_end,
        workflowId=workflow_id,
    )


def pay_invoice(invoice_id: str) -> Steps:
    """Mark a pending invoice paid; for administrators."""
    return _post(f"/v1/invoices/{_segment(invoice_id)}/pay")


def void_invoice(invoice_id: str) -> Steps:
    """Void a pending invoice; for administrators."""
    return _post(f"/v1/invoices/{_segment(invoice_id)}/void")


def open_dispute(
    dispute_type: str,
    description: str,
    *,
    workflow_id: str | None = None,
    node_id: str | None = None,
    respondent_did: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Steps:
    """Complain about a workflow's work or pay. Spec: Dispute."""
    return _post(
        "/v1/disputes",
        disputeType=dispute_type,
        description=description,
        workflowId=workflow_id,
        nodeId=node_id,
        respondentDid=respondent_did,
        evidence=None if evidence is None else dict(evidence),
    )


def resolve_dispute(
    dispute_id: str, status: str, resolution: str, *, refund_credits: Credits | None = None
) -> Steps:
    """Decide a dispute, perhaps with a refund to the payer; for administrators."""
    return _post(
        f"/v1/disputes/{_segment(dispute_id)}/resolve",
        status=status,
        resolution=resolution,
        creditsRefunded=refund_credits,
    )


def give_feedback(
    workflow_id: str,
    agent_did: str,
    rating: float,
    *,
    scale: int | None = None,
    comment: str | None = None,
) -> Steps:
    """Rate an agent's work in a workflow.

    Args:
        rating: 0 to 1, or 1 to 5.
        scale: 1 or 5, what the rating is out of; needed for one star of five.
    """
    path = f"/v1/workflows/{_segment(workflow_id)}/feedback"
    return _post(path, agentDid=agent_did, rating=rating, scale=scale, comment=comment)


# -- tasks and auctions ----------------------------------------------------------------------------


def publish_task(
    description: str,
    *,
    budget_credits: Credits | None = None,
    selection: str | None = None,
    auction_window_ms: int | None = None,
) -> Steps:
    """Publish one task described in words; `[cap.id]` before them names its capability.

    Args:
        budget_credits: what it may cost.
        selection: `best`, or `auction`.
        auction_window_ms: how long live bids are taken.
    """
    return _post(
        "/v1/tasks/publish",
        description=description,
        budget=budget_credits,
        selection=selection,
        auctionWindowMs=auction_window_ms,
    )


def bid_for_task(
    task_id: str,
    amount_credits: Credits,
    *,
    node_id: str | None = None,
    eta_ms: int | None = None,
    stake_credits: Credits | None = None,
    agent_did: str | None = None,
) -> Steps:
    """Bid for a task whose node is auctioned, sealed, as with `bid`.

    Args:
        amount_credits: what the agent asks for.
        node_id: which node, where the task is a workflow of several.
        eta_ms: how long it expects to take.
        stake_credits: the most it puts at stake for this node; as much as is asked if absent.
        agent_did: who bids; the caller if absent.
    """
    return _post(
        f"/v1/tasks/{_segment(task_id)}/bid",
        bidAmount=amount_credits,
        nodeId=node_id,
        etaMs=eta_ms,
        stakeOffered=stake_credits,
        agentDid=agent_did,
    )


def auction(workflow_id: str, node_id: str) -> Steps:
    """Read the auction of a node; its bids when it has closed."""
    return _get(_auction(workflow_id, node_id))


def bid(
    workflow_id: str,
    node_id: str,
    amount_credits: Credits,
    *,
    eta_ms: int | None = None,
    stake_credits: Credits | None = None,
    agent_did: str | None = None,
) -> Steps:
    """Bid for a node, sealed. Spec: Bid.

    Args:
        amount_credits: what the agent asks for.
        eta_ms: how long it expects to take.
        stake_credits: the most it puts at stake for this node; as much as is asked if absent.
        agent_did: who bids; the caller if absent.
    """
    return _post(
        f"{_auction(workflow_id, node_id)}/bids",
        bidAmount=amount_credits,
        etaMs=eta_ms,
        stakeOffered=stake_credits,
        agentDid=agent_did,
    )


def _auction(workflow_id: str, node_id: str) -> str:
    return f"/v1/auctions/{_segment(workflow_id)}/{_segment(node_id)}"
