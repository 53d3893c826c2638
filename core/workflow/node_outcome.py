"""How a node's end counts for the reputation of its last agent: the one place that decides it.

Knows states and error codes; `core/market/reputation.py` computes the score, the ledger adds up.
Pure. Reference: money.md (Reputation, Promised time). Decision reputation-and-ranking.
"""

from __future__ import annotations

from core.errors import NodeErrorCode
from core.market.reputation import Outcome
from core.market.slashing import is_agents_failure
from core.workflow.node_state import NodeState
from core.workflow.transitions import NodeStatus


def counted_as(state: NodeState, *, was_at_work: bool = False) -> Outcome | None:
    """Return how the end of a node counts for the agent of its last attempt, None: it does not.

    1. Work for the agent's own owner does not count. 2. A success is successful. 3. Work that the
    workflow's runtime cuts after the time that the agent promised is cancelled. 4. Other ends that
    are no failure of the agent do not count: the payer cancelled or left less time than was
    promised, no agent was reached, inputs or budget were wrong, the service crashed. 5. An agent
    that hands in an error after it had accepted the work has given it up: cancelled. 6. Another
    failure of the agent is failed.

    Args:
        state: a node that has ended.
        was_at_work: whether its last attempt was open when it ended.
    """
    if state.attempt == 0 or state.is_own:  # 1
        return None
    if state.status is NodeStatus.SUCCESS:  # 2
        return Outcome.SUCCESSFUL
    error = state.error
    assert error is not None, state.compiled.name
    code = error["code"]
    if code == NodeErrorCode.WORKFLOW_TIMEOUT:  # 3
        return Outcome.CANCELLED if was_at_work and _had_time(state) else None
    if not is_agents_failure(code, is_spared=error.get("isSpared") is True):  # 4
        return None
    is_given_up = state.is_accepted and code == NodeErrorCode.AGENT_ERROR
    return Outcome.CANCELLED if is_given_up else Outcome.FAILED  # 5, 6


def _had_time(state: NodeState) -> bool:
    """Say whether the agent of a node that has ended had the time that it promised."""
    began_ms, ended_ms = state.started_ms, state.completed_ms
    if began_ms is None or ended_ms is None:
        return False  # nothing was sent
    return ended_ms - began_ms >= state.promised_ms
