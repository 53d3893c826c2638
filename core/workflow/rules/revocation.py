"""Ends the open attempts and verifications of revoked agents without payment.

Unpaid work of a revoked agent is discarded, even a result whose verification is open. Other agents
may take the node. The failure does not count for the agent's reputation, because the revocation is
recorded separately.
Reference: features.md (Revocation), money.md (Settlement). Decision permissions-and-keys.
"""

from __future__ import annotations

from typing import Final

from core.errors import NodeErrorCode
from core.workflow.actions import AbortDispatch
from core.workflow.events import AgentRevoked, Failure, Verdict
from core.workflow.rules.attempts import fail_attempt
from core.workflow.rules.history import record_verification
from core.workflow.rules.node_ends import abort_attempt
from core.workflow.rules.verification import verifier_failed
from core.workflow.workflow_state import NodeState, WorkflowState

REASON: Final = "policy_violation"


def agents_at_work(workflow: WorkflowState) -> set[str]:
    """Return the DIDs of the agents and verifiers of all open attempts."""
    found = set()
    for state in workflow.nodes.values():
        if state.is_active:
            found |= {did for did in (state.agent_did, state.verifier_did) if did is not None}
    return found


def agent_revoked(workflow: WorkflowState, event: AgentRevoked) -> None:
    """End every open attempt and verification of a revoked agent."""
    for state in workflow.nodes.values():
        if not state.is_active:
            continue
        if state.agent_did == event.agent_did:
            _end_attempt(workflow, state, event)
        elif state.verifier_did == event.agent_did:
            _end_verification(workflow, state, event)


def _end_attempt(workflow: WorkflowState, state: NodeState, event: AgentRevoked) -> None:
    failure = _build_revoked_failure(event.agent_did)
    abort_attempt(workflow, state, failure, outcome="discarded", reason=REASON)
    state.retry_at_ms = None  # the back-off of a verifier selection
    fail_attempt(workflow, state, failure)


def _end_verification(workflow: WorkflowState, state: NodeState, event: AgentRevoked) -> None:
    failure = _build_revoked_failure(event.agent_did)
    record_verification(workflow, state, failure, "discarded")
    name = state.compiled.name
    workflow.perform(AbortDispatch(name, state.attempt, event.agent_did, REASON))
    verifier_failed(workflow, state, failure)


def _build_revoked_failure(agent_did: str) -> Failure:
    message = f"{agent_did} was revoked during the attempt"
    return Failure(NodeErrorCode.REVOKED, message, Verdict.FINAL_FOR_AGENT)
