"""The attempts of a node: their start, their end, and retries.

A node whose attempt fails goes through `failed`. From there it returns to `ready` at once for
another agent, returns to `ready` after a back-off, or ends. `retry.py` has the limits.
Reference: features.md (States, Nodes), money.md (Budgets and holds).
"""

from __future__ import annotations

from msgspec.structs import replace

from core.errors import NodeErrorCode
from core.workflow.actions import AwaitResult, DispatchNode, ScheduleRetry
from core.workflow.events import (
    AgentNotSelected,
    AgentSelected,
    AttemptAccepted,
    AttemptFailed,
    AttemptFinished,
    AttemptSucceeded,
    Failure,
    NodePaid,
    RetryDue,
    Verdict,
    WorkStarted,
)
from core.workflow.rules.auction_rounds import (
    close_round,
    may_replace_winner,
    reopen_round,
    replace_winner,
)
from core.workflow.rules.history import record_failed_attempt
from core.workflow.rules.node_ends import begin_work, counted_as, end_if_done, fail_node
from core.workflow.rules.payment import (
    agent_price_max_micro,
    pay_rejection_at_peer,
    price_above_limit,
    price_of_attempt,
    set_named_price,
    set_peer_price,
    set_token_price,
    settle_tokens,
)
from core.workflow.rules.retry import MOVES_MAX, delay_ms, may_change_agent
from core.workflow.rules.selection import ask_agent, ask_verifier, make_ready
from core.workflow.rules.staking import lock_stake, unlock_stake
from core.workflow.rules.waiting import end_wait, wait_for_agent
from core.workflow.terms import NO_TERMS
from core.workflow.transitions import NodeStatus, NodeTrigger, WorkflowStatus, next_node_status
from core.workflow.workflow_state import (
    AwaitedSelection,
    NodeState,
    WorkflowState,
    error_of,
    find_awaiting_node,
    find_node,
    is_open,
    open_attempt,
    timeout_ms,
)

# -- events ----------------------------------------------------------------------------------------


def agent_selected(workflow: WorkflowState, event: AgentSelected) -> None:
    """Open an attempt with the selected agent, if the node can still pay the agent's price."""
    name = event.node
    state = find_awaiting_node(workflow, name, AwaitedSelection.AGENT, NodeTrigger.AGENT_SELECTED)
    if state is None:
        return
    close_round(workflow, state, event.closed)
    limit_micro = agent_price_max_micro(workflow, state)
    price_micro = price_of_attempt(workflow, event)
    if price_micro > limit_micro:
        if limit_micro < state.price_limit_micro:
            # Another node has reserved money since this selection began, so select again.
            ask_agent(workflow, state)
        else:
            failure = price_above_limit(event, limit_micro)
            _selection_failed(workflow, state, failure)
        return
    if workflow.status is WorkflowStatus.PENDING:
        begin_work(workflow)
    state.status = next_node_status(state.status, NodeTrigger.AGENT_SELECTED)
    workflow.active_count += 1
    agent_timeout_ms = timeout_ms(workflow, state, event.at_ms)
    state.begin_attempt(event, price_micro, agent_timeout_ms, workflow.key_version)
    state.selection_json = event.selection_json
    set_token_price(state, event)
    stake_micro = event.stake_micro
    if event.token_price is not None:
        # The locked stake is at most the reservation for the agent (money.md, Slashing).
        stake_micro = min(stake_micro, price_micro)
    lock_stake(workflow, state, stake_micro)
    budget = workflow.budget
    # Do not reduce the reservation, because the next agent may cost more. Include the verifier.
    reserved_micro = price_micro + workflow.terms.get(name, NO_TERMS).verifier_micro
    reserved_micro = max(reserved_micro, budget.reserved_micro(name))
    budget.reserve(name, min(reserved_micro, budget.available_micro(name)))
    workflow.record(state.row())
    workflow.perform(DispatchNode(name, state.attempt, event.agent_did, agent_timeout_ms))


def agent_not_selected(workflow: WorkflowState, event: AgentNotSelected) -> None:
    """Handle a failed selection: another round, a wait, a retry, or the end of the node."""
    state = find_awaiting_node(workflow, event.node, AwaitedSelection.AGENT, NodeTrigger.NO_AGENT)
    if state is not None:
        close_round(workflow, state, event.closed)
        _selection_failed(workflow, state, event.failure)


