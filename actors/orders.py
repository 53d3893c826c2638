"""How a dispatch action becomes an order that any process can send.

Pure: a workflow's machine, the agent's entry and the action in, a `DispatchOrder` or the event that
says why there is none out. Spec: Dispatch request, Verification; contract.md section 5.
"""

from __future__ import annotations

from actors.ports import AgentEntry, DispatchOrder
from core.errors import NodeErrorCode
from core.workflow.events import (
    AttemptFailed,
    DispatchNode,
    DispatchVerification,
    Event,
    Failure,
    Verdict,
    VerificationFinished,
)
from core.workflow.machine import WorkflowMachine


def order_of(
    machine: WorkflowMachine,
    task_id: str,
    action: DispatchNode | DispatchVerification,
    entry: AgentEntry | None,
    now_ms: int,
) -> DispatchOrder | Event:
    """Return the order of a dispatch, or the event of its failure when it cannot be made.

    Args:
        task_id: the workflow's task id, for the agent's information.
        entry: the agent as the directory knows it now; None when it has been deregistered.
        now_ms: the time of a failure.
    """
    node = machine.compiled.nodes[action.node]
    built = machine.inputs_for(action.node)
    if isinstance(built, Failure):
        return failed(action, built, now_ms)
    if entry is None:
        return failed(action, _gone(action.agent_did), now_ms)
    inputs, parents = built
    capability_id = node.capability_id
    verify_attempt = 0
    if isinstance(action, DispatchVerification):
        result = machine.unverified_result(action.node)
        inputs = {"capabilityId": capability_id, "inputs": inputs, "result": result}
        parents = {}
        capability_id = node.verifier_capability_id
        verify_attempt = action.verify_attempt
    return DispatchOrder(
        workflow_id=machine.workflow_id,
        task_id=task_id,
        node=action.node,
        attempt=action.attempt,
        capability_id=capability_id,
        agent_did=entry.did,
        url=entry.url,
        cancel_url=entry.cancel_url,
        secret=entry.secret,
        inputs=inputs,
        parents=parents,
        timeout_ms=action.timeout_ms,
        is_verification=isinstance(action, DispatchVerification),
        verify_attempt=verify_attempt,
    )


def is_wanted(machine: WorkflowMachine, action: DispatchNode | DispatchVerification) -> bool:
    """Say whether a dispatch still serves: the workflow may have ended while it was committed."""
    state = machine.node(action.node)
    if not state.is_active or state.attempt != action.attempt:
        return False
    if isinstance(action, DispatchVerification):
        return state.verifier_did is not None and state.verify_attempt == action.verify_attempt
    return not state.has_unverified_result


def failed(action: DispatchNode | DispatchVerification, failure: Failure, now_ms: int) -> Event:
    """Return the event of a dispatch that never left."""
    if isinstance(action, DispatchVerification):
        return VerificationFinished(
            action.node, action.attempt, False, failure, now_ms, now_ms, action.verify_attempt
        )
    return AttemptFailed(action.node, action.attempt, failure, now_ms, now_ms)


def _gone(agent_did: str) -> Failure:
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        f"{agent_did} was deregistered between its selection and its dispatch",
        Verdict.FINAL_FOR_AGENT,
        details="agent_not_found",
        target_agent_id=agent_did,
    )
