"""Feedback: what a payer says about an agent's work, once per workflow and agent.

Reference: decision reputation-and-ranking (what a rating of 1 means).
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from core.errors import ErrorCode, ServiceError
from core.records.api.review import Feedback, FeedbackRequest
from core.workflow.transitions import NodeStatus, is_terminal
from ledger.accounts.agent_money import money_owner
from ledger.disputes.dispute_commands import GiveFeedback, feedback_key
from ledger.disputes.dispute_reads import feedback_rows
from ledger.reads.reader import StoredWorkflow
from serve_app.http.calls import (
    Call,
    Json,
    Operations,
    invalid,
    not_found,
)
from serve_app.operations.views import shown
from serve_app.operations.whose import visible_record

_ENDED: Final = (
    NodeStatus.SUCCESS,
    NodeStatus.FAILED,
    NodeStatus.SKIPPED,
    NodeStatus.TIMEOUT,
)

OPERATIONS = Operations("workflows")


@OPERATIONS.add(
    "POST", "/v1/workflows/{workflow_id}/feedback", body=FeedbackRequest, reply=Feedback
)
async def give(call: Call) -> Json:
    """Rate an agent's work in a workflow."""
    workflow_id = call.path_values["workflow_id"]
    stored = await visible_record(call, workflow_id)
    if stored is None or not call.is_party((stored.payer_did,)):
        raise not_found(f"the workflow {workflow_id}")
    return await give_for(call, stored)


async def give_for(call: Call, stored: StoredWorkflow, default_agent: str | None = None) -> Json:
    """Store the feedback of a call about one of its payer's workflows.

    Args:
        default_agent: the agent that is meant when the body names none.
    """
    body = call.given(FeedbackRequest)
    agent_did = body.agent_did or default_agent
    if agent_did is None:
        raise invalid("agentDid", "nothing", "the DID of one of the agents")
    rating_milli = rating_of(body.rating, body.scale)
    _check_ended(stored, agent_did)
    await _check_foreign(call, stored.payer_did, agent_did)
    command = GiveFeedback(
        key=feedback_key(stored.id, agent_did),
        request_hash=call.act_hash,
        workflow_id=stored.id,
        agent_did=agent_did,
        payer_did=stored.payer_did,
        rating_milli=rating_milli,
        comment=body.comment,
    )
    detail = f"feedback for {agent_did} was already given for this workflow"
    await call.commit(command, done=ServiceError(ErrorCode.CONFLICT, detail))
    rows = await feedback_rows(call.services.reader, stored.id)
    (row,) = (row for row in rows if row["agent_did"] == agent_did)
    return shown(Feedback, row, success=True, rating=float(row["rating"]))


def rating_of(rating: float, scale: int | None) -> int:
    """Return a rating in thousandths, 0 to 1,000.

    Up to 1 it is a share, above 1 it is of 1 to 5 stars; `scale` 1 or 5 says which, for the one
    value that could be either: without it, 1 is the best share.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    is_stars = scale == 5 or (scale is None and rating > 1)
    low, high = (1, 5) if is_stars else (0, 1)
    if not low <= rating <= high:
        raise invalid("rating", str(rating), f"a number from {low} to {high}")
    share = (Decimal(repr(rating)) - low) / (high - low)
    return int((share * 1_000).to_integral_value(ROUND_HALF_UP))


def _check_ended(stored: StoredWorkflow, agent_did: str) -> None:
    """Refuse feedback on who had no node of the workflow, or is still at work on one."""
    own = [node for node in stored.nodes if agent_did in (node["agent_did"], node["verifier_did"])]
    if not own:
        raise invalid("agentDid", agent_did, "an agent of one of the workflow's nodes")
    if not is_terminal(stored.status) and not any(node["status"] in _ENDED for node in own):
        raise ServiceError(
            ErrorCode.CONFLICT, f"{agent_did} has not finished a node of this workflow yet"
        )


async def _check_foreign(call: Call, payer_did: str, agent_did: str) -> None:
    """Refuse a payer's feedback for an agent of its own owner (money.md, Reputation)."""
    agent, payer = [await money_owner(call.services.reader, did) for did in (agent_did, payer_did)]
    owners = {agent_did, agent_did if agent is None else agent.owner_did}
    if not owners.isdisjoint((payer_did, payer_did if payer is None else payer.owner_did)):
        detail = f"the payer and {agent_did} have the same owner: feedback needs another owner"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
