"""Ends nodes that get no further attempt; starts and ends the workflow.

After the first final failure of a node, every node that was not dispatched ends, and the workflow
ends when no node is active. A cancellation, or the end of the runtime, ends all unfinished nodes at
once and aborts open attempts without payment. This file also decides how a node's end counts for
the reputation of its last agent.
Reference: features.md (States, Nodes), money.md (Reputation, Promised time).
"""

from __future__ import annotations

from typing import Any

from core.errors import NodeErrorCode
from core.market.reputation import Outcome
from core.market.slashing import is_agents_failure
from core.workflow.actions import AbortDispatch
from core.workflow.events import CancelRequested, Failure, RuntimeExceeded, Verdict, WorkflowChanged
from core.workflow.rules.auction_rounds import cancel_round
from core.workflow.rules.history import record_failed_attempt, record_verification
from core.workflow.rules.staking import unlock_stake
from core.workflow.rules.waiting import end_wait
from core.workflow.transitions import (
    NodeStatus,
    NodeTrigger,
    WorkflowStatus,
    WorkflowTrigger,
    next_node_status,
    next_workflow_status,
)
from core.workflow.workflow_state import AwaitedSelection, NodeState, WorkflowState, error_of


def begin_work(workflow: WorkflowState) -> None:
    """Change a pending workflow to running."""
    workflow.status = next_workflow_status(workflow.status, WorkflowTrigger.WORK_BEGUN)
    workflow.started_ms = workflow.at_ms
    workflow.record(WorkflowChanged(workflow.status, workflow.at_ms))


def end_if_done(workflow: WorkflowState) -> None:
    """End the workflow if a node has failed and none is active, or if all have succeeded."""
    if workflow.first_failure is not None:
        if workflow.active_count == 0:
            if workflow.status is WorkflowStatus.PENDING:
                begin_work(workflow)
            workflow.status = next_workflow_status(workflow.status, WorkflowTrigger.NODE_FAILED)
            error = workflow.first_failure
            workflow.record(WorkflowChanged(workflow.status, workflow.at_ms, error=error))
    elif workflow.unfinished_count == 0:
        trigger = WorkflowTrigger.ALL_NODES_COMPLETE
        workflow.status = next_workflow_status(workflow.status, trigger)
        workflow.succeeded_ms = workflow.at_ms
        workflow.record(WorkflowChanged(workflow.status, workflow.at_ms))


def fail_node(workflow: WorkflowState, state: NodeState) -> None:
    """End a node that has failed finally; the caller has set its status to `failed`.

    The first failed node also ends every node that was not dispatched.
    """
    name = state.compiled.name
    error = state.error
    assert error is not None
    if error["code"] == NodeErrorCode.AGENT_TIMEOUT:
        state.status = next_node_status(state.status, NodeTrigger.TIMEOUTS_EXHAUSTED)
    state.completed_ms = workflow.at_ms
    state.counts_as = counted_as(state)
    workflow.unfinished_count -= 1
    workflow.budget.reserve(name, 0)
    state.round_bids = None
    workflow.record(state.row())
    if workflow.first_failure is None:
        workflow.first_failure = {**error, "node": name}
        message = f"node {name!r} failed: {error['code']}"
        upstream = {"code": str(NodeErrorCode.UPSTREAM_FAILED), "message": message}
        trigger = NodeTrigger.UPSTREAM_FAILED
        for waiting in workflow.nodes.values():
            if waiting.status in (NodeStatus.PENDING, NodeStatus.READY):
                _end_node(workflow, waiting, trigger=trigger, error=upstream)
    end_if_done(workflow)


def runtime_exceeded(workflow: WorkflowState, event: RuntimeExceeded) -> None:
    """End a workflow that has reached its deadline."""
    if workflow.status is WorkflowStatus.PENDING:
        begin_work(workflow)
    message = f"the workflow ran longer than {workflow.compiled.max_runtime_ms} ms"
    failure = Failure(NodeErrorCode.WORKFLOW_TIMEOUT, message, Verdict.FINAL)
    workflow.status = next_workflow_status(workflow.status, WorkflowTrigger.RUNTIME_EXCEEDED)
    _end_all_nodes(
        workflow,
        failure,
        trigger=NodeTrigger.RUNTIME_EXCEEDED,
        outcome="timeout",
        reason="timeout",
    )
    error = {"code": str(failure.code), "message": message}
    workflow.record(WorkflowChanged(workflow.status, event.at_ms, error=error))


