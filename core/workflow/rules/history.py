"""Records the ends of attempts and verifications in the history of a node.

Reference: features.md (States).
"""

from __future__ import annotations

from core.workflow.events import AttemptFinished, Failure
from core.workflow.workflow_state import NodeState, WorkflowState


def record_failed_attempt(
    workflow: WorkflowState, state: NodeState, failure: Failure, outcome: str
) -> None:
    """Record that the open attempt ended without a result."""
    began_ms = state.started_ms if state.started_ms is not None else state.dispatched_ms
    workflow.record(
        AttemptFinished(
            state.compiled.name,
            state.attempt,
            state.agent_did or "",
            outcome,
            workflow.at_ms if began_ms is None else began_ms,
            workflow.at_ms,
            error_code=str(failure.code),
            error_message=failure.message,
            queued_ms=state.dispatched_ms,
        )
    )


def record_verification(
    workflow: WorkflowState, state: NodeState, failure: Failure | None, outcome: str
) -> None:
    """Record that the open verification ended; `failure` is None after a verdict."""
    workflow.record(
        AttemptFinished(
            state.compiled.name,
            state.verify_attempt,
            state.verifier_did or "",
            outcome,
            workflow.at_ms if state.verify_dispatched_ms is None else state.verify_dispatched_ms,
            workflow.at_ms,
            "verify",
            error_code=None if failure is None else str(failure.code),
            error_message=None if failure is None else failure.message,
            queued_ms=state.verify_queued_ms,
        )
    )
