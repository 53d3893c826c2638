"""Restores a stored, unfinished workflow: loads its rows and resumes its open work.

1. `load_nodes` loads the rows into node states, and computes counts, results and reservations.
2. `resume_nodes` handles the open work. An open attempt ends as lost, by the usual event, and is
retried. An accepted attempt waits for its result again. An open verification is repeated. Timers
are set again. A node requests an agent if it waits for one or if its dependencies are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from core.errors import NodeErrorCode
from core.workflow.actions import AwaitResult, ScheduleRetry
from core.workflow.events import AttemptFailed, Failure, NodeChanged, Verdict
from core.workflow.rules.attempts import ask_again, attempt_failed, await_result
from core.workflow.rules.auction_rounds import await_bids
from core.workflow.rules.selection import make_ready
from core.workflow.rules.verification import dispatch_verification
from core.workflow.transitions import NodeStatus
from core.workflow.workflow_state import NodeState, WorkflowState, timeout_ms


def load_nodes(
    workflow: WorkflowState,
    rows: Iterable[NodeChanged],
    agents_used: Mapping[str, Sequence[str]],
) -> None:
    """Load the stored rows. The arguments are those of `WorkflowMachine.restore`."""
    for row in rows:
        _load_node(workflow, row, agents_used.get(row.node, ()))
    budget = workflow.budget
    active = [name for name, state in workflow.nodes.items() if state.is_active]
    budget.fit({name: budget.reserved_micro(name) for name in active})


def resume_nodes(workflow: WorkflowState) -> None:
    """Resume the open work of each node."""
    for state in workflow.nodes.values():
        _resume_node(workflow, state)


def _load_node(workflow: WorkflowState, row: NodeChanged, agents_used: Sequence[str]) -> None:
    name = row.node
    state = workflow.nodes[name]
    state.load(row, agents_used)
    budget = workflow.budget
    budget.spent_micro += state.cost_micro
    if state.is_active:
        workflow.active_count += 1
        budget.reserve(name, state.price_micro + state.verifier_price_micro)
    elif state.is_finished:
        workflow.unfinished_count -= 1
        budget.reserve(name, 0)
    if state.status is NodeStatus.SUCCESS:
        assert state.result is not None, name
        workflow.results[name] = state.result
        state.result_json = state.result_ref = None
        for child in state.compiled.children:
            workflow.nodes[child].unmet -= 1
    elif state.status in (NodeStatus.FAILED, NodeStatus.TIMEOUT):
        # If several nodes have failed, any of them may count as the first: only the error differs.
        workflow.first_failure = workflow.first_failure or {**(state.error or {}), "node": name}


def _resume_node(workflow: WorkflowState, state: NodeState) -> None:
    name = state.compiled.name
    if state.auction_closes_ms is not None:
        await_bids(workflow, state, state.auction_closes_ms)
    elif state.wait_until_ms is not None:
        ask_again(workflow, state)
    elif state.retry_at_ms is not None:
        workflow.perform(ScheduleRetry(name, state.retry_at_ms))
    elif state.has_unverified_result and state.verifier_did is not None:
        dispatch_verification(workflow, state, timeout_ms(workflow, state, workflow.at_ms))
    elif state.is_accepted:
        began_ms = workflow.at_ms if state.started_ms is None else state.started_ms
        due_ms = workflow.deadline_ms if state.deadline_ms is None else state.deadline_ms
        awaited = AwaitResult(name, state.attempt, 0, began_ms, due_ms, state.promised_ms)
        await_result(workflow, awaited)
    elif state.is_active:
        message = "the process that waited for the reply ended"
        lost = Failure(NodeErrorCode.AGENT_ERROR, message, Verdict.LOST)
        began_ms = workflow.at_ms if state.dispatched_ms is None else state.dispatched_ms
        event = AttemptFailed(name, state.attempt, lost, began_ms, workflow.at_ms)
        attempt_failed(workflow, event)
    elif state.status is NodeStatus.PENDING and state.unmet == 0:
        make_ready(workflow, state)