def work_started(workflow: WorkflowState, event: WorkStarted) -> None:
    """Set the node to running, with its start time. This change is not stored."""
    state = find_node(workflow, event.node)
    if state.status is NodeStatus.DISPATCHED and state.attempt == event.attempt:
        state.status = next_node_status(state.status, NodeTrigger.WORK_STARTED)
        state.started_ms = event.at_ms


def attempt_accepted(workflow: WorkflowState, event: AttemptAccepted) -> None:
    """Keep the attempt open until its result is sent, and schedule its timeout.

    An accepted attempt is stored, so that the workflow waits for its result after a restart.
    """
    name = event.node
    state = find_node(workflow, name)
    if not is_open(state, event.attempt, event.verify_attempt) or state.is_accepted:
        return
    state.is_accepted = True
    due_ms = event.started_ms + timeout_ms(workflow, state, event.started_ms)
    if event.verify_attempt:
        # Not stored: after a restart the verification is repeated with the same id. A hand-over of
        # the shard waits for the verification (`DrivenShards.is_idle`).
        state.verify_dispatched_ms = event.started_ms
    else:
        if state.status is NodeStatus.DISPATCHED:
            state.status = next_node_status(state.status, NodeTrigger.WORK_STARTED)
        state.started_ms = event.started_ms
        state.deadline_ms = due_ms
        state.input_hash = event.input_hash
        workflow.record(state.row())
    awaited = AwaitResult(
        name, event.attempt, event.verify_attempt, event.started_ms, due_ms, state.promised_ms
    )
    await_result(workflow, awaited)


def attempt_succeeded(workflow: WorkflowState, event: AttemptSucceeded) -> None:
    """Store the agent's result, then request a verifier or pay the agent.

    No verifier is requested in two cases. If the payer ends the attempt, the payer has seen the
    result. If a peer replied, the peer has already had the result verified.
    """
    state = open_attempt(workflow, event.node, event.attempt)
    if state is None:
        return
    if state.status is NodeStatus.DISPATCHED:
        # The reply arrived before the event that the request was sent.
        state.status = next_node_status(state.status, NodeTrigger.WORK_STARTED)
    state.is_accepted = False
    state.started_ms = event.started_ms
    is_settled = event.is_settled or event.charged_micro is not None
    unpayable = None
    if event.is_settled:
        set_named_price(workflow, state, event.named_micro)
    elif event.charged_micro is not None:
        set_peer_price(workflow, state, event.charged_micro)
    else:
        unpayable = settle_tokens(workflow, state, event.metrics)
    if unpayable is not None:
        record_failed_attempt(workflow, state, unpayable, "error")
        fail_attempt(workflow, state, unpayable)
        return
    state.result_json = event.result_json
    state.result_ref = event.result_ref
    state.metrics = event.metrics
    workflow.record(
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
            queued_ms=state.dispatched_ms,
            signature=event.signature,
            signed_key=event.signed_key,
        )
    )
    if state.compiled.requires_verification and not is_settled:
        ask_verifier(workflow, state)
    else:
        succeed_node(workflow, state)


def attempt_failed(workflow: WorkflowState, event: AttemptFailed) -> None:
    """End the open attempt, then retry, change the agent or end the node."""
    state = open_attempt(workflow, event.node, event.attempt)
    if state is None:
        return
    failure = event.failure
    outcome = "timeout" if failure.code is NodeErrorCode.AGENT_TIMEOUT else "error"
    if failure.verdict is Verdict.LOST:
        outcome = "lost"
    state.started_ms = event.started_ms
    if failure.is_stake_in_use:
        state.stake_micro = 0
    record_failed_attempt(workflow, state, failure, outcome)
    if event.charged_micro:
        pay_rejection_at_peer(workflow, state, event)
    fail_attempt(workflow, state, failure)


