"""The state of one workflow: its nodes, its budget, and look-ups of the node that an event names.

This file has no rules. Only the functions of `core/workflow/rules` change the state.
Reference: features.md (States), money.md (Budgets and holds).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from core.errors import IllegalTransition, NodeErrorCode
from core.market.auction import Bid
from core.workflow.actions import Action, Decision
from core.workflow.dag import CompiledNode, CompiledWorkflow
from core.workflow.events import (
    AgentSelected,
    BlobRef,
    Failure,
    NodeChanged,
    NodeColumns,
    Record,
    Verdict,
)
from core.workflow.terms import NodeTerms
from core.workflow.transitions import NodeStatus, NodeTrigger, WorkflowStatus, is_terminal

STORED_NAMES: Final = NodeColumns.__struct_fields__
_STORED: Final = attrgetter(*STORED_NAMES)


# During a wait, `selection_json` is an object with two members: `waitingFor` has {reason, sinceMs},
# `choice` has the value that `selection_json` had before the wait.
WAITING_FOR: Final = "waitingFor"
CHOICE: Final = "choice"


class AwaitedSelection(StrEnum):
    """The selection that a node has requested. The answer comes within the same step."""

    NOTHING = "nothing"
    AGENT = "agent"
    VERIFIER = "verifier"


class NodeState(NodeColumns, kw_only=True):
    """The state of one node: its stored columns, and fields that are in memory only."""

    compiled: CompiledNode
    unmet: int = 0  # dependencies that have not succeeded yet
    awaiting: AwaitedSelection = AwaitedSelection.NOTHING
    price_limit_micro: int = 0  # the price limit of the open selection
    is_retrying: bool = False  # the open selection is for a retry
    seeks_replacement: bool = False  # the open selection looks for a replacement of the last agent
    declined: Failure | None = None  # the decline because of which the node looks for another agent
    agents_used: tuple[str, ...] = ()
    is_first_try: bool = False  # the open attempt is its agent's first attempt at this node
    verify_queued_ms: int | None = None  # when the open verification was opened
    verify_dispatched_ms: int | None = None
    # False after a restart, because it is not stored: then a rejection costs the agent nothing.
    is_verifier_trusted: bool = False
    is_accepted: bool = False  # the agent or verifier replied 202 and works without an open request
    wait_until_ms: int | None = None  # when the wait for an agent or a verifier ends
    is_round_open: bool = False  # the last auction round is neither awarded nor cancelled
    round_bids: tuple[Bid, ...] | None = None  # the bids of the last award; None if not known
    bid_micro: int | None = None  # the winner's bid; None if not known, as after a restart

    @property
    def is_active(self) -> bool:
        """Whether the node has an open attempt, that is, it is dispatched or running."""
        return self.status is NodeStatus.DISPATCHED or self.status is NodeStatus.RUNNING

    @property
    def is_finished(self) -> bool:
        """Whether the node has reached its end."""
        return is_terminal(self.status)

    @property
    def has_result(self) -> bool:
        """Whether the open attempt has a result, inline or by reference."""
        return self.result_json is not None or self.result_ref is not None

    @property
    def result(self) -> str | BlobRef | None:
        """The open attempt's result: its JSON text or a `BlobRef`; None without a result.

        The text is not parsed here: parsing blocks the event loop, and only mapped results need it.
        """
        return self.result_ref if self.result_json is None else self.result_json

    @property
    def has_unverified_result(self) -> bool:
        """Whether the open attempt has a result without a verdict of a verifier."""
        return self.status is NodeStatus.RUNNING and self.has_result

    def begin_attempt(
        self, selected: AgentSelected, price_micro: int, timeout_ms: int, key_version: int
    ) -> None:
        """Open the next attempt with the selected agent; clear the fields of the last attempt."""
        agent_did, at_ms = selected.agent_did, selected.at_ms
        self.awaiting = AwaitedSelection.NOTHING
        self.wait_until_ms = None
        self.is_retrying = False
        self.seeks_replacement = False
        self.declined = None
        self.is_accepted = False
        self.attempt += 1
        self.key_version = key_version
        self.agent_did = agent_did
        self.promised_ms = selected.promised_ms
        self.is_own = selected.is_own
        self.is_first_try = agent_did not in self.agents_used
        if self.is_first_try:
            self.agents_used += (agent_did,)
        self.price_micro = price_micro
        self.dispatched_ms = at_ms
        self.deadline_ms = at_ms + timeout_ms
        self.retry_at_ms = None
        self.started_ms = None
        self.error = None
        self.metrics = None
        self.input_hash = None

    def forget_result(self) -> None:
        """Clear an unverified result and the fields of its verification."""
        self.result_json = self.result_ref = None
        self.verifier_did = None
        self.verifier_price_micro = 0
        self.verify_retries_used = 0
        self.verifiers_tried = ()

    def row(self) -> NodeChanged:
        """Return the node's stored form."""
        return NodeChanged(*_STORED(self))

    def load(self, row: NodeChanged, agents_used: Iterable[str]) -> None:
        """Load a stored row.

        Args:
            agents_used: the agents of all ended attempts, in order. The row has only the agents
                that failed finally and the last agent.
        """
        for name in STORED_NAMES:
            setattr(self, name, getattr(row, name))
        self.status = NodeStatus(row.status)
        self.agents_tried = tuple(row.agents_tried)
        self.verifiers_tried = tuple(row.verifiers_tried)
        last = () if self.agent_did is None else (self.agent_did,)
        self.agents_used = tuple(dict.fromkeys((*agents_used, *last)))
        self.is_round_open = self.auction_closes_ms is not None
        if is_wait_record(self.selection_json):
            self.wait_until_ms = self.retry_at_ms
        # A stored `running` node without a result was accepted by its agent.
        self.is_accepted = self.status is NodeStatus.RUNNING and not self.has_result