def cancel_requested(workflow: WorkflowState, event: CancelRequested) -> None:
    """End a workflow on request."""
    workflow.status = next_workflow_status(workflow.status, WorkflowTrigger.CANCELLED)
    message = f"the workflow was cancelled: {event.reason}"
    failure = Failure(NodeErrorCode.CANCELLED, message, Verdict.FINAL)
    _end_all_nodes(
        workflow,
        failure,
        trigger=NodeTrigger.WORKFLOW_CANCELLED,
        outcome="discarded",
        reason=event.reason,
    )
    workflow.record(
        WorkflowChanged(
            workflow.status,
            event.at_ms,
            reason=event.reason,
            by_did=event.by_did,
            details=event.details,
        )
    )


def abort_attempt(
    workflow: WorkflowState, state: NodeState, failure: Failure, *, outcome: str, reason: str
) -> None:
    """Abort the open attempt or verification without payment.

    Args:
        outcome: the outcome in the history of the attempt or verification.
        reason: the reason in the cancellation notice to the agent.
    """
    unlock_stake(workflow, state)
    if not state.has_result:
        record_failed_attempt(workflow, state, failure, outcome)
        agent_did = state.agent_did
    else:
        agent_did = state.verifier_did
        if agent_did is not None:
            record_verification(workflow, state, failure, outcome)
    if agent_did is not None:
        name = state.compiled.name
        workflow.perform(AbortDispatch(name, state.attempt, agent_did, reason))


def _end_all_nodes(
    workflow: WorkflowState,
    failure: Failure,
    *,
    trigger: NodeTrigger,
    outcome: str,
    reason: str,
) -> None:
    """End every unfinished node; abort open attempts without payment."""
    error = error_of(failure)
    for state in workflow.nodes.values():
        if state.is_finished:
            continue
        was_at_work = state.is_active and not state.has_result
        if state.is_active:
            abort_attempt(workflow, state, failure, outcome=outcome, reason=reason)
            workflow.active_count -= 1
        state.forget_result()
        _end_node(
            workflow,
            state,
            trigger=trigger,
            error=error,
            was_at_work=was_at_work,
        )


def _end_node(
    workflow: WorkflowState,
    state: NodeState,
    *,
    trigger: NodeTrigger,
    error: dict[str, Any],
    was_at_work: bool = False,
) -> None:
    """End a node because another node has failed finally or because the workflow ends."""
    cancel_round(workflow, state)
    end_wait(state)
    state.status = next_node_status(state.status, trigger)
    state.awaiting = AwaitedSelection.NOTHING
    state.retry_at_ms = None
    state.error = error
    state.completed_ms = workflow.at_ms
    state.counts_as = counted_as(state, was_at_work=was_at_work)
    workflow.unfinished_count -= 1
    workflow.budget.reserve(state.compiled.name, 0)
    workflow.record(state.row())


def counted_as(state: NodeState, *, was_at_work: bool = False) -> Outcome | None:
    """Return how the end of a node counts for the agent of its last attempt; None if it does not.

    1. Work for the agent's own owner does not count. 2. A success counts as successful. 3. Work
    that is still open at the end of the workflow's runtime counts as cancelled, if the promised
    time was over. 4. Other ends do not count if the agent is not to blame: the payer cancelled or
    left less than the promised time, no agent was reached, inputs or budget were wrong, or the
    service crashed. 5. An error that the agent sends after it has accepted the work counts as
    cancelled. 6. Any other failure of the agent counts as failed.

    Args:
        state: a node that has ended.
        was_at_work: whether its last attempt was open when the node ended.
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
    """Say whether the agent of an ended node had at least its promised time for the work."""
    began_ms, ended_ms = state.started_ms, state.completed_ms
    if began_ms is None or ended_ms is None:
        return False  # no request was sent
    return ended_ms - began_ms >= state.promised_ms
