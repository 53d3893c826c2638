"""The state of one workflow, and look-ups of an event's node in it.

No rules here: the functions of `core/workflow/rules` are its only writers.
Reference: features.md (States), money.md (Budgets and holds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import IllegalTransition
from core.workflow.blob_ref import BlobRef
from core.workflow.dag import CompiledWorkflow
from core.workflow.node_state import AwaitedSelection, Budget, NodeState
from core.workflow.terms import NodeTerms
from core.workflow.transitions import NodeStatus, NodeTrigger, WorkflowStatus


@dataclass(slots=True, eq=False)
class WorkflowState:
    """One workflow.

    `nodes`, `results` and `terms` are by the node's name; results are texts, or references.
    `key_version`: of the deployment's key by which tokens of new attempts are derived.
    `active_count`: nodes that are dispatched or running. `first_failure`: the error of the first
    failed node, with its name as `node`. `started_ms`, `succeeded_ms`: when it did so; None in a
    restored one that had begun before.
    """

    workflow_id: str
    compiled: CompiledWorkflow
    deadline_ms: int
    budget: Budget
    terms: Mapping[str, NodeTerms]
    nodes: dict[str, NodeState]
    unfinished_count: int
    key_version: int
    active_count: int = 0
    status: WorkflowStatus = WorkflowStatus.PENDING
    results: dict[str, str | BlobRef] = field(default_factory=dict)
    is_accepted: bool = False
    first_failure: dict[str, Any] | None = None
    started_ms: int | None = None
    succeeded_ms: int | None = None


def new_workflow_state(
    workflow_id: str,
    compiled: CompiledWorkflow,
    *,
    hold_micro: int,
    reserved: Mapping[str, int],
    deadline_ms: int,
    terms: Mapping[str, NodeTerms],
    key_version: int,
) -> WorkflowState:
    """Return the state of a workflow that is not accepted yet; arguments as `WorkflowMachine`'s."""
    nodes = {
        name: NodeState(node, unmet=len(node.depends_on)) for name, node in compiled.nodes.items()
    }
    budget = Budget(hold_micro, reserved)
    return WorkflowState(
        workflow_id, compiled, deadline_ms, budget, terms, nodes, len(nodes), key_version
    )


def find_node(workflow: WorkflowState, name: str) -> NodeState:
    """Return the node that an event names. Raises `IllegalTransition` for an unknown one."""
    state = workflow.nodes.get(name)
    if state is None:
        raise IllegalTransition("workflow", workflow.status, f"an event of unknown node {name!r}")
    return state


def find_awaiting_node(
    workflow: WorkflowState, name: str, asked: AwaitedSelection, trigger: NodeTrigger
) -> NodeState | None:
    """Return the node that waits for this selection, None when it has ended in the meantime.

    Raises `IllegalTransition` with `trigger` when the node does not wait for it.
    """
    state = find_node(workflow, name)
    if state.awaiting is asked:
        return state
    if state.is_finished:
        return None
    raise IllegalTransition("node", state.status, trigger)


def open_attempt(workflow: WorkflowState, name: str, attempt: int) -> NodeState | None:
    """Return the node with this open attempt, None for a late or repeated reply."""
    state = find_node(workflow, name)
    if not state.is_active or state.attempt != attempt or state.has_result:
        return None
    return state


def is_open_verification(state: NodeState, attempt: int, verify_attempt: int | None) -> bool:
    """Say whether this verification of this attempt is open; None: any verification."""
    return (
        state.status is NodeStatus.RUNNING
        and state.attempt == attempt
        and state.verifier_did is not None
        and verify_attempt in (None, state.verify_attempt)
    )


def timeout_ms(workflow: WorkflowState, state: NodeState, at_ms: int) -> int:
    """Return an agent's timeout: the node's, or the workflow's remaining runtime if shorter."""
    return max(1, min(state.compiled.timeout_ms, workflow.deadline_ms - at_ms))
