"""How a node's end counts for the agent of its last attempt.

Knows final states and error codes; what the counts amount to is `core/market/reputation.py`'s.
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
    """Say how a node's end counts for the agent of its last attempt; None: not at all.

    1. A success is successful. 2. A node whose last attempt failed by the agent's doing is failed.
    3. A node that was ended from outside while the agent was at work (cancel, the workflow's
    runtime) is cancelled. 4. All else says nothing of the agent: nobody could be found or reached,
    inputs or budget were wrong, the verifier was missing, we crashed. Verifiers are not counted.

    Args:
        status: the node's final status.
        error_code: the `code` of its error.
        was_at_work: whether its last attempt was open when it ended.
        is_spared: see `is_agents_failure`.
    """
    if status is NodeStatus.SUCCESS:
        return Outcome.SUCCESSFUL
    # What is no code of ours, from a row of another version, says nothing of the agent.
    code = NodeErrorCode(error_code) if error_code in _CODES else None
    if code in (NodeErrorCode.CANCELLED, NodeErrorCode.WORKFLOW_TIMEOUT):
        return Outcome.CANCELLED if was_at_work else None
    if code is not None and is_agents_failure(code, is_spared=is_spared):
        return Outcome.FAILED
    return None
