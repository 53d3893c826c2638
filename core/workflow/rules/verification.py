"""Verification of a node's result: the verifier, its verdict and its payment.

The node stays `running` from the agent's result to the verdict. The verifier is paid for an
approval and for a rejection; the agent is paid only after an approval. A verifier that fails is
retried or replaced. Such retries have a separate counter, and the agent's work is not repeated. An
open verification continues after another node has failed. Only a rejection by a trusted verifier
costs the agent stake and reputation.
Reference: features.md (Verification), money.md (Verifiers).
"""

from __future__ import annotations

from core.errors import NodeErrorCode
from core.workflow.actions import DispatchNode, ScheduleRetry
from core.workflow.events import Failure, Verdict, VerificationFinished, VerifierSelected
from core.workflow.rules.attempts import fail_attempt, succeed_node
from core.workflow.rules.history import record_verification
from core.workflow.rules.payment import (
    pay_verification,
    price_above_limit,
    verifier_price_max_micro,
)
from core.workflow.rules.retry import AGENTS_PER_NODE_MAX, MOVES_MAX, delay_ms
from core.workflow.rules.selection import ask_verifier
from core.workflow.rules.waiting import end_wait, wait_for_agent
from core.workflow.transitions import NodeTrigger
from core.workflow.workflow_state import (
    AwaitedSelection,
    NodeState,
    WorkflowState,
    find_awaiting_node,
    find_node,
    is_open,
    timeout_ms,
)


def verifier_selected(workflow: WorkflowState, event: VerifierSelected) -> None:
    """Open a verification with the selected verifier, if the node can still pay its price."""
    state = find_awaiting_node(
        workflow, event.node, AwaitedSelection.VERIFIER, NodeTrigger.RESULT_RECEIVED
    )
    if state is None:
        return
    limit_micro = verifier_price_max_micro(workflow, state)
    if event.price_micro > limit_micro:
        if limit_micro < state.price_limit_micro:
            ask_verifier(workflow, state)
        else:
            failure = price_above_limit(event, limit_micro)
            verifier_not_selected(workflow, state, failure)
        return
    end_wait(state)
    state.declined = None
    state.awaiting = AwaitedSelection.NOTHING
    state.is_accepted = False
    state.retry_at_ms = None
    state.verify_attempt += 1
    state.verifier_did = event.agent_did
    state.verifier_price_micro = event.price_micro
    state.is_verifier_trusted = event.is_trusted
    state.verify_queued_ms = state.verify_dispatched_ms = event.at_ms
    verifier_timeout_ms = timeout_ms(workflow, state, event.at_ms)
    state.deadline_ms = event.at_ms + verifier_timeout_ms
    # Do not reduce the reservation: if this verifier declines, the next one may cost more.
    reserved_micro = workflow.budget.reserved_micro(event.node)
    reserved_micro = max(state.price_micro + event.price_micro, reserved_micro)
    workflow.budget.reserve(event.node, reserved_micro)
    workflow.record(state.row())
    dispatch_verification(workflow, state, verifier_timeout_ms)


def verifier_not_selected(workflow: WorkflowState, state: NodeState, failure: Failure) -> None:
    """Handle a failed selection of a verifier: a wait, a retry, or the end of the attempt."""
    capability_id = state.compiled.verifier_capability_id
    declined, state.declined = state.declined, None
    if declined is not None:
        failure, state.verifier_did = declined, None  # no other verifier can judge now
    elif wait_for_agent(workflow, state, failure, capability_id):
        return
    has_waited = end_wait(state)
    state.awaiting = AwaitedSelection.NOTHING
    # Retry if a missing verifier may come back. Do not retry if verifiers are too expensive or if
    # all of them have failed finally.
    is_absence = failure.code in (NodeErrorCode.NO_CANDIDATE, NodeErrorCode.AGENT_UNAVAILABLE)
    may_pass = is_absence or failure.verdict in (Verdict.RETRYABLE, Verdict.LOST)
    if may_pass and not has_waited and state.verify_retries_used < state.compiled.max_retries:
        state.verify_retries_used += 1
        delay = delay_ms(state.verify_retries_used + 1, failure.retry_after_ms)
        state.retry_at_ms = workflow.at_ms + delay
        workflow.record(state.row())
        workflow.perform(ScheduleRetry(state.compiled.name, state.retry_at_ms))
        return
    code = NodeErrorCode.VERIFIER_UNAVAILABLE
    if failure.code is NodeErrorCode.BUDGET_EXCEEDED:
        code = NodeErrorCode.BUDGET_EXCEEDED
    unverified = Failure(code, failure.message, Verdict.FINAL)
    fail_attempt(workflow, state, unverified)


def dispatch_verification(
    workflow: WorkflowState, state: NodeState, verifier_timeout_ms: int
) -> None:
    """Send the result to the node's verifier."""
    workflow.perform(
        DispatchNode(
            state.compiled.name,
            state.attempt,
            state.verifier_did or "",
            verifier_timeout_ms,
            state.verify_attempt,
        )
    )


def verification_finished(workflow: WorkflowState, event: VerificationFinished) -> None:
    """Pay the verifier and apply its verdict, or handle its failure."""
    state = find_node(workflow, event.node)
    if not is_open(state, event.attempt, event.verify_attempt):
        return
    failure = event.failure
    state.verify_dispatched_ms = event.started_ms
    if failure is not None:
        is_timeout = failure.code is NodeErrorCode.AGENT_TIMEOUT
        outcome = "timeout" if is_timeout else "error"
        record_verification(workflow, state, failure, outcome)
        verifier_failed(workflow, state, failure)
        return
    outcome = "success" if event.approved else "rejected"
    record_verification(workflow, state, None, outcome)
    _pay_verifier(workflow, state)
    if event.approved:
        succeed_node(workflow, state)
        return
    message = f"the verifier did not approve the result of attempt {state.attempt}"
    # An untrusted verifier may act for the payer. If the payer has chosen the verifiers'
    # capability, the verifier may be an agent that was not made to verify results.
    is_spared = event.approved is None or not state.is_verifier_trusted
    rejected = Failure(
        NodeErrorCode.VERIFICATION_REJECTED, message, Verdict.RETRYABLE, is_spared=is_spared
    )
    fail_attempt(workflow, state, rejected)


def verifier_failed(workflow: WorkflowState, state: NodeState, failure: Failure) -> None:
    """Replace a verifier that failed finally, retry later, or end the attempt."""
    did = state.verifier_did
    assert did is not None
    state.verifier_price_micro = 0
    if failure.is_declined and state.verify_attempt < MOVES_MAX:
        state.declined = failure
        ask_verifier(workflow, state)
        return
    state.verifier_did = None
    if failure.verdict is Verdict.FINAL_FOR_AGENT:
        state.verifiers_tried += (did,)
        if len(state.verifiers_tried) < AGENTS_PER_NODE_MAX:
            ask_verifier(workflow, state)
            return
    verifier_not_selected(workflow, state, failure)


def _pay_verifier(workflow: WorkflowState, state: NodeState) -> None:
    assert state.verifier_did is not None
    if state.verifier_price_micro:
        micro = state.verifier_price_micro
        pay_verification(workflow, state, state.verifier_did, micro)
    state.verifier_did = None
    state.verifier_price_micro = 0
