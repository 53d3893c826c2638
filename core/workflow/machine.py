"""The state machine of one workflow: takes events, returns records to store and actions to perform.

Rules of this file: no code here waits, acts or reads a clock. States change only by the transition
table. A step either decides completely or raises `IllegalTransition` and leaves the state
unchanged. A reply that is late, repeated or after the workflow's end gets an empty decision.

Theory of operation. A node becomes ready when the count of its unmet dependencies falls to 0. The
machine then requests an agent and gets the answer within the same step. A node whose attempt fails
goes through `failed`. From there it returns to `ready` at once (another agent takes the node, or
the dispatching process was lost), returns to `ready` after a back-off, or ends. After the first
final failure of a node, every node that was not dispatched ends. Open attempts may finish and are
paid. Then the workflow ends. The machine owns a `WorkflowState`. The table at the end of this file
maps each event to the function in `rules` that changes this state.
Reference: features.md (States, Nodes, Verification).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from core.records.graph import TRIGGER_SOURCE
from core.trust.deployment_keys import FIRST_VERSION
from core.workflow.actions import Decision
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import (
    AgentNotSelected,
    AgentRevoked,
    AgentSelected,
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    BidsReceived,
    BlobRef,
    CancelRequested,
    Event,
    NodeChanged,
    RetryDue,
    RuntimeExceeded,
    VerificationFinished,
    VerifierSelected,
    WorkflowAccepted,
    WorkStarted,
)
from core.workflow.rules.attempts import (
    agent_not_selected,
    agent_selected,
    attempt_accepted,
    attempt_failed,
    attempt_succeeded,
    retry_due,
    work_started,
)
from core.workflow.rules.auction_rounds import bids_received
from core.workflow.rules.node_ends import cancel_requested, runtime_exceeded
from core.workflow.rules.payment import peer_price_max_micro
from core.workflow.rules.restoration import load_nodes, resume_nodes
from core.workflow.rules.revocation import agent_revoked, agents_at_work
from core.workflow.rules.selection import workflow_accepted
from core.workflow.rules.verification import (
    verification_finished,
    verifier_not_selected,
    verifier_selected,
)
from core.workflow.terms import NodeTerms
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from core.workflow.workflow_state import (
    AwaitedSelection,
    Budget,
    NodeState,
    WorkflowState,
    find_node,
)


class WorkflowMachine:
    """The state machine of one workflow.

    Args:
        hold_micro: the amount in escrow, micro-credits.
        reserved: the reservation of each node in micro-credits, its verifier's price included.
        deadline_ms: when `maxRuntimeMs` is over, Unix milliseconds.
        terms: the price terms by node; nodes with a plain price have none.
        key_version: the version of the deployment's key that derives the tokens of new attempts.
    """

    def __init__(
        self,
        workflow_id: str,
        compiled: CompiledWorkflow,
        *,
        hold_micro: int,
        reserved: Mapping[str, int],
        deadline_ms: int,
        terms: Mapping[str, NodeTerms] | None = None,
        key_version: int = FIRST_VERSION,
    ) -> None:
        self.workflow_id = workflow_id
        self.compiled = compiled
        self.deadline_ms = deadline_ms
        nodes = {
            name: NodeState(name, NodeStatus.PENDING, compiled=node, unmet=len(node.depends_on))
            for name, node in compiled.nodes.items()
        }
        budget = Budget(hold_micro, reserved)
        self._workflow = WorkflowState(
            workflow_id, compiled, deadline_ms, budget, terms or {}, nodes, len(nodes), key_version
        )

    def __repr__(self) -> str:
        workflow = self._workflow
        return (
            f"<{type(self).__name__} {self.workflow_id} {workflow.status}"
            f" active={workflow.active_count} unfinished={workflow.unfinished_count}"
            f" spent={self.spent_micro}>"
        )

    def step(self, event: Event) -> Decision:
        """Change the state by an event and return the decision.

        Raises `IllegalTransition`, with nodes and budget unchanged, for an event that cannot happen
        in this state.
        """
        workflow = self._workflow
        decision = workflow.begin_step(event.at_ms)
        if not is_terminal(workflow.status):
            _RULES[type(event)](workflow, event)
        return decision

    @property
    def status(self) -> WorkflowStatus:
        """The workflow's status."""
        return self._workflow.status

    @property
    def is_finished(self) -> bool:
        """Whether the workflow has reached its end."""
        return is_terminal(self._workflow.status)

    @property
    def started_ms(self) -> int | None:
        """When the workflow changed to running, normally at the first dispatch.

        None before this change, and in a workflow that was restored after this change.
        """
        return self._workflow.started_ms

    @property
    def succeeded_ms(self) -> int | None:
        """When the last node succeeded; None before the workflow has succeeded."""
        return self._workflow.succeeded_ms

    @property
    def hold_micro(self) -> int:
        """The amount in escrow, micro-credits."""
        return self._workflow.budget.hold_micro

    @property
    def spent_micro(self) -> int:
        """The sum of the payments so far, micro-credits."""
        return self._workflow.budget.spent_micro

    def node(self, name: str) -> NodeState:
        """Return a node's state, which the caller must not change. Raises KeyError."""
        return self._workflow.nodes[name]

    def peer_charge_max_micro(self, name: str) -> int:
        """Return the maximum that a peer may charge for a node's open attempt, micro-credits."""
        return peer_price_max_micro(self._workflow, self._workflow.nodes[name])

    def row_of(self, name: str) -> NodeChanged:
        """Return the stored row of a node that has succeeded, with its result. Raises KeyError."""
        row, result = self._workflow.nodes[name].row(), self._workflow.results[name]
        if isinstance(result, BlobRef):
            return replace(row, result_ref=result)
        return replace(row, result_json=result)

    def agents_at_work(self) -> set[str]:
        """Return the agents and verifiers of all open attempts."""
        return agents_at_work(self._workflow)

    def results_for(self, name: str) -> dict[str, str | BlobRef]:
        """Return the results that a node's inputs need, by source: JSON texts or `BlobRef`s."""
        node = self.compiled.nodes[name]
        sources = (*node.depends_on, *(mapping.source for mapping in node.mappings))
        results, cause = self._workflow.results, self.compiled.trigger_result
        return {
            source: results[source] if cause is None or source != TRIGGER_SOURCE else cause
            for source in dict.fromkeys(sources)
        }

    def restore(
        self,
        status: WorkflowStatus,
        nodes: Iterable[NodeChanged],
        agents_used: Mapping[str, Sequence[str]],
        at_ms: int,
    ) -> Decision:
        """Load a stored, unfinished workflow into a new machine and return the decision.

        Args:
            status: the stored status of the workflow.
            nodes: the stored rows; a node without a row was never ready.
            agents_used: by node, the agents of its ended attempts, in order, repeats included.
            at_ms: the current time, Unix milliseconds.

        1. Load the rows into node states. 2. If the deadline has passed, end the workflow.
        3. Otherwise resume the open work (`rules/restoration.py`).
        """
        workflow = self._workflow
        workflow.status = WorkflowStatus(status)
        workflow.is_accepted = True
        load_nodes(workflow, nodes, agents_used)
        if at_ms >= self.deadline_ms:
            return self.step(RuntimeExceeded(at_ms))
        decision = workflow.begin_step(at_ms)
        resume_nodes(workflow)
        return decision


def _not_selected(workflow: WorkflowState, event: AgentNotSelected) -> None:
    """Handle the event that no agent, or no verifier, was found for a node."""
    state = find_node(workflow, event.node)
    if state.awaiting is AwaitedSelection.VERIFIER:
        verifier_not_selected(workflow, state, event.failure)
    else:
        agent_not_selected(workflow, event)


_RULES: Final[dict[type, Callable[[WorkflowState, Any], None]]] = {
    WorkflowAccepted: workflow_accepted,
    AgentSelected: agent_selected,
    AgentNotSelected: _not_selected,
    BidsReceived: bids_received,
    WorkStarted: work_started,
    AttemptAccepted: attempt_accepted,
    AttemptSucceeded: attempt_succeeded,
    AttemptFailed: attempt_failed,
    VerifierSelected: verifier_selected,
    VerificationFinished: verification_finished,
    RetryDue: retry_due,
    AgentRevoked: agent_revoked,
    RuntimeExceeded: runtime_exceeded,
    CancelRequested: cancel_requested,
}