class Budget:
    """The workflow's hold, divided into payments, reservations of unfinished nodes, and free money.

    The price limit of a node is the hold minus the payments and the reservations of other nodes.
    No node is dispatched at a higher price, so the payments never exceed the hold.
    Reference: money.md (Budgets and holds, Settlement).
    """

    __slots__ = ("_by_node", "_reserved_micro", "hold_micro", "spent_micro")

    def __init__(self, hold_micro: int, reserved: Mapping[str, int]) -> None:
        self.hold_micro = hold_micro
        self.spent_micro = 0
        self._by_node = dict(reserved)
        self._reserved_micro = sum(self._by_node.values())

    def reserved_micro(self, node: str) -> int:
        """Return this node's reservation, micro-credits."""
        return self._by_node.get(node, 0)

    def available_micro(self, node: str) -> int:
        """Return the node's limit: the hold minus payments and the other nodes' reservations."""
        others_micro = self._reserved_micro - self._by_node.get(node, 0)
        return max(0, self.hold_micro - self.spent_micro - others_micro)

    def reserve(self, node: str, micro: int) -> None:
        """Replace the node's reservation. A node that has ended reserves 0."""
        self._reserved_micro += micro - self._by_node.get(node, 0)
        self._by_node[node] = micro

    def fit(self, pinned: Mapping[str, int]) -> None:
        """Reduce the reservations of nodes that are not pinned until all reservations fit the hold.

        Prices may have risen since the estimate, so the reservations may exceed the hold.
        """
        free_micro = self.hold_micro - self.spent_micro - sum(pinned.values())
        for node, micro in self._by_node.items():
            if node not in pinned:
                fitting_micro = min(micro, max(0, free_micro))
                self.reserve(node, fitting_micro)
                free_micro -= fitting_micro

    def pay(self, node: str, micro: int) -> None:
        """Move a part of the node's reservation to the payments."""
        assert 0 <= micro <= self._by_node.get(node, 0), (node, micro, self._by_node.get(node))
        self.reserve(node, self._by_node[node] - micro)
        self.spent_micro += micro
        assert self.spent_micro <= self.hold_micro, (self.spent_micro, self.hold_micro)


