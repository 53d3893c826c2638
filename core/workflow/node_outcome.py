"""A node's outcome for the reputation of its last agent.

Knows final states and error codes; `core/market/reputation.py` computes the score.
Pure. Spec: Settlement rules 9; contract.md section 6 (Reputation inputs); money.md case 41.
Decision 0062.
"""

from __future__ import annotations

from typing import Final

from core.errors import NodeErrorCode
from core.market.reputation import Outcome
from core.market.slashing import is_agents_failure
from core.workflow.transitions import NodeStatus

_CODES: Final = frozenset(code.value for code in NodeErrorCode)


def outcome_of(
    status: NodeStatus, error_code: str | None, *, was_at_work: bool, is_spared: bool = False
) -> Outcome | None:
    """Return a node's outcome for the agent of its last attempt; None: it does not count.

    1. A success is successful. 2. A node whose last attempt failed by the agent's fault is failed.
    3. A node that was ended from outside while the agent was at work (cancel, the workflow's
    runtime) is cancelled. 4. Other ends do not count: no agent was found or reached, inputs or
    budget were wrong, the verifier was missing, the service crashed. Verifiers are not counted.

    Args:
        status: the node's final status.
        error_code: the `code` of its error.
        was_at_work: whether its last attempt was open when it ended.
        is_spared: see `is_agents_failure`.
    """
    if status is NodeStatus.SUCCESS:
        return Outcome.SUCCESSFUL
    # An unknown code, from a row of another version, does not count.
    code = NodeErrorCode(error_code) if error_code in _CODES else None
    if code in (NodeErrorCode.CANCELLED, NodeErrorCode.WORKFLOW_TIMEOUT):
        return Outcome.CANCELLED if was_at_work else None
    if code is not None and is_agents_failure(code, is_spared=is_spared):
        return Outcome.FAILED
    return None
