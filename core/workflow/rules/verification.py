"""Verification of a node's result: who judges, what the judgement means, and its pay.

The node stays `running` from the agent's result to the verdict. A verifier is paid for approving
and for rejecting, the agent only after approval. A verifier that fails is replaced or asked again
by its own counter; the agent's work is not repeated for that. A verification belongs to finishing a
node that runs, so it goes on after another node has failed.
Spec: Verification and budget 1; contract.md section 5; money.md cases 14 and 16.
"""

from __future__ import annotations

from core.errors import NodeErrorCode
from core.workflow.actions import Decision, DispatchVerification, ScheduleRetry, SelectVerifier
from core.workflow.events import Failure, NodePaid, Verdict, VerificationFinished, VerifierSelected
from core.workflow.node_state import Asked, NodeState
from core.workflow.rules.payment import PayingProgress
from core.workflow.rules.retry import AGENTS_PER_NODE_MAX, delay_ms
from core.workflow.transitions import NodeStatus, NodeTrigger


def payment_line(node: str, verify_attempt: int) -> str:
    """Return the line under which a verification is paid, once (money.md case 16)."""
    return f"{node}#verify" if verify_attempt == 1 else f"{node}#verify{verify_attempt}"


class VerifyingProgress(PayingProgress):
    """`Progress` that can have results judged."""

    def _ask_verifier(self, state: NodeState, decision: Decision) -> None:
        assert state.agent_did is not None
        state.asked = Asked.VERIFIER
        state.asked_micro = self._verifier_price_max_micro(state)
        decision.actions.append(
            SelectVerifier(
                state.compiled.name,
                state.compiled.verifier_capability_id,
                state.agent_did,
                (state.agent_did, *state.verifiers_tried),
                state.asked_micro,
            )
        )

    def _verifier_price_max_micro(self, state: NodeState) -> int:
        return max(0, self._budget.available_micro(state.compiled.name) - state.price_micro)

    def _verifier_selected(self, event: VerifierSelected, decision: Decision) -> None:
        state = self._asked_state(event.node, Asked.VERIFIER, NodeTrigger.RESULT_RECEIVED)
        if state is None:
            return
        limit_micro = self._verifier_price_max_micro(state)
        if event.price_micro > limit_micro:
            if limit_micro < state.asked_micro:
                self._ask_verifier(state, decision)
            else:
                self._no_verifier(state, self._too_dear(event, limit_micro), event.at_ms, decision)
            return
        state.asked = Asked.NOTHING
        state.is_accepted = False
        state.retry_at_ms = None
        state.verify_attempt += 1
        state.verifier_did = event.agent_did
        state.verifier_price_micro = event.price_micro
        state.verify_dispatched_ms = event.at_ms
        timeout_ms = self._timeout_ms(state, event.at_ms)
        state.deadline_ms = event.at_ms + timeout_ms
        self._budget.reserve(event.node, state.price_micro + event.price_micro)
        decision.records.append(state.row())
        decision.actions.append(self._dispatch_verification(state, timeout_ms))

    def _dispatch_verification(self, state: NodeState, timeout_ms: int) -> DispatchVerification:
        return DispatchVerification(
            state.compiled.name,
            state.attempt,
            state.verify_attempt,
            state.verifier_did or "",
            timeout_ms,
        )

    def _verification_finished(self, event: VerificationFinished, decision: Decision) -> None:
        state = self._state_of(event.node)
        if not self._is_open_verification(state, event.attempt, event.verify_attempt):
            return
        failure = event.failure
        state.verify_dispatched_ms = event.started_ms
        if failure is not None:
            is_timeout = failure.code is NodeErrorCode.AGENT_TIMEOUT
            outcome = "timeout" if is_timeout else "error"
            decision.records.append(self._verification_line(state, outcome, event.at_ms, failure))
            self._verifier_failed(state, failure, event.at_ms, decision)
            return
        outcome = "success" if event.approved else "rejected"
        decision.records.append(self._verification_line(state, outcome, event.at_ms, None))
        self._pay_verifier(state, decision)
        if event.approved:
            self._succeed(state, event.at_ms, decision)
            return
        message = f"the verifier did not approve the result of attempt {state.attempt}"
        rejected = Failure(NodeErrorCode.VERIFICATION_REJECTED, message, Verdict.RETRYABLE)
        self._fail_attempt(state, rejected, event.at_ms, decision)

    def _is_open_verification(
        self, state: NodeState, attempt: int, verify_attempt: int | None
    ) -> bool:
        return (
            state.status is NodeStatus.RUNNING
            and state.attempt == attempt
            and state.verifier_did is not None
            and verify_attempt in (None, state.verify_attempt)
        )

    def _pay_verifier(self, state: NodeState, decision: Decision) -> None:
        price_micro = state.verifier_price_micro
        assert state.verifier_did is not None
        if price_micro:
            self._budget.pay(state.compiled.name, price_micro)
            state.cost_micro += price_micro
            line = payment_line(state.compiled.name, state.verify_attempt)
            decision.records.append(NodePaid(line, state.verifier_did, price_micro))
        state.verifier_did = None
        state.verifier_price_micro = 0

    def _verifier_failed(
        self, state: NodeState, failure: Failure, at_ms: int, decision: Decision
    ) -> None:
        did = state.verifier_did
        assert did is not None
        state.verifier_did = None
        state.verifier_price_micro = 0
        if failure.verdict is Verdict.FINAL_FOR_AGENT:
            state.verifiers_tried += (did,)
            if len(state.verifiers_tried) < AGENTS_PER_NODE_MAX:
                self._ask_verifier(state, decision)
                return
        self._no_verifier(state, failure, at_ms, decision)

    def _no_verifier(
        self, state: NodeState, failure: Failure, at_ms: int, decision: Decision
    ) -> None:
        """Wait for another try by the verification's own counter, or give the node up."""
        state.asked = Asked.NOTHING
        # That nobody is there may pass; that nobody can be paid, or that every one of them said
        # no for good, does not.
        is_absence = failure.code in (NodeErrorCode.NO_CANDIDATE, NodeErrorCode.AGENT_UNAVAILABLE)
        may_pass = is_absence or failure.verdict in (Verdict.RETRYABLE, Verdict.LOST)
        if may_pass and state.verify_retries_used < state.compiled.max_retries:
            state.verify_retries_used += 1
            delay = delay_ms(state.verify_retries_used + 1, failure.retry_after_ms)
            state.retry_at_ms = at_ms + delay
            decision.records.append(state.row())
            decision.actions.append(ScheduleRetry(state.compiled.name, state.retry_at_ms))
            return
        code = NodeErrorCode.VERIFIER_UNAVAILABLE
        if failure.code is NodeErrorCode.BUDGET_EXCEEDED:
            code = NodeErrorCode.BUDGET_EXCEEDED
        self._fail_attempt(state, Failure(code, failure.message, Verdict.FINAL), at_ms, decision)
