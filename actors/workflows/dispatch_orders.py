"""Builds and sends dispatch orders, and builds the events of dispatches that fail.

A `DispatchOrder` is built from the workflow's machine, the agent's directory entry and the action.
Any process can send the order. If no order can be built, the dispatch fails with an event.
Reference: features.md (Dispatch, Verification).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from actors.directory.peer_directory import PeerDirectory
from actors.dispatch.order_inputs import mapped_sources
from actors.ports import (
    UNREAD_SCHEMA,
    AgentEntry,
    Clock,
    DispatchOrder,
    DispatchPort,
    InputSources,
)
from actors.values.reply_events import failed_event
from actors.workflows.running_workflow import RunningWorkflow
from core.errors import NodeErrorCode
from core.market.no_candidates import UNHEALTHY
from core.market.settlement import split_payment
from core.workflow.actions import AwaitResult, DispatchNode
from core.workflow.dag import CompiledNode
from core.workflow.events import (
    AgentRevoked,
    AttemptFailed,
    Event,
    Failure,
    Verdict,
    VerificationFinished,
)
from core.workflow.machine import WorkflowMachine
from core.workflow.peer_orders import OrderTerms
from core.workflow.workflow_state import is_open

# The name of a timer that belongs to no node.
_UNSENT = "\x00unsent"


class OrderSender:
    """Sends the orders of an owner's workflows.

    Each workflow sends a limited number of orders in one turn of the event loop (`SENT_US_MAX`).

    Args:
        directory: the agents' entries.
        dispatcher: sends an order to its agent.
        clock: time and timers.
        receive: receives the events of each order.
        guard: calls a function that works on a workflow. An exception quarantines the workflow.
    """

    def __init__(
        self,
        directory: PeerDirectory,
        dispatcher: DispatchPort,
        clock: Clock,
        *,
        receive: Callable[[str, Event], None],
        guard: Callable[..., None],
    ) -> None:
        self._directory = directory
        self._dispatcher = dispatcher
        self._clock = clock
        self._receive = receive
        self._guard = guard

    def send(self, run: RunningWorkflow, actions: Iterable[DispatchNode]) -> None:
        """Queue dispatches; send as many as one turn of the loop allows, and the others later."""
        run.unsent += actions
        if _UNSENT not in run.timers:
            self._send_unsent(run)

    def release(self, order: DispatchOrder, event: Event) -> None:
        """Free the order's capacity, and tell the directory how the order ended.

        The directory notes whether the agent has taken, refused or declined the order.

        Args:
            event: the event that ended the order.
        """
        self._dispatcher.release(order)
        did, directory = order.agent_did, self._directory
        failure = None
        if isinstance(event, AttemptFailed | VerificationFinished):
            failure = event.failure
        if failure is None:
            directory.note_taken(did)
        elif failure.is_refusal and failure.is_spared and not order.is_verification:
            directory.note_refusal(did)
        elif failure.is_declined and failure.details != UNHEALTHY:
            # An open circuit is not noted, because it may be open for only one payer.
            until_ms = directory.note_declined(did, failure.retry_after_ms, event.at_ms)
            if until_ms is not None:
                self._clock.call_at(until_ms, directory.note_back, did)

    def _send_unsent(self, run: RunningWorkflow) -> None:
        run.timers.pop(_UNSENT, None)
        for action in run.take_unsent():
            self._dispatch(run, action)
        if run.unsent:
            work = partial(self._send_unsent, run)
            at_ms = self._clock.now_ms()
            run.set_timer(_UNSENT, self._clock.call_at(at_ms, self._guard, run, work))

    def _dispatch(self, run: RunningWorkflow, action: DispatchNode) -> None:
        # The workflow may have ended during the commit.
        state = run.machine.node(action.node)
        if run.is_halted or not is_open(state, action.attempt, action.verify_attempt):
            return
        did, now_ms = action.agent_did, self._clock.now_ms()
        if self._directory.is_revoked(did, now_ms):
            self._receive(run.workflow_id, AgentRevoked(did, now_ms))
            return
        order = build_order(run, action, self._directory.entry(did), now_ms)
        if isinstance(order, DispatchOrder):
            run.orders[(action.node, order.is_verification)] = order
            self._dispatcher.send(order, self._receive)
        else:
            self._receive(run.workflow_id, order)


def build_order(
    run: RunningWorkflow,
    action: DispatchNode,
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
        return failed_event(action, _deregistered_failure(action.agent_did), now_ms, now_ms)
    capability_id = node.capability_id
    verify_attempt = action.verify_attempt
    promised_ms = machine.node(action.node).promised_ms
    if verify_attempt:
        capability_id = node.verifier_capability_id
        promised_ms = entry.find_promise_ms(capability_id)
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
        sources=_input_sources(machine, action, is_for_peer=entry.peer is not None),
        is_verification=verify_attempt > 0,
        verify_attempt=verify_attempt,
        public_key=entry.public_key,
        key_version=machine.node(action.node).key_version,
        is_cut_short=action.timeout_ms < node.timeout_ms,
        ends_ms=machine.deadline_ms,
        # A verifier's inputs and verdict have fixed formats, so the card's schemas do not apply.
        input_schema="" if verify_attempt else entry.input_schemas.get(capability_id, ""),
        output_schema="" if verify_attempt else entry.output_schemas.get(capability_id, ""),
        capability_version=entry.versions.get(capability_id, ""),
        rejected=machine.node(action.node).verify_attempt,
        promised_ms=promised_ms,
        traceparent=run.traceparent,
        peer=_peer_terms(machine, node, entry),
    )


def _peer_terms(
    machine: WorkflowMachine, node: CompiledNode, entry: AgentEntry
) -> OrderTerms | None:
    """Return the terms of an order to a peer, None for an agent of this deployment.

    The peer may charge at most the node's price limit minus this deployment's fee.
    """
    peer, fee_bps = entry.peer, entry.fee_bps
    if peer is None:
        return None
    most_micro = machine.peer_charge_max_micro(node.name)
    return OrderTerms(
        peer.id,
        split_payment(most_micro, fee_bps).agent_micro,
        fee_bps,
        node.versions,
        node.requires_verification,
        node.chosen_verifier_capability_id,
    )


def _input_sources(
    machine: WorkflowMachine, action: DispatchNode, *, is_for_peer: bool
) -> InputSources:
    """Return the sources of a dispatch's inputs.

    A peer gets only the results that mappings name, not all results of the node's parents.
    """
    node, results = machine.compiled.nodes[action.node], machine.results_for(action.node)
    if action.verify_attempt:
        return mapped_sources(node, results, machine.node(action.node).result)
    return mapped_sources(node, results, None) if is_for_peer else InputSources(node, results)


def rebuild_accepted_orders(
    run: RunningWorkflow, entry_of: Callable[[str], AgentEntry | None], now_ms: int
) -> list[DispatchOrder]:
    """Return the accepted, unfinished orders of a restored workflow, without their inputs.

    Another process sent these orders. Orders of agents that have been deregistered are left out.
    """
    machine = run.machine
    orders = []
    for name in machine.compiled.nodes:
        state = machine.node(name)
        entry = entry_of(state.agent_did) if state.is_accepted and state.agent_did else None
        if entry is None:
            continue
        due_ms = machine.deadline_ms if state.deadline_ms is None else state.deadline_ms
        action = DispatchNode(name, state.attempt, entry.did, max(1, due_ms - now_ms))
        order = build_order(run, action, entry, now_ms)
        assert isinstance(order, DispatchOrder), order
        orders.append(order.without_inputs())
    return orders


def rebuild_order_to_judge(run: RunningWorkflow, name: str) -> DispatchOrder | None:
    """Return the order of an accepted attempt whose order a restore has left out.

    The order has only the fields that are needed to judge the result.

    Returns: None when the node has no accepted attempt that waits for its result.
    """
    state, node = run.machine.node(name), run.machine.compiled.nodes[name]
    if not state.is_accepted or state.has_result or state.agent_did is None:
        return None
    return DispatchOrder(
        workflow_id=run.workflow_id,
        task_id=run.task_id,
        payer_did=run.payer_did,
        node=name,
        attempt=state.attempt,
        capability_id=node.capability_id,
        agent_did=state.agent_did,
        url="",
        cancel_url="",
        secret=None,
        timeout_ms=node.timeout_ms,
        output_schema=UNREAD_SCHEMA,
    )


def build_timeout_event(action: AwaitResult) -> Event:
    """Return the timeout event of an accepted attempt or verification."""
    waited_ms = action.due_ms - action.started_ms
    failure = Failure(
        NodeErrorCode.AGENT_TIMEOUT,
        f"accepted, but no result came within {waited_ms} ms",
        is_spared=waited_ms < action.promised_ms,
    )
    return failed_event(action, failure, action.started_ms, action.due_ms)


def build_unstaked_event(action: DispatchNode, now_ms: int) -> Event:
    """Return the event of an attempt that is not sent because its stake was not locked."""
    message = f"the stake of {action.agent_did} was locked by other work"
    failure = Failure(NodeErrorCode.NO_CANDIDATE, message, is_stake_in_use=True)
    return failed_event(action, failure, now_ms, now_ms)


def _deregistered_failure(agent_did: str) -> Failure:
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        f"{agent_did} was deregistered between its selection and its dispatch",
        Verdict.FINAL_FOR_AGENT,
        details="agent_not_found",
        target_agent_id=agent_did,
    )
