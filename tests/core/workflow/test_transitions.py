"""Every pair of a state and a trigger is in the table, or refused with nothing changed."""

from __future__ import annotations

import itertools

import pytest

from core.errors import IllegalTransition
from core.workflow.transitions import (
    NODE_TRANSITIONS,
    WORKFLOW_TRANSITIONS,
    NodeStatus,
    NodeTrigger,
    WorkflowStatus,
    WorkflowTrigger,
    is_terminal,
    next_node_status,
    next_workflow_status,
)

# Written out a second time on purpose: the specification's rows, then the HTTP reference.
NODE_ARROWS = """
pending    | dependencies complete                  | ready
ready      | agent selected                         | dispatched
dispatched | work started                           | running
running    | result received                        | success
running    | error or timeout                       | failed
failed     | retry                                  | ready
dispatched | error or timeout                       | failed
ready      | no agent                               | failed
failed     | attempts used up, the last timed out   | timeout
pending    | another node failed                    | skipped
ready      | another node failed                    | skipped
pending    | workflow cancelled                     | skipped
ready      | workflow cancelled                     | skipped
dispatched | workflow cancelled                     | skipped
running    | workflow cancelled                     | skipped
pending    | maximum runtime exceeded               | skipped
ready      | maximum runtime exceeded               | skipped
dispatched | maximum runtime exceeded               | timeout
running    | maximum runtime exceeded               | timeout
"""
WORKFLOW_ARROWS = """
pending    | first node taken up                    | running
pending    | estimate exceeds budget                | failed
pending    | cancelled                              | cancelled
running    | all nodes complete                     | success
running    | a node failed and no other is at work  | failed
running    | cancelled                              | cancelled
running    | maximum runtime exceeded               | timeout
"""


def arrows(text: str) -> dict[tuple[str, str], str]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return {(state, trigger): following for state, trigger, following in rows}


@pytest.mark.parametrize(("status", "trigger"), list(itertools.product(NodeStatus, NodeTrigger)))
def test_node_pair(status: NodeStatus, trigger: NodeTrigger) -> None:
    wanted = arrows(NODE_ARROWS).get((status, trigger))
    if wanted is not None:
        assert next_node_status(status, trigger) == wanted
        return
    with pytest.raises(IllegalTransition) as refused:
        next_node_status(status, trigger)
    assert (refused.value.state, refused.value.trigger) == (status, trigger)


@pytest.mark.parametrize(
    ("status", "trigger"), list(itertools.product(WorkflowStatus, WorkflowTrigger))
)
def test_workflow_pair(status: WorkflowStatus, trigger: WorkflowTrigger) -> None:
    wanted = arrows(WORKFLOW_ARROWS).get((status, trigger))
    if wanted is not None:
        assert next_workflow_status(status, trigger) == wanted
        return
    with pytest.raises(IllegalTransition) as refused:
        next_workflow_status(status, trigger)
    assert (refused.value.state, refused.value.trigger) == (status, trigger)


def test_every_node_state_is_reached_and_terminal_ones_are_left_only_by_failed() -> None:
    assert {*NODE_TRANSITIONS.values(), NodeStatus.PENDING} == set(NodeStatus)
    left = {status for status, _ in NODE_TRANSITIONS if is_terminal(status)}
    assert left == {NodeStatus.FAILED}


def test_terminal_workflow_states_are_never_left() -> None:
    assert {*WORKFLOW_TRANSITIONS.values(), WorkflowStatus.PENDING} == set(WorkflowStatus)
    assert not any(is_terminal(status) for status, _ in WORKFLOW_TRANSITIONS)
