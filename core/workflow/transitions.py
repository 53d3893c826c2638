"""The transition tables: every state of nodes and workflows, and every transition between them.

Rules of this file: a transition that the tables do not list is illegal. All code takes new states
from these tables. This file does not know what causes a trigger. `docs/states.md` is generated from
the tables.

Theory of operation: `WorkflowMachine` turns an event into triggers. For each trigger it calls
`next_node_status` or `next_workflow_status`. A node whose attempt fails goes through `failed` even
before a retry. Both transitions then happen within one step. A stored `failed` is therefore always
final, and a node that waits for its next attempt is stored as `ready`.
Reference: features.md (States).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from core.errors import IllegalTransition
from core.records.statuses import NodeStatus as NodeStatus
from core.records.statuses import WorkflowStatus as WorkflowStatus


class NodeTrigger(StrEnum):
    """The triggers of node transitions."""

    DEPENDENCIES_COMPLETE = "dependencies complete"
    AGENT_SELECTED = "agent selected"
    NO_AGENT = "no agent"
    WORK_STARTED = "work started"
    RESULT_RECEIVED = "result received"
    ATTEMPT_FAILED = "error or timeout"
    RETRY = "retry"
    TIMEOUTS_EXHAUSTED = "attempts used up, the last timed out"
    UPSTREAM_FAILED = "another node failed"
    WORKFLOW_CANCELLED = "workflow cancelled"
    RUNTIME_EXCEEDED = "maximum runtime exceeded"


class WorkflowTrigger(StrEnum):
    """The triggers of workflow transitions."""

    WORK_BEGUN = "first node taken up"
    ESTIMATE_EXCEEDS_BUDGET = "estimate exceeds budget"
    ALL_NODES_COMPLETE = "all nodes complete"
    NODE_FAILED = "a node failed and no other is at work"
    CANCELLED = "cancelled"
    RUNTIME_EXCEEDED = "maximum runtime exceeded"


_N = NodeStatus
_T = NodeTrigger

NODE_TRANSITIONS: Final[dict[tuple[NodeStatus, NodeTrigger], NodeStatus]] = {
    (_N.PENDING, _T.DEPENDENCIES_COMPLETE): _N.READY,
    (_N.PENDING, _T.UPSTREAM_FAILED): _N.SKIPPED,
    (_N.PENDING, _T.WORKFLOW_CANCELLED): _N.SKIPPED,
    (_N.PENDING, _T.RUNTIME_EXCEEDED): _N.SKIPPED,
    (_N.READY, _T.AGENT_SELECTED): _N.DISPATCHED,
    (_N.READY, _T.NO_AGENT): _N.FAILED,
    (_N.READY, _T.UPSTREAM_FAILED): _N.SKIPPED,
    (_N.READY, _T.WORKFLOW_CANCELLED): _N.SKIPPED,
    (_N.READY, _T.RUNTIME_EXCEEDED): _N.SKIPPED,
    (_N.DISPATCHED, _T.WORK_STARTED): _N.RUNNING,
    # The request never reached the agent: a refused connection, or inputs that cannot be built.
    (_N.DISPATCHED, _T.ATTEMPT_FAILED): _N.FAILED,
    (_N.DISPATCHED, _T.WORKFLOW_CANCELLED): _N.SKIPPED,
    (_N.DISPATCHED, _T.RUNTIME_EXCEEDED): _N.TIMEOUT,
    (_N.RUNNING, _T.RESULT_RECEIVED): _N.SUCCESS,
    (_N.RUNNING, _T.ATTEMPT_FAILED): _N.FAILED,
    (_N.RUNNING, _T.WORKFLOW_CANCELLED): _N.SKIPPED,
    (_N.RUNNING, _T.RUNTIME_EXCEEDED): _N.TIMEOUT,
    (_N.FAILED, _T.RETRY): _N.READY,
    (_N.FAILED, _T.TIMEOUTS_EXHAUSTED): _N.TIMEOUT,
}

_W = WorkflowStatus
_X = WorkflowTrigger

WORKFLOW_TRANSITIONS: Final[dict[tuple[WorkflowStatus, WorkflowTrigger], WorkflowStatus]] = {
    (_W.PENDING, _X.WORK_BEGUN): _W.RUNNING,
    (_W.PENDING, _X.ESTIMATE_EXCEEDS_BUDGET): _W.FAILED,
    (_W.PENDING, _X.CANCELLED): _W.CANCELLED,
    (_W.RUNNING, _X.ALL_NODES_COMPLETE): _W.SUCCESS,
    (_W.RUNNING, _X.NODE_FAILED): _W.FAILED,
    (_W.RUNNING, _X.CANCELLED): _W.CANCELLED,
    (_W.RUNNING, _X.RUNTIME_EXCEEDED): _W.TIMEOUT,
}

_NODE_TERMINAL: Final = frozenset({_N.SUCCESS, _N.FAILED, _N.SKIPPED, _N.TIMEOUT})
_WORKFLOW_TERMINAL: Final = frozenset({_W.SUCCESS, _W.FAILED, _W.CANCELLED, _W.TIMEOUT})


def next_node_status(status: NodeStatus, trigger: NodeTrigger) -> NodeStatus:
    """Return the status of a node after a trigger.

    Raises `IllegalTransition` when the table has no such transition. Reference: features.md
    (States).
    """
    following = NODE_TRANSITIONS.get((status, trigger))
    if following is None:
        raise IllegalTransition("node", status, trigger)
    return following


def next_workflow_status(status: WorkflowStatus, trigger: WorkflowTrigger) -> WorkflowStatus:
    """Return the status of a workflow after a trigger.

    Raises `IllegalTransition` when the table has no such transition.
    """
    following = WORKFLOW_TRANSITIONS.get((status, trigger))
    if following is None:
        raise IllegalTransition("workflow", status, trigger)
    return following


def is_terminal(status: NodeStatus | WorkflowStatus) -> bool:
    """Say whether a stored row with this status is final.

    A stored `failed` is final, because a node leaves `failed` only within the step that set it.
    """
    return status in _NODE_TERMINAL or status in _WORKFLOW_TERMINAL
