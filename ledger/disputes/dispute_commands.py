"""Complaints over work and pay, their decisions, and payers' opinions.

Plain values, as `ledger/commands.py` says. money.md (Disputes and refunds).
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand


class OpenDispute(AuthorizedCommand, frozen=True, kw_only=True):
    """Store a complaint; it moves and freezes nothing (money.md, Disputes and refunds).

    `respondent_did` None: it is about a whole workflow of several agents, or names no respondent.
    `evidence_json`: a JSON object. Result: {"disputeId"}.
    """

    dispute_id: str
    workflow_id: str | None
    complainant_did: str
    respondent_did: str | None
    node_id: str | None
    dispute_type: str
    description: str
    evidence_json: str


class ResolveDispute(AuthorizedCommand, frozen=True, kw_only=True):
    """Decide a dispute; a refund goes to the workflow's payer by reversing entries.

    `slash_bps`: of what is locked for the disputed nodes, taken when fraud is upheld. Rejections:
    NOT_FOUND, CONFLICT (resolved before), INVALID_REQUEST (a refund that the status does not go
    with, or above what is left of the payments). Result: {"disputeId", "refundedMicro",
    "shortMicro", "slashedMicro"}.
    """

    dispute_id: str
    status: str
    resolution: str
    refund_micro: int
    slash_bps: int


class GiveFeedback(AuthorizedCommand, frozen=True, kw_only=True):
    """Store a payer's opinion of an agent in one workflow, 0 to 1,000 thousandths.

    Its key is made of workflow and agent, so that it is given once. Result: {"agentDid"}.
    """

    request_hash: bytes
    workflow_id: str
    agent_did: str
    payer_did: str
    rating_milli: int
    comment: str


def feedback_key(workflow_id: str, agent_did: str) -> str:
    """Return the key under which an agent gets feedback for a workflow, once."""
    return f"feedback:{workflow_id}:{agent_did}"
