"""Builds dispatch orders, which any process can send, and the events of dispatches that fail.

Pure: a workflow's machine, the agent's entry and the action in; a `DispatchOrder` or the event of
its failure out. Spec: Dispatch request, Verification; contract.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.dispatch.order_inputs import verifier_sources
from actors.engine.running_workflow import RunningWorkflow
from actors.ports import AgentEntry, DispatchOrder, InputSources
from core.errors import NodeErrorCode
from core.workflow.actions import AwaitResult, DispatchNode, DispatchVerification
from core.workflow.events import Event, Failure, Verdict, failed_event
from core.workflow.machine import WorkflowMachine


def build_order(
    run: RunningWorkflow,
    action: DispatchNode | DispatchVerification,
    entry: AgentEntry | None,
    now_ms: int,
) -> DispatchOrder | Event:
    """Return the order of a dispatch, or the event of its failure.

    Args:
        entry: the agent's directory entry, None when it was deregistered.
        now_ms: the time of a failure.
    """
    machine = run.machine
    node = machine.compiled.nodes[action.node]
    if entry is None:
        return build_failure_event(action, _deregistered_failure(action.agent_did), now_ms)
    capability_id = node.capability_id
    verify_attempt = 0
    if isinstance(action, DispatchVerification):
        capability_id = node.verifier_capability_id
        verify_attempt = action.verify_attempt
    return DispatchOrder(
        workflow_id=machine.workflow_id,
        task_id=run.task_id,
        payer_did=run.payer_did,
        node=action.node,
        attempt=action.attempt,
        capability_id=capability_id,
        agent_did=entry.did,
        url=entry.url,
        cancel_url=entry.cancel_url,
        secret=entry.secret,
        timeout_ms=action.timeout_ms,
        sources=_input_sources(machine, action),
        is_verification=verify_attempt > 0,
        verify_attempt=verify_attempt,
        public_key=entry.public_key,
        key_version=machine.node(action.node).key_version,
        is_cut_short=action.timeout_ms < node.timeout_ms,
        ends_ms=machine.deadline_ms,
    )


def _input_sources(
    machine: WorkflowMachine, action: DispatchNode | DispatchVerification
) -> InputSources:
    """Return what the inputs of a dispatch are made of."""
    node, results = machine.compiled.nodes[action.node], machine.results_for(action.node)
    if isinstance(action, DispatchVerification):
        return verifier_sources(node, results, machine.unverified_result(action.node))
    return InputSources(node, results)


def rebuild_accepted_orders(
    run: RunningWorkflow, entry_of: Callable[[str], AgentEntry | None], now_ms: int
) -> list[DispatchOrder]:
    """Return the accepted, unfinished orders of a restored workflow.

    Another process sent them, so they carry only the members that holding and cancelling need.
    Orders of agents deregistered since are left out.
    """
    machine = run.machine
    orders = []
    for name, node in machine.compiled.nodes.items():
        state = machine.node(name)
        entry = entry_of(state.agent_did) if state.is_accepted and state.agent_did else None
        if entry is None:
            continue
        due_ms = machine.deadline_ms if state.deadline_ms is None else state.deadline_ms
        order = DispatchOrder(
            workflow_id=machine.workflow_id,
            task_id=run.task_id,
            payer_did=run.payer_did,
            node=name,
            attempt=state.attempt,
            capability_id=node.capability_id,
            agent_did=entry.did,
            url=entry.url,
            cancel_url=entry.cancel_url,
            secret=entry.secret,
            timeout_ms=max(1, due_ms - now_ms),
            public_key=entry.public_key,
        )
        orders.append(order)
    return orders


def build_timeout_event(action: AwaitResult) -> Event:
    """Return the timeout event of an accepted attempt or verification."""
    waited_ms = action.due_ms - action.started_ms
    failure = Failure(
        NodeErrorCode.AGENT_TIMEOUT, f"accepted, but no result came within {waited_ms} ms"
    )
    return failed_event(
        action.node,
        action.attempt,
        failure,
        verify_attempt=action.verify_attempt,
        started_ms=action.started_ms,
        at_ms=action.due_ms,
    )


def is_dispatch_wanted(
    machine: WorkflowMachine, action: DispatchNode | DispatchVerification
) -> bool:
    """Say whether a dispatch is still needed: the workflow may have ended during its commit."""
    state = machine.node(action.node)
    if not state.is_active or state.attempt != action.attempt:
        return False
    if isinstance(action, DispatchVerification):
        return state.verifier_did is not None and state.verify_attempt == action.verify_attempt
    return not state.has_unverified_result


def build_failure_event(
    action: DispatchNode | DispatchVerification, failure: Failure, now_ms: int
) -> Event:
    """Return the event of a dispatch that was not sent."""
    return failed_event(
        action.node,
        action.attempt,
        failure,
        verify_attempt=action.verify_attempt if isinstance(action, DispatchVerification) else 0,
        started_ms=now_ms,
        at_ms=now_ms,
    )


def build_unstaked_event(action: DispatchNode, now_ms: int) -> Event:
    """Return the event of an attempt that is not sent because its stake was not locked."""
    message = f"the stake of {action.agent_did} was locked by other work"
    failure = Failure(NodeErrorCode.NO_CANDIDATE, message, is_unstaked=True)
    return build_failure_event(action, failure, now_ms)


def _deregistered_failure(agent_did: str) -> Failure:
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        f"{agent_did} was deregistered between its selection and its dispatch",
        Verdict.FINAL_FOR_AGENT,
        details="agent_not_found",
        target_agent_id=agent_did,
    )
