"""The start and the end of a node's wait for temporarily unavailable agents.

A node has one wait, for agents and verifiers alike. A wait uses up no attempt and no retry. The end
of the wait is stored as `retry_at_ms` when it starts, so that a new owner waits until the same
time. During the wait, `selection_json` contains the reason of the wait. Decision
agent-health-and-waiting.
"""

from __future__ import annotations

from core.json_text import read_json, write_json
from core.workflow.actions import AwaitAgent
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
) -> bool:
    """Start or continue a node's wait after a failed selection.

    Returns: False if no agent is temporarily unavailable, or if the wait is over.
    """
    until_ms = state.wait_until_ms
    if until_ms is None:
        until_ms = min(workflow.at_ms + state.compiled.wait_for_agent_ms, workflow.deadline_ms)
    if not failure.is_temporary or workflow.at_ms >= until_ms:
        return False
    state.awaiting = AwaitedSelection.NOTHING
    state.is_retrying = False
    is_first = state.wait_until_ms is None
    if is_first:
        state.wait_until_ms = state.retry_at_ms = until_ms
        told = {"reason": failure.message, "sinceMs": workflow.at_ms}
        kept = {WAITING_FOR: told, CHOICE: state.selection_json}
        state.selection_json = write_json(kept).decode()
    if is_first or state.compiled.is_auction:  # a later round of the auction has just been closed
        workflow.record(state.row())
    workflow.perform(AwaitAgent(state.compiled.name, capability_id, until_ms))
    return True


def end_wait(state: NodeState) -> bool:
    """End the wait of a node, if there is one; return whether the node waited."""
    if state.wait_until_ms is None:
        return False
    state.wait_until_ms = state.retry_at_ms = None
    assert state.selection_json is not None, state
    state.selection_json = read_json(state.selection_json)[CHOICE]
    return True