def retry_due(workflow: WorkflowState, event: RetryDue) -> None:
    """Request an agent or a verifier after a back-off or during a wait."""
    state = find_node(workflow, event.node)
    if state.wait_until_ms is None:
        # An event before `retry_at_ms` belongs to an earlier back-off.
        if state.retry_at_ms is None or event.at_ms < state.retry_at_ms:
            return
        state.retry_at_ms = None
    elif state.auction_closes_ms is not None or event.at_ms >= workflow.deadline_ms:
        # The node takes bids now, or the workflow has reached its deadline. The deadline gives a
        # better error than the end of the wait.
        return
    ask_again(workflow, state)


def ask_again(workflow: WorkflowState, state: NodeState) -> None:
    """Request a verifier if the node has an unverified result, otherwise an agent."""
    if state.has_unverified_result:
        ask_verifier(workflow, state)
    else:
        state.is_retrying = state.attempt > 0
        ask_agent(workflow, state)


# -- consequences ----------------------------------------------------------------------------------


def await_result(workflow: WorkflowState, awaited: AwaitResult) -> None:
    """Schedule the accepted attempt's timeout, unless the workflow ends before it."""
    # An agent is not to blame when the workflow reaches its deadline.
    if awaited.due_ms < workflow.deadline_ms:
        workflow.perform(awaited)


def succeed_node(workflow: WorkflowState, state: NodeState) -> None:
    """End a node with its result: pay the agent, and make child nodes ready."""
    name = state.compiled.name
    state.status = next_node_status(state.status, NodeTrigger.RESULT_RECEIVED)
    unlock_stake(workflow, state)
    state.completed_ms = workflow.at_ms
    state.counts_as = counted_as(state)
    workflow.active_count -= 1
    workflow.unfinished_count -= 1
    assert state.result is not None, name
    workflow.results[name] = state.result
    workflow.budget.pay(name, state.price_micro)
    workflow.budget.reserve(name, 0)
    state.cost_micro += state.price_micro
    workflow.record(state.row())
    if state.price_micro:
        workflow.record(NodePaid(name, state.agent_did or "", state.price_micro))
    state.result_json = state.result_ref = None  # `workflow.results` has it
    state.round_bids = None
    if workflow.first_failure is None:
        for child in state.compiled.children:
            waiting = workflow.nodes[child]
            waiting.unmet -= 1
            if waiting.unmet == 0:
                make_ready(workflow, waiting)
    end_if_done(workflow)


def fail_attempt(workflow: WorkflowState, state: NodeState, failure: Failure) -> None:
    """End the open attempt without success. The caller has already recorded its history.

    The agent is given up when another agent follows at once or the node ends. After a back-off the
    same agent may get the next attempt.
    """
    state.status = next_node_status(state.status, NodeTrigger.ATTEMPT_FAILED)
    end_wait(state)
    may_go_on = workflow.first_failure is None
    goes_to_another = may_go_on and _may_replace_agent(workflow, state, failure)
    backs_off = may_go_on and not goes_to_another and _may_back_off(state, failure)
    unlock_stake(workflow, state, failure, is_given_up=not backs_off)
    workflow.active_count -= 1
    state.forget_result()
    state.error = error_of(failure)
    if goes_to_another:
        if failure.verdict is Verdict.LOST:
            state.error = None  # the failure of this service is no error of the node
        state.status = next_node_status(state.status, NodeTrigger.RETRY)
        ask_agent(workflow, state)
    elif backs_off:
        _back_off(workflow, state, failure)
    else:
        fail_node(workflow, state)


