"""The machine that drives one workflow: events in, records to commit and actions to perform out.

Rules of this file: nothing waits, acts or looks at a clock; states change only by the table; a step
either decides completely or raises `IllegalTransition` with the state unchanged. Replies that come
late, twice or after the end are nobody's mistake here: they get an empty decision.

Theory of operation. A node becomes ready when the count of its unmet dependencies falls to 0; the
machine asks for an agent and gets the answer within the same step. An attempt that fails goes
through `failed`: back to `ready` at once (another agent, a lost process), to `ready` with a time
(back-off), or to its end. The first node at its end stops everything that was not dispatched; what
is at work may finish and is paid. Then the workflow ends. In layers, each in its file: `Progress`
knows the consequences, `VerifyingProgress` the verifiers, `WorkflowMachine` the events.
Spec: States and transitions, Execution order, Verification and budget; contract.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from core.errors import IllegalTransition, NodeErrorCode
from core.workflow.actions import AwaitResult, Decision, DispatchNode, ScheduleRetry
from core.workflow.blob_ref import BlobRef
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import (
    AgentNotSelected,
    AgentRevoked,
    AgentSelected,
    AttemptAccepted,
    AttemptFailed,
    AttemptFinished,
    AttemptSucceeded,
    BidsHeard,
    CancelRequested,
    Event,
    Failure,
    NodeChanged,
    RetryDue,
    RuntimeExceeded,
    Verdict,
    VerificationFinished,
    VerifierSelected,
    WorkflowAccepted,
    WorkflowChanged,
    WorkStarted,
)
from core.workflow.inputs import build_inputs
from core.workflow.node_state import Asked, NodeState
from core.workflow.rules.revocation import RevokingProgress
from core.workflow.rules.staking import lock_stake
from core.workflow.terms import NodeTerms
from core.workflow.transitions import (
    NodeStatus,
    NodeTrigger,
    WorkflowStatus,
    WorkflowTrigger,
    is_terminal,
    next_node_status,
    next_workflow_status,
)


class WorkflowMachine(RevokingProgress):
    """One workflow.

    Args:
        hold_micro: what the escrow holds.
        reserved: what each node may cost, verifier included (the estimate, node by node).
        deadline_ms: when `maxRuntimeMs` is over.
        terms: what nodes were promised to cost, where that is more than a number.
    """

    def step(self, event: Event) -> Decision:
        """Decide what an event means.

        Raises `IllegalTransition`, state unchanged, for an event that cannot happen now.
        """
        decision = Decision()
        if not is_terminal(self.status):
            self._HANDLERS[type(event)](self, event, decision)
        return decision

    def node(self, name: str) -> NodeState:
        """Return a node's state, to be read only. Raises KeyError."""
        return self._states[name]

    def inputs_for(self, name: str) -> tuple[dict[str, Any], dict[str, Any]] | Failure:
        """Return (inputs, parents) for a dispatch of this node, or why they cannot be built."""
        return build_inputs(self.compiled.nodes[name], self._results)

    def results_for(self, name: str) -> dict[str, Any]:
        """Return the results that this node's inputs are made of; large ones are `BlobRef`s."""
        node = self.compiled.nodes[name]
        sources = {*node.depends_on, *(mapping.source for mapping in node.mappings)}
        return {source: self._results[source] for source in sources}

    def unverified_result(self, name: str) -> Any:
        """Return the result that the node's verifier has to judge, or its `BlobRef`."""
        return self._states[name].result

    @classmethod
    def restore(
        cls,
        workflow_id: str,
        compiled: CompiledWorkflow,
        *,
        hold_micro: int,
        reserved: Mapping[str, int],
        terms: Mapping[str, NodeTerms],
        deadline_ms: int,
        status: WorkflowStatus,
        nodes: Iterable[NodeChanged],
        results: Mapping[str, Any],
        agents_used: Mapping[str, Sequence[str]],
        at_ms: int,
    ) -> tuple[WorkflowMachine, Decision]:
        """Return the machine of a stored, unfinished workflow and what has to be done now.

        Args:
            nodes: the stored rows; nodes without one have not been taken up yet.
            results: by node, what the rows' `result_json` says, or the `BlobRef` of a large one.
            agents_used: by node, who had its attempts that ended, in their order, repeated or not.
            at_ms: now.

        1. Rows become states, and what they imply is counted again. 2. If the time is over, that is
        all that happens. 3. Open attempts are lost, which is an event like any other; open
        verifications are repeated; timers are set again; ready nodes ask for agents again.
        Spec: design.md section 3 (Recovery).
        """
        self = cls(
            workflow_id,
            compiled,
            hold_micro=hold_micro,
            reserved=reserved,
            deadline_ms=deadline_ms,
            terms=terms,
        )
        self.status = WorkflowStatus(status)
        self._is_accepted = True
        for row in nodes:
            self._load(row, results, agents_used.get(row.node, ()))
        at_work = [name for name, state in self._states.items() if state.is_active]
        self._budget.fit({name: self._budget.reserved_micro(name) for name in at_work})
        if at_ms >= deadline_ms:
            return self, self.step(RuntimeExceeded(at_ms))
        decision = Decision()
        for state in self._states.values():
            self._resume(state, at_ms, decision)
        return self, decision

    # -- events -----------------------------------------------------------------------------------

    def _accept(self, event: WorkflowAccepted, decision: Decision) -> None:
        if self._is_accepted:
            raise IllegalTransition("workflow", self.status, "workflow accepted")
        self._is_accepted = True
        for name in self.compiled.roots:
            self._make_ready(self._states[name], event.at_ms, decision)

    def _agent_selected(self, event: AgentSelected, decision: Decision) -> None:
        name = event.node
        state = self._asked_state(name, Asked.AGENT, NodeTrigger.AGENT_SELECTED)
        if state is None:
            return
        self._close_auction(state, event.closed, decision)
        limit_micro = self._price_max_micro(state)
        price_micro = self._price_of_attempt(event)
        if price_micro > limit_micro:
            if limit_micro < state.asked_micro:
                # Another node took up the free money after this agent was asked for.
                self._ask_agent(state, event.at_ms, decision)
            else:
                too_dear = self._too_dear(event, limit_micro)
                self._selection_failed(state, too_dear, event.at_ms, decision)
            return
        if self.status is WorkflowStatus.PENDING:
            self._begin_work(event.at_ms, decision)
        state.status = next_node_status(state.status, NodeTrigger.AGENT_SELECTED)
        self._active += 1
        timeout_ms = self._timeout_ms(state, event.at_ms)
        state.begin_attempt(event.agent_did, price_micro, event.at_ms, timeout_ms)
        state.selection_json = event.selection_json
        self._set_token_price(state, event)
        lock_stake(state, event.stake_micro, decision)
        reserved_micro = price_micro
        if state.compiled.requires_verification:
            # The verifier's share stays reserved until the verifier is known.
            reserved_micro = max(reserved_micro, self._budget.reserved_micro(name))
        self._budget.reserve(name, min(reserved_micro, self._budget.available_micro(name)))
        decision.records.append(state.row())
        decision.actions.append(DispatchNode(name, state.attempt, event.agent_did, timeout_ms))

    def _not_selected(self, event: AgentNotSelected, decision: Decision) -> None:
        state = self._state_of(event.node)
        if state.asked is Asked.VERIFIER:
            self._no_verifier(state, event.failure, event.at_ms, decision)
        elif self._asked_state(event.node, Asked.AGENT, NodeTrigger.NO_AGENT) is not None:
            self._close_auction(state, event.closed, decision)
            self._selection_failed(state, event.failure, event.at_ms, decision)

    def _work_started(self, event: WorkStarted, decision: Decision) -> None:
        state = self._state_of(event.node)
        if state.status is NodeStatus.DISPATCHED and state.attempt == event.attempt:
            state.status = next_node_status(state.status, NodeTrigger.WORK_STARTED)
            state.started_ms = event.at_ms

    def _attempt_accepted(self, event: AttemptAccepted, decision: Decision) -> None:
        """Keep the attempt open without a request; stored, so that a restart goes on waiting."""
        name = event.node
        state = self._state_of(name)
        if event.verify_attempt:
            is_open = self._is_open_verification(state, event.attempt, event.verify_attempt)
        else:
            is_open = self._open_attempt(name, event.attempt) is not None
        if not is_open or state.is_accepted:
            return
        state.is_accepted = True
        due_ms = event.started_ms + self._timeout_ms(state, event.started_ms)
        if not event.verify_attempt:
            # Of a verification nothing is stored: after a restart it is repeated, under its own id.
            if state.status is NodeStatus.DISPATCHED:
                state.status = next_node_status(state.status, NodeTrigger.WORK_STARTED)
            state.started_ms = event.started_ms
            state.deadline_ms = due_ms
            state.input_hash = event.input_hash
            decision.records.append(state.row())
        awaited = AwaitResult(name, event.attempt, event.verify_attempt, event.started_ms, due_ms)
        self._await_result(awaited, decision)

    def _await_result(self, awaited: AwaitResult, decision: Decision) -> None:
        # At its own deadline the workflow ends, which is no failure of the agent.
        if awaited.due_ms < self.deadline_ms:
            decision.actions.append(awaited)

    def _attempt_succeeded(self, event: AttemptSucceeded, decision: Decision) -> None:
        state = self._open_attempt(event.node, event.attempt)
        if state is None:
            return
        if state.status is NodeStatus.DISPATCHED:
            # The reply overtook the news that the request had left.
            state.status = next_node_status(state.status, NodeTrigger.WORK_STARTED)
        state.is_accepted = False
        state.started_ms = event.started_ms
        unpayable = self._settle_tokens(state, event.metrics)
        if unpayable is not None:
            self._record_failed_attempt(state, unpayable, "error", event.at_ms, decision)
            self._fail_attempt(state, unpayable, event.at_ms, decision)
            return
        state.result = event.result
        state.result_json = event.result_json
        state.result_ref = event.result if type(event.result) is BlobRef else None
        state.metrics = event.metrics
        decision.records.append(
            AttemptFinished(
                event.node,
                event.attempt,
                state.agent_did or "",
                "success",
                event.started_ms,
                event.at_ms,
                "primary",
                event.input_hash,
                event.output_hash,
            )
        )
        if state.compiled.requires_verification:
            self._ask_verifier(state, decision)
        else:
            self._succeed(state, event.at_ms, decision)

    def _attempt_failed(self, event: AttemptFailed, decision: Decision) -> None:
        state = self._open_attempt(event.node, event.attempt)
        if state is None:
            return
        failure = event.failure
        outcome = "timeout" if failure.code is NodeErrorCode.AGENT_TIMEOUT else "error"
        if failure.verdict is Verdict.LOST:
            outcome = "lost"
        state.started_ms = event.started_ms
        if failure.is_unstaked:
            state.stake_micro = 0
        self._record_failed_attempt(state, failure, outcome, event.at_ms, decision)
        self._fail_attempt(state, failure, event.at_ms, decision)

    def _retry_due(self, event: RetryDue, decision: Decision) -> None:
        state = self._state_of(event.node)
        # A time before that one belongs to an earlier back-off.
        if state.retry_at_ms is None or event.at_ms < state.retry_at_ms:
            return
        state.retry_at_ms = None
        if state.has_unverified_result:
            self._ask_verifier(state, decision)
        else:
            state.is_retrying = True
            self._ask_agent(state, event.at_ms, decision)

    def _runtime_exceeded(self, event: RuntimeExceeded, decision: Decision) -> None:
        if self.status is WorkflowStatus.PENDING:
            self._begin_work(event.at_ms, decision)
        message = f"the workflow ran longer than {self.compiled.max_runtime_ms} ms"
        failure = Failure(NodeErrorCode.WORKFLOW_TIMEOUT, message, Verdict.FINAL)
        self.status = next_workflow_status(self.status, WorkflowTrigger.RUNTIME_EXCEEDED)
        self._end_all_nodes(
            NodeTrigger.RUNTIME_EXCEEDED, failure, "timeout", event.at_ms, decision, "timeout"
        )
        error = {"code": str(failure.code), "message": message}
        decision.records.append(WorkflowChanged(self.status, event.at_ms, error=error))

    def _cancel(self, event: CancelRequested, decision: Decision) -> None:
        self.status = next_workflow_status(self.status, WorkflowTrigger.CANCELLED)
        message = f"the workflow was cancelled: {event.reason}"
        failure = Failure(NodeErrorCode.CANCELLED, message, Verdict.FINAL)
        self._end_all_nodes(
            NodeTrigger.WORKFLOW_CANCELLED,
            failure,
            "discarded",
            event.at_ms,
            decision,
            event.reason,
        )
        decision.records.append(
            WorkflowChanged(
                self.status,
                event.at_ms,
                reason=event.reason,
                by_did=event.by_did,
                details=event.details,
            )
        )

    # -- restoring --------------------------------------------------------------------------------

    def _load(
        self, row: NodeChanged, results: Mapping[str, Any], agents_used: Sequence[str]
    ) -> None:
        state = self._states[row.node]
        state.load(row, agents_used)
        name = row.node
        self._budget.spent_micro += state.cost_micro
        if state.is_active:
            self._active += 1
            price_micro = state.price_micro + state.verifier_price_micro
            self._budget.reserve(name, price_micro)
        elif state.is_finished:
            self._unfinished -= 1
            self._budget.reserve(name, 0)
        if state.status is NodeStatus.SUCCESS:
            self._results[name] = results[name]
            state.result_json = state.result_ref = None
            for child in state.compiled.children:
                self._states[child].unmet -= 1
        elif state.status in (NodeStatus.FAILED, NodeStatus.TIMEOUT):
            # Several may have failed; which one first does not change what follows.
            self._first_failure = self._first_failure or {**(state.error or {}), "node": name}
        elif state.has_result:
            state.result = results[name]

    def _resume(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        name = state.compiled.name
        if state.retry_at_ms is not None:
            decision.actions.append(ScheduleRetry(name, state.retry_at_ms))
        elif state.has_unverified_result and state.verifier_did is not None:
            timeout_ms = self._timeout_ms(state, at_ms)
            decision.actions.append(self._dispatch_verification(state, timeout_ms))
        elif state.is_accepted:
            began_ms = at_ms if state.started_ms is None else state.started_ms
            due_ms = self.deadline_ms if state.deadline_ms is None else state.deadline_ms
            self._await_result(AwaitResult(name, state.attempt, 0, began_ms, due_ms), decision)
        elif state.is_active:
            message = "the process that waited for the reply ended"
            lost = Failure(NodeErrorCode.AGENT_ERROR, message, Verdict.LOST)
            began_ms = at_ms if state.dispatched_ms is None else state.dispatched_ms
            self._attempt_failed(
                AttemptFailed(name, state.attempt, lost, began_ms, at_ms), decision
            )
        elif state.auction_closes_ms is not None:
            self._await_bids(state, state.auction_closes_ms, decision)
        elif state.status is NodeStatus.PENDING and state.unmet == 0:
            self._make_ready(state, at_ms, decision)

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any, Decision], None]]] = {
        WorkflowAccepted: _accept,
        AgentSelected: _agent_selected,
        AgentNotSelected: _not_selected,
        BidsHeard: RevokingProgress._bids_heard,
        WorkStarted: _work_started,
        AttemptAccepted: _attempt_accepted,
        AttemptSucceeded: _attempt_succeeded,
        AttemptFailed: _attempt_failed,
        VerifierSelected: RevokingProgress._verifier_selected,
        VerificationFinished: RevokingProgress._verification_finished,
        RetryDue: _retry_due,
        AgentRevoked: RevokingProgress._agent_revoked,
        RuntimeExceeded: _runtime_exceeded,
        CancelRequested: _cancel,
    }
