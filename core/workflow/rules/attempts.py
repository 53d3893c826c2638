"""How nodes move, fail, end and take their workflow with them: the lower half of the machine.

`Progress` holds the state of one workflow and every consequence of a node's change; which event
means what is decided above it, in `verification.py` and `machine.py`.
Spec: Node states and transitions, Execution order, Verification and budget 2 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import IllegalTransition, NodeErrorCode
from core.market.pricing import FixedPrice
from core.workflow.actions import AbortDispatch, Decision, ScheduleRetry, SelectAgent
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import AttemptFinished, Failure, NodePaid, Verdict, WorkflowChanged
from core.workflow.node_state import Asked, Budget, NodeState, error_of
from core.workflow.rules.retry import AGENTS_PER_NODE_MAX, delay_ms, may_change_agent
from core.workflow.rules.staking import free_stake
from core.workflow.terms import NO_TERMS, NodeTerms
from core.workflow.transitions import (
    NodeStatus,
    NodeTrigger,
    WorkflowStatus,
    WorkflowTrigger,
    is_terminal,
    next_node_status,
    next_workflow_status,
)


class Progress:
    """The state of one workflow; see `WorkflowMachine` for the arguments."""

    def __init__(
        self,
        workflow_id: str,
        compiled: CompiledWorkflow,
        *,
        hold_micro: int,
        reserved: Mapping[str, int],
        deadline_ms: int,
        terms: Mapping[str, NodeTerms] | None = None,
    ) -> None:
        self.workflow_id = workflow_id
        self.compiled = compiled
        self.deadline_ms = deadline_ms
        self.status = WorkflowStatus.PENDING
        self._budget = Budget(hold_micro, reserved)
        self._terms = terms or {}
        self._states = {
            name: NodeState(node, unmet=len(node.depends_on))
            for name, node in compiled.nodes.items()
        }
        self._results: dict[str, Any] = {}
        self._is_accepted = False
        self._active = 0  # nodes dispatched or running
        self._unfinished = len(self._states)
        self._first_failure: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.workflow_id} {self.status} active={self._active}"
            f" unfinished={self._unfinished} spent={self.spent_micro}>"
        )

    @property
    def is_finished(self) -> bool:
        """Whether the workflow has reached its end."""
        return is_terminal(self.status)

    @property
    def spent_micro(self) -> int:
        """Everything paid so far, micro-credits."""
        return self._budget.spent_micro

    # -- finding the node of an event -------------------------------------------------------------

    def _state_of(self, name: str) -> NodeState:
        state = self._states.get(name)
        if state is None:
            raise IllegalTransition("workflow", self.status, f"an event of unknown node {name!r}")
        return state

    def _asked_state(self, name: str, asked: Asked, trigger: NodeTrigger) -> NodeState | None:
        """Return the node that waits for this answer, None when it has ended meanwhile."""
        state = self._state_of(name)
        if state.asked is asked:
            return state
        if state.is_finished:
            return None
        raise IllegalTransition("node", state.status, trigger)

    def _open_attempt(self, name: str, attempt: int) -> NodeState | None:
        """Return the node whose open attempt this is, None for a late or repeated reply."""
        state = self._state_of(name)
        if not state.is_active or state.attempt != attempt or state.has_result:
            return None
        return state

    # -- forward ----------------------------------------------------------------------------------

    def _begin_work(self, at_ms: int, decision: Decision) -> None:
        self.status = next_workflow_status(self.status, WorkflowTrigger.WORK_BEGUN)
        decision.records.append(WorkflowChanged(self.status, at_ms))

    def _make_ready(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        state.status = next_node_status(state.status, NodeTrigger.DEPENDENCIES_COMPLETE)
        self._ask_agent(state, at_ms, decision)

    def _ask_agent(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        node = state.compiled
        target = node.target_agent_id if node.target_agent_id not in state.agents_tried else None
        allow_fallback = node.allow_broadcast_fallback
        is_last_known = len(state.agents_used) >= AGENTS_PER_NODE_MAX
        is_bound = is_last_known or not self.compiled.allow_fallback_agents
        known = [did for did in state.agents_used if did not in state.agents_tried]
        if is_bound and known:
            # Whoever had the last attempt goes on with it; else another one of those that had one.
            target = state.agent_did if state.agent_did in known else known[-1]
            allow_fallback = False
        terms = self._terms.get(node.name, NO_TERMS)
        state.asked = Asked.AGENT
        state.asked_micro = self._price_max_micro(state)
        if isinstance(terms.price, FixedPrice) and (target is None or allow_fallback):
            # Nobody gets more than the capability's registered price, unless asked for by name.
            state.asked_micro = min(state.asked_micro, terms.price.micro)
        decision.actions.append(
            SelectAgent(
                node.name,
                node.capability_id,
                target,
                allow_fallback,
                state.agents_tried,
                state.asked_micro,
                self.workflow_id,
                state.attempt + 1,
                terms.price,
                terms.is_by_token,
            )
        )

    def _price_max_micro(self, state: NodeState) -> int:
        available_micro = self._budget.available_micro(state.compiled.name)
        cap_micro = state.compiled.max_cost_micro
        return available_micro if cap_micro is None else min(available_micro, cap_micro)

    def _timeout_ms(self, state: NodeState, at_ms: int) -> int:
        """Return how long an agent may take: the node's time, or what is left of the runtime."""
        return max(1, min(state.compiled.timeout_ms, self.deadline_ms - at_ms))

    def _succeed(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        name = state.compiled.name
        state.status = next_node_status(state.status, NodeTrigger.RESULT_RECEIVED)
        free_stake(state, decision)
        state.completed_ms = at_ms
        self._active -= 1
        self._unfinished -= 1
        self._results[name] = state.result
        self._budget.pay(name, state.price_micro)
        assert self._budget.reserved_micro(name) == 0, name
        state.cost_micro += state.price_micro
        decision.records.append(state.row())
        if state.price_micro:
            decision.records.append(NodePaid(name, state.agent_did or "", state.price_micro))
        # The results keep the one, the ledger the other.
        state.result = state.result_json = state.result_ref = None
        if self._first_failure is None:
            for child in state.compiled.children:
                waiting = self._states[child]
                waiting.unmet -= 1
                if waiting.unmet == 0:
                    self._make_ready(waiting, at_ms, decision)
        self._end_if_done(at_ms, decision)

    # -- failure ----------------------------------------------------------------------------------

    def _record_failed_attempt(
        self, state: NodeState, failure: Failure, outcome: str, at_ms: int, decision: Decision
    ) -> None:
        began_ms = state.started_ms if state.started_ms is not None else state.dispatched_ms
        decision.records.append(
            AttemptFinished(
                state.compiled.name,
                state.attempt,
                state.agent_did or "",
                outcome,
                at_ms if began_ms is None else began_ms,
                at_ms,
                error_code=str(failure.code),
                error_message=failure.message,
            )
        )

    def _fail_attempt(
        self, state: NodeState, failure: Failure, at_ms: int, decision: Decision
    ) -> None:
        """End the open attempt without success; its line of history is written already.

        The agent stays in the race only while the node backs off: with another agent at once, or
        with the node's end, it is given up.
        """
        state.status = next_node_status(state.status, NodeTrigger.ATTEMPT_FAILED)
        may_go_on = self._first_failure is None
        goes_to_another = may_go_on and self._may_go_to_another(state, failure)
        backs_off = may_go_on and not goes_to_another and self._may_back_off(state, failure)
        free_stake(state, decision, failure, is_given_up=not backs_off)
        self._active -= 1
        state.forget_result()
        state.error = error_of(failure)
        if goes_to_another:
            if failure.verdict is Verdict.LOST:
                state.error = None  # ours, not an agent's: it must not explain what comes
            state.status = next_node_status(state.status, NodeTrigger.RETRY)
            self._ask_agent(state, at_ms, decision)
        elif backs_off:
            self._back_off(state, failure, at_ms, decision)
        else:
            self._node_failed(state, at_ms, decision)

    def _may_go_to_another(self, state: NodeState, failure: Failure) -> bool:
        """Say whether the next attempt follows at once, without using up a retry."""
        node = state.compiled
        verdict = failure.verdict
        if verdict is Verdict.LOST:
            return True
        is_away = failure.is_unstaked or (
            failure.code is NodeErrorCode.AGENT_UNAVAILABLE
            and verdict is Verdict.RETRYABLE
            and node.allow_broadcast_fallback
            and state.agent_did == node.target_agent_id
        )
        if verdict is not Verdict.FINAL_FOR_AGENT and not is_away:
            return False
        assert state.agent_did is not None
        tried = (*state.agents_tried, state.agent_did)
        may_change = may_change_agent(
            len(tried),
            allow_fallback_agents=self.compiled.allow_fallback_agents,
            is_targeted=node.target_agent_id is not None,
            allow_broadcast_fallback=node.allow_broadcast_fallback,
        )
        if may_change or not is_away:
            state.agents_tried = tried
            state.is_stand_in = is_away
        return may_change

    def _may_back_off(self, state: NodeState, failure: Failure) -> bool:
        """Say whether the failure is one to retry after, and a retry is left."""
        is_retryable = failure.verdict is Verdict.RETRYABLE
        return is_retryable and state.retries_used < state.compiled.max_retries

    def _back_off(self, state: NodeState, failure: Failure, at_ms: int, decision: Decision) -> None:
        """Use up a retry and wait."""
        state.retries_used += 1
        state.status = next_node_status(state.status, NodeTrigger.RETRY)
        state.retry_at_ms = at_ms + delay_ms(state.retries_used + 1, failure.retry_after_ms)
        state.deadline_ms = None
        decision.records.append(state.row())
        decision.actions.append(ScheduleRetry(state.compiled.name, state.retry_at_ms))

    def _selection_failed(
        self, state: NodeState, failure: Failure, at_ms: int, decision: Decision
    ) -> None:
        """Nobody takes a ready node."""
        state.asked = Asked.NOTHING
        is_absence = failure.code in (NodeErrorCode.NO_CANDIDATE, NodeErrorCode.AGENT_UNAVAILABLE)
        if state.is_stand_in:
            # Nobody stands in at a price that can be paid: wait for the one that is away, or for
            # its stake.
            state.is_stand_in = False
            state.agents_tried = state.agents_tried[:-1]
            is_absence = True
            failure = Failure(failure.code, failure.message, Verdict.RETRYABLE)
        elif is_absence and state.is_retrying:
            # The agent that failed before may only be resting behind its circuit breaker.
            failure = Failure(failure.code, failure.message, Verdict.RETRYABLE)
        if state.error is None or not is_absence:
            # Otherwise why the last agent failed says more than that there is no other.
            state.error = error_of(failure)
        state.is_retrying = False
        state.status = next_node_status(state.status, NodeTrigger.NO_AGENT)
        if self._may_back_off(state, failure):
            self._back_off(state, failure, at_ms, decision)
        else:
            self._node_failed(state, at_ms, decision)

    def _node_failed(self, state: NodeState, at_ms: int, decision: Decision) -> None:
        """The node's own end (state `failed` so far); the first one ends all that has not begun."""
        name = state.compiled.name
        error = state.error
        assert error is not None
        if error["code"] == NodeErrorCode.AGENT_TIMEOUT:
            state.status = next_node_status(state.status, NodeTrigger.TIMEOUTS_EXHAUSTED)
        state.completed_ms = at_ms
        self._unfinished -= 1
        self._budget.reserve(name, 0)
        decision.records.append(state.row())
        if self._first_failure is None:
            self._first_failure = {**error, "node": name}
            message = f"node {name!r} failed: {error['code']}"
            upstream = {"code": str(NodeErrorCode.UPSTREAM_FAILED), "message": message}
            for waiting in self._states.values():
                if waiting.status in (NodeStatus.PENDING, NodeStatus.READY):
                    self._end_node(waiting, NodeTrigger.UPSTREAM_FAILED, upstream, at_ms, decision)
        self._end_if_done(at_ms, decision)

    # -- ends -------------------------------------------------------------------------------------

    def _end_if_done(self, at_ms: int, decision: Decision) -> None:
        if self._first_failure is not None:
            if self._active == 0:
                if self.status is WorkflowStatus.PENDING:
                    self._begin_work(at_ms, decision)
                self.status = next_workflow_status(self.status, WorkflowTrigger.NODE_FAILED)
                decision.records.append(
                    WorkflowChanged(self.status, at_ms, error=self._first_failure)
                )
        elif self._unfinished == 0:
            self.status = next_workflow_status(self.status, WorkflowTrigger.ALL_NODES_COMPLETE)
            decision.records.append(WorkflowChanged(self.status, at_ms))

    def _end_node(
        self,
        state: NodeState,
        trigger: NodeTrigger,
        error: dict[str, Any],
        at_ms: int,
        decision: Decision,
    ) -> None:
        """End a node that did not get to its own end."""
        state.status = next_node_status(state.status, trigger)
        state.asked = Asked.NOTHING
        state.retry_at_ms = None
        state.error = error
        state.completed_ms = at_ms
        self._unfinished -= 1
        self._budget.reserve(state.compiled.name, 0)
        decision.records.append(state.row())

    def _end_all_nodes(
        self,
        trigger: NodeTrigger,
        failure: Failure,
        outcome: str,
        at_ms: int,
        decision: Decision,
        reason: str,
    ) -> None:
        """End every unfinished node; what is at work is aborted, unpaid."""
        error = error_of(failure)
        for state in self._states.values():
            if state.is_finished:
                continue
            if state.is_active:
                self._abort(state, failure, outcome, at_ms, decision, reason)
                self._active -= 1
            state.forget_result()
            self._end_node(state, trigger, error, at_ms, decision)

    def _abort(
        self,
        state: NodeState,
        failure: Failure,
        outcome: str,
        at_ms: int,
        decision: Decision,
        reason: str,
    ) -> None:
        name = state.compiled.name
        free_stake(state, decision)
        if not state.has_result:
            self._record_failed_attempt(state, failure, outcome, at_ms, decision)
            agent_did = state.agent_did
        else:
            agent_did = state.verifier_did
            if agent_did is not None:
                decision.records.append(self._verification_line(state, outcome, at_ms, failure))
        if agent_did is not None:
            decision.actions.append(AbortDispatch(name, state.attempt, agent_did, reason))

    def _verification_line(
        self, state: NodeState, outcome: str, at_ms: int, failure: Failure | None
    ) -> AttemptFinished:
        return AttemptFinished(
            state.compiled.name,
            state.verify_attempt,
            state.verifier_did or "",
            outcome,
            at_ms if state.verify_dispatched_ms is None else state.verify_dispatched_ms,
            at_ms,
            "verify",
            error_code=None if failure is None else str(failure.code),
            error_message=None if failure is None else failure.message,
        )