def _may_replace_agent(workflow: WorkflowState, state: NodeState, failure: Failure) -> bool:
    """Say whether the next attempt follows at once, without using up a retry.

    Also updates the node's list of agents that failed or declined.
    """
    node = state.compiled
    verdict = failure.verdict
    if verdict is Verdict.LOST:
        return True
    if _may_replace_after_decline(workflow, state, failure):
        state.declined = failure
        if state.is_first_try:
            state.agents_used = state.agents_used[:-1]
        return True
    is_unusable = node.is_auction and (failure.is_stake_in_use or failure.is_declined)
    is_away = (
        failure.is_stake_in_use
        or is_unusable
        or (
            failure.code is NodeErrorCode.AGENT_UNAVAILABLE
            and verdict is Verdict.RETRYABLE
            and node.allow_broadcast_fallback
            and state.agent_did == node.target_agent_id
        )
    )
    # When the retries are used up, the next bid replaces the winner of an auction. A rejected
    # winner is not replaced: the payer has paid a verifier, and would pay one for each further bid.
    is_worn_out = (
        node.is_auction
        and verdict is Verdict.RETRYABLE
        and failure.code is not NodeErrorCode.VERIFICATION_REJECTED
        and not _may_back_off(state, failure)
    )
    is_final = verdict is Verdict.FINAL_FOR_AGENT or is_worn_out
    if not is_final and not is_away:
        return False
    assert state.agent_did is not None
    tried = (*state.agents_tried, state.agent_did)
    may_change = may_change_agent(
        len(tried),
        allow_fallback_agents=workflow.compiled.allow_fallback_agents,
        is_targeted=node.target_agent_id is not None,
        allow_broadcast_fallback=node.allow_broadcast_fallback,
        is_refused=failure.code is NodeErrorCode.INPUT_SCHEMA or is_unusable,
    )
    if may_change or not is_away:
        state.agents_tried = tried
        state.seeks_replacement = is_away
    return may_change


def _may_replace_after_decline(workflow: WorkflowState, state: NodeState, failure: Failure) -> bool:
    """Say whether another agent is tried at once because the agent has declined the attempt."""
    node = state.compiled
    if not failure.is_declined or node.is_auction or state.attempt >= MOVES_MAX:
        return False
    if state.agent_did == node.target_agent_id:
        return node.allow_broadcast_fallback
    return workflow.compiled.allow_fallback_agents


def _may_back_off(state: NodeState, failure: Failure) -> bool:
    """Say whether the failure is retryable and the node has a retry left."""
    is_retryable = failure.verdict is Verdict.RETRYABLE
    return is_retryable and state.retries_used < state.compiled.max_retries


def _back_off(workflow: WorkflowState, state: NodeState, failure: Failure) -> None:
    """Use up a retry and schedule it after the back-off."""
    state.retries_used += 1
    state.status = next_node_status(state.status, NodeTrigger.RETRY)
    state.retry_at_ms = workflow.at_ms + delay_ms(state.retries_used + 1, failure.retry_after_ms)
    state.deadline_ms = None
    workflow.record(state.row())
    workflow.perform(ScheduleRetry(state.compiled.name, state.retry_at_ms))


def _selection_failed(workflow: WorkflowState, state: NodeState, failure: Failure) -> None:
    """Open another round, wait, retry or end the node after a selection that found no agent."""
    if may_replace_winner(workflow, state, failure):
        replace_winner(workflow, state)
        return
    if reopen_round(workflow, state):
        return
    capability_id = state.compiled.capability_id
    declined, state.declined = state.declined, None
    seeks_replacement = state.seeks_replacement or declined is not None
    if not seeks_replacement and wait_for_agent(workflow, state, failure, capability_id):
        return
    has_waited = end_wait(state)
    state.awaiting = AwaitedSelection.NOTHING
    if declined is not None:  # no other agent can take the node, so the last agent is retried
        if failure.code is NodeErrorCode.BUDGET_EXCEEDED:
            declined = replace(declined, message=f"{declined.message}; {failure.message}")
            state.error = error_of(declined)
        failure = declined
    is_absence = failure.code in (NodeErrorCode.NO_CANDIDATE, NodeErrorCode.AGENT_UNAVAILABLE)
    if state.seeks_replacement:
        # No other agent can replace the last agent at an affordable price, so wait until the last
        # agent, or its stake, is available again.
        state.seeks_replacement = False
        state.agents_tried = state.agents_tried[:-1]
        is_absence = True
        failure = Failure(failure.code, failure.message, Verdict.RETRYABLE)
    elif is_absence and state.is_retrying:
        # The circuit of the agent that failed may be open for a short time only, so retry.
        failure = Failure(failure.code, failure.message, Verdict.RETRYABLE)
    if state.error is None or not is_absence:
        # If only a candidate is missing, the last agent's failure explains more, so it is kept.
        state.error = error_of(failure)
    state.is_retrying = False
    state.status = next_node_status(state.status, NodeTrigger.NO_AGENT)
    if not has_waited and _may_back_off(state, failure):
        _back_off(workflow, state, failure)
    else:
        fail_node(workflow, state)