def is_wait_record(selection_json: str | None) -> bool:
    """Say whether a stored selection is that of a waiting node (`rules/waiting.py`)."""
    return selection_json is not None and selection_json.startswith(f'{{"{WAITING_FOR}":')


def error_of(failure: Failure) -> dict[str, Any]:
    """Return the `error` member of a node with this failure. Reference: http.md (Node errors)."""
    error: dict[str, Any] = {"code": str(failure.code), "message": failure.message}
    # A lost attempt without a further attempt ends the node, but is no fault of the agent.
    if failure.is_spared or failure.verdict is Verdict.LOST:
        error["isSpared"] = True
    if failure.code is NodeErrorCode.AGENT_UNAVAILABLE:
        error["error"] = str(failure.code)
        error["targetAgentId"] = failure.target_agent_id
        error["details"] = failure.details
    return error


@dataclass(slots=True, eq=False)
class WorkflowState:
    """The state of one workflow.

    The keys of `nodes`, `results` and `terms` are node names. A result is its JSON text or a
    reference. `key_version`: the version of the deployment's key that derives the tokens of new
    attempts. `unfinished_count`: the number of nodes that have not ended. `active_count`: the
    number of nodes that are dispatched or running. `first_failure`: the error of the first failed
    node, with the node's name as `node`. `started_ms`: when the workflow changed to running; None
    before this change, and after a restart. `succeeded_ms`: when the workflow succeeded.
    `at_ms`: the time of the event that the current step handles. `decision`: the decision of this
    step so far.
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
    at_ms: int = 0
    decision: Decision = field(default_factory=Decision)

    def begin_step(self, at_ms: int) -> Decision:
        """Begin a step at a time; return its decision, which the rules fill."""
        self.at_ms, self.decision = at_ms, Decision()
        return self.decision

    def record(self, record: Record) -> None:
        """Add a record to the decision of the current step."""
        self.decision.records.append(record)

    def perform(self, action: Action) -> None:
        """Add an action to the decision of the current step."""
        self.decision.actions.append(action)


def find_node(workflow: WorkflowState, name: str) -> NodeState:
    """Return the node that an event names. Raises `IllegalTransition` for an unknown name."""
    state = workflow.nodes.get(name)
    if state is None:
        raise IllegalTransition("workflow", workflow.status, f"an event of unknown node {name!r}")
    return state


def find_awaiting_node(
    workflow: WorkflowState, name: str, asked: AwaitedSelection, trigger: NodeTrigger
) -> NodeState | None:
    """Return the node that has requested this selection; None if the node has ended since.

    Raises `IllegalTransition` with `trigger` when an unfinished node has not requested it.
    """
    state = find_node(workflow, name)
    if state.awaiting is asked:
        return state
    if state.is_finished:
        return None
    raise IllegalTransition("node", state.status, trigger)


def open_attempt(workflow: WorkflowState, name: str, attempt: int) -> NodeState | None:
    """Return the node if this attempt is open and has no result; None for any other attempt."""
    state = find_node(workflow, name)
    if not state.is_active or state.attempt != attempt or state.has_result:
        return None
    return state


def is_open(state: NodeState, attempt: int, verify_attempt: int | None) -> bool:
    """Say whether this attempt, or this verification of the attempt, is open.

    Args:
        verify_attempt: the number of the verification; 0 for the attempt itself; None for any
            verification of the attempt.
    """
    if not state.is_active or state.attempt != attempt:
        return False
    if verify_attempt == 0:
        return not state.has_result
    return state.verifier_did is not None and verify_attempt in (None, state.verify_attempt)


def timeout_ms(workflow: WorkflowState, state: NodeState, at_ms: int) -> int:
    """Return the node's timeout or the workflow's remaining runtime, whichever is shorter."""
    return max(1, min(state.compiled.timeout_ms, workflow.deadline_ms - at_ms))
