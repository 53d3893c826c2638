"""Waits of nodes for agents that are away for a passing reason: their start and their end.

One wait for agents and verifiers. It uses no attempt and no retry. Its end is stored with its start
as `retry_at_ms`, so that a successor of the owner waits on until that time. What it waits for
stands in `selection_json`, where a choice's reasons stand otherwise. Decision
agent-health-and-waiting.
"""

from __future__ import annotations

from core.json_text import read_json, write_json
from core.workflow.actions import AwaitAgent, Decision
from core.workflow.events import Failure
from core.workflow.workflow_state import (
    CHOICE,
    WAITING_FOR,
    AwaitedSelection,
    NodeState,
    WorkflowState,
)


def wait_for_agent(
    workflow: WorkflowState,
    state: NodeState,
    failure: Failure,
    capability_id: str,
    at_ms: int,
    decision: Decision,
) -> bool:
    """Have a node wait, or wait on, after a failed selection; return whether it does.

    It does not when no agent may come back, or when it has waited as long as it may.
    """
    until_ms = state.wait_until_ms
    if until_ms is None:
        until_ms = min(at_ms + state.compiled.wait_for_agent_ms, workflow.deadline_ms)
    if not failure.is_passing or at_ms >= until_ms:
        return False
    state.awaiting = AwaitedSelection.NOTHING
    state.is_retrying = False
    is_first = state.wait_until_ms is None
    if is_first:
        state.wait_until_ms = state.retry_at_ms = until_ms
        told = {"reason": failure.message, "sinceMs": at_ms}
        kept = {WAITING_FOR: told, CHOICE: state.selection_json}
        state.selection_json = write_json(kept).decode()
    if is_first or state.compiled.is_auction:  # a later round of an auction has been closed
        decision.records.append(state.row())
    decision.actions.append(AwaitAgent(state.compiled.name, capability_id, until_ms))
    return True


def end_wait(state: NodeState) -> bool:
    """End the wait of a node; return whether it waited."""
    if state.wait_until_ms is None:
        return False
    state.wait_until_ms = state.retry_at_ms = None
    assert state.selection_json is not None, state
    state.selection_json = read_json(state.selection_json)[CHOICE]
    return True
