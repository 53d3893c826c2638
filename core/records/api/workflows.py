"""Workflows: records, what changes them, results of nodes, escrow and budget.

What publishes a workflow is `core/records/manifest.py`'s. Spec: Workflow record, Escrow;
contract.md sections 5 and 6.
"""

from __future__ import annotations

from typing import Annotated, Any

from core.errors import QuarantineCode
from core.records.api.kinds import (
    Count,
    Credits,
    Did,
    Flag,
    Hash,
    LongText,
    Timestamp,
    Uuid,
    Yes,
    words,
)
from core.records.api.problems import Problem
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Named
from core.records.statuses import NodeStatus, WorkflowStatus

CANCEL_REASONS = ("user_request", "budget_exceeded", "timeout", "error", "policy_violation")

# Any JSON value: the result as the agent gave it.
NODE_RESULT = Kind({"description": "the result as the agent gave it, any JSON value"})

Status = Annotated[str, words(WorkflowStatus)]
StatusOfNode = Annotated[str, words(NodeStatus)]


class ResultRef(Record):
    """Where a result is that the record has no room for: `GET …/nodes/{node}/result`."""

    sha256: Hash
    size: Count


class Quarantine(Record):
    """Since when a workflow waits for being resumed, and why."""

    since: Timestamp
    code: Annotated[str, words(QuarantineCode)]


class WaitingFor(Record):
    """Why a node waits for an agent that is away, and how long it does at most."""

    reason: LongText
    since: Timestamp
    until: Timestamp


class Node(Record):
    """A node of a workflow as it stands; of one that has not begun, its status alone."""

    status: StatusOfNode
    depends_on: Maybe[list[str]]
    result: Maybe[Any]
    result_ref: Maybe[ResultRef]
    error: Maybe[Json]
    agent_did: MaybeNull[Did]
    attempts: Maybe[Count]
    started_at: MaybeNull[Timestamp]
    completed_at: MaybeNull[Timestamp]
    metrics: Maybe[Json]
    selection: Maybe[Json]
    waiting_for: Maybe[WaitingFor]
    cost_credits: Maybe[Credits]


class _Standing(Record):
    id: Uuid
    workflow_id: Uuid
    task_id: Uuid
    status: Status
    created_at: Timestamp
    started_at: Timestamp | None
    completed_at: Timestamp | None
    trace_id: Annotated[str, Kind({"type": "string", "pattern": "^[0-9a-f]{32}$"})]


class WorkflowSummary(_Standing):
    """A workflow as lists show it, without its nodes."""

    intent: str | None
    payer_did: Did
    spent_credits: Credits
    error: Json | None
    quarantine: Quarantine | None


class Workflow(_Standing):
    """A workflow record; an agent of one of its nodes sees its own nodes and no purpose or cost."""

    nodes: dict[str, Node]
    intent: MaybeNull[str]
    payer_did: Maybe[Did]
    spent_credits: Maybe[Credits]
    error: MaybeNull[Json]
    quarantine: MaybeNull[Quarantine]
    warnings: Annotated[Maybe[list[str]], "in the reply to a publish alone"]

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in FINISHED

    @property
    def results(self) -> dict[str, Json]:
        """The result of every node that has one."""
        return {name: node.result for name, node in self.nodes.items() if node.result is not None}


FINISHED = frozenset({"success", "failed", "cancelled", "timeout"})


class WorkflowPage(Page[WorkflowSummary]):
    """A page of workflows, newest first."""

    plural = "workflows"
    row = WorkflowSummary


class WorkflowsQuery(PageQuery):
    """Which workflows a list shows."""

    status: Maybe[Status] = None
    quarantined: Annotated[
        Maybe[Flag], "only unfinished workflows that wait for being resumed, or only others"
    ] = None
    payer_did: Annotated[Maybe[str], "whose; others than one's own for administrators"] = None


Warnings = Annotated[list[str], "members of the manifest that have no effect, each with its path"]


class Published(Record):
    """What publishing answers: the ids; with a wait, the whole record once it has ended."""

    id: Uuid
    workflow_id: Uuid
    task_id: Uuid
    status: Status
    error: Annotated[MaybeNull[Json], "why the workflow has failed"]
    warnings: Maybe[Warnings]


class DryRun(Record):
    """What publishing would do; nothing was stored."""

    dry_run: Yes
    status: Status
    estimated_credits: Credits
    hold_credits: Credits
    order: Annotated[list[str], "the nodes in an order in which they can run"]
    candidates: Annotated[dict[str, list[str]], "agents that could take each node, best first"]
    unavailable: Annotated[dict[str, Json], "why no agent could take a node now"]
    waiting: Annotated[
        dict[str, Json], "of these, nodes that would wait for an agent, and for how long at most"
    ]
    warnings: Warnings
    error: Annotated[Maybe[Json], "why the workflow would fail"]


class BulkPublished(Record):
    """A reply or a problem for each workflow, in order."""

    results: list[Published | DryRun | Problem]


class Cancellation(Body):
    """Why a workflow is cancelled."""

    reason: Annotated[str, words(CANCEL_REASONS)]
    details: LongText = ""


class Cancelled(Record):
    """A cancelled workflow."""

    success: Yes
    id: Uuid
    workflow_id: Uuid
    status: Annotated[str, Kind({"const": "cancelled"})]
    reason: Annotated[str, words(CANCEL_REASONS)]
    cancelled_at: Timestamp
    cancelled_by: Did
    nodes_affected: Count
    refunded_credits: Credits


class Resumed(Record):
    """A workflow that is driven on."""

    success: Yes
    id: Uuid
    workflow_id: Uuid
    status: Status
    resumed_at: Timestamp
    resumed_by: Did


class NodeResultTaken(Record):
    """A result that was handed in and taken."""

    success: Yes
    ok: Yes
    workflow_id: Uuid
    node_id: str
    attempt: Count
    status: StatusOfNode


class NodeResult(Body):
    """A result that an agent hands in; judged further as a dispatch's reply is."""

    workflow_id: str
    node_id: str
    result_id: Annotated[str, "as the dispatch named it"]
    agent_did: MaybeNull[Any] = None
    status: MaybeNull[Any] = None
    result: MaybeNull[Any] = None
    output: MaybeNull[Any] = None
    error: MaybeNull[Any] = None
    code: MaybeNull[Any] = None
    metrics: MaybeNull[Any] = None
    event_id: MaybeNull[Any] = None
    signature: Annotated[MaybeNull[Any], "ed25519: + base64, over nodeId:workflowId:resultHash"] = (
        None
    )
    public_key: Annotated[MaybeNull[Any], "the key it is signed with"] = None


class Escrow(Record):
    """What a workflow holds in escrow."""

    workflow_id: Annotated[Uuid, Named("workflow_id")]
    payer_did: Annotated[Did, Named("payer_did")]
    amount: Credits
    status: Annotated[str, words(("held", "released"))]
    remaining: Credits
    currency: str
    fee_bps: Count
    created_at: Timestamp
    released_at: Timestamp | None


class Budget(Record):
    """A workflow's budget: what it may cost, has cost and holds."""

    workflow_id: Uuid
    payer_did: Did
    max_cents: Count
    spent_cents: Count
    remaining_cents: Count
    held_credits: Credits
