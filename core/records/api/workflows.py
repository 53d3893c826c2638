"""Workflows: published, read, traced and drafted.

Reference: features.md (Workflows, Planning, Traces).
"""

from __future__ import annotations

from typing import Annotated, Any

from core.errors import QuarantineCode
from core.records.api.kinds import (
    CapabilityId,
    Count,
    Credits,
    Did,
    Flag,
    Hash,
    LongText,
    Ratio,
    TimeMs,
    Timestamp,
    TraceId,
    Uuid,
    Yes,
    matching,
    text,
    words,
)
from core.records.api.record import Done, Page, PageQuery, Problem, Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Named
from core.records.bounds import REPEAT_KEY_CHARS_MAX, TEXT_CHARS_MAX
from core.records.statuses import NodeStatus, WorkflowStatus

CANCEL_REASONS = ("user_request", "budget_exceeded", "timeout", "error", "policy_violation")

# Any JSON value: the result that the agent sent.
NODE_RESULT = Kind({"description": "the result as the agent gave it, any JSON value"})

Status = Annotated[str, words(WorkflowStatus)]
StatusOfNode = Annotated[str, words(NodeStatus)]


class ResultRef(Record):
    """A result that is too large for the record; read it with `GET …/nodes/{node}/result`."""

    sha256: Annotated[Hash, "Hash of the result in canonical form."]
    size: Annotated[Count, "Size of the result in bytes."]


class Quarantine(Record):
    """Since when and why a workflow is quarantined: it is not driven until it is resumed."""

    since: Annotated[Timestamp, "Time at which the quarantine began."]
    code: Annotated[str, words(QuarantineCode), "Reason of the quarantine."]


class WaitingFor(Record):
    """Why a ready node waits for an agent, and for how long."""

    reason: Annotated[LongText, "Why no agent is available now."]
    since: Annotated[Timestamp, "Time at which the wait began."]
    until: Annotated[Timestamp, "Time at which the node fails if no agent is available by then."]


class Node(Record):
    """Current state of a node. A node that was not dispatched has few members."""

    status: Annotated[StatusOfNode, "State of the node."]
    depends_on: Annotated[Maybe[list[str]], "Names of the nodes that must succeed first."]
    result: Maybe[Any]
    result_ref: Annotated[
        Maybe[ResultRef], "Reference to a result that is too large for the record."
    ]
    error: Annotated[
        Maybe[Json], "Why the node failed: `code` is a NodeErrorCode, `message` is for people."
    ]
    agent_did: Annotated[
        MaybeNull[Did], "DID of the agent of the last attempt; null before the first."
    ]
    attempts: Annotated[Maybe[Count], "Number of dispatches so far."]
    started_at: MaybeNull[Timestamp]
    completed_at: MaybeNull[Timestamp]
    metrics: Maybe[Json]
    selection: Annotated[
        Maybe[Json], "How the agent was selected, with the reasons of the ranking."
    ]
    waiting_for: Annotated[Maybe[WaitingFor], "Present while the node waits for an agent."]
    cost_credits: Annotated[Maybe[Credits], "What the node cost, protocol fee included."]


class _Standing(Record):
    id: Annotated[Uuid, "Id of the workflow."]
    workflow_id: Uuid
    task_id: Uuid
    status: Annotated[Status, "State of the workflow."]
    created_at: Timestamp
    started_at: Annotated[Timestamp | None, "Time of the first dispatch; null before it."]
    completed_at: Annotated[Timestamp | None, "Time at which the workflow ended; null before that."]
    trace_id: TraceId
    template_id: Annotated[Maybe[Uuid], "Id of the trigger, where the workflow is a run of one."]
    template_version: Annotated[Maybe[Count], "Version of the trigger that was used."]


class WorkflowSummary(_Standing):
    """A workflow as lists show it, without its nodes."""

    intent: str | None
    payer_did: Did
    spent_credits: Credits
    error: Annotated[Json | None, "Why the workflow failed; null otherwise."]
    quarantine: Annotated[Quarantine | None, "Null unless the workflow is quarantined."]


class Workflow(_Standing):
    """A workflow record. An agent of one of its nodes sees its own nodes only, and neither
    intent nor cost.
    """

    nodes: Annotated[dict[str, Node], "The nodes, by name."]
    intent: MaybeNull[str]
    payer_did: Maybe[Did]
    spent_credits: Maybe[Credits]
    error: Annotated[MaybeNull[Json], "Why the workflow failed; null otherwise."]
    quarantine: Annotated[MaybeNull[Quarantine], "Null unless the workflow is quarantined."]
    warnings: Annotated[
        Maybe[list[str]],
        "Members of the manifest that have no effect. Only in the reply to a publish.",
    ]
    webhook_secret: Annotated[
        Maybe[str],
        "Key of the signatures of what `webhookUrl` is sent. Only in the reply to a publish.",
    ]

    @property
    def is_finished(self) -> bool:
        """Whether the workflow has ended, with success or not."""
        return self.status in FINISHED

    @property
    def results(self) -> dict[str, Json]:
        """The result of every node that has one."""
        return {name: node.result for name, node in self.nodes.items() if node.result is not None}


FINISHED = frozenset({"success", "failed", "cancelled", "timeout"})


class WorkflowPage(Page[WorkflowSummary], plural="workflows"):
    """A page of workflows, newest first."""


class WorkflowsQuery(PageQuery):
    """Filters of the list of workflows."""

    status: Annotated[Maybe[Status], "Only workflows in this state."] = None
    quarantined: Annotated[
        Maybe[Flag], "true: only quarantined unfinished workflows; false: only the others."
    ] = None
    payer_did: Annotated[
        Maybe[str], "Payer of the workflows; only administrators may name another than themselves."
    ] = None
    idempotency_key: Annotated[
        Maybe[str],
        text(1, REPEAT_KEY_CHARS_MAX),
        "Only the workflow that the caller has published with this `Idempotency-Key`.",
    ] = None
    start_time: Annotated[Maybe[TimeMs], "Only workflows created at this time or later."] = None
    end_time: Annotated[Maybe[TimeMs], "Only workflows created before this time."] = None


Warnings = Annotated[list[str], "members of the manifest that have no effect, each with its path"]


class Published(Record):
    """Ids of a published workflow. With `Prefer: wait` the reply is the workflow record."""

    id: Annotated[Uuid, "Id of the workflow."]
    workflow_id: Uuid
    task_id: Uuid
    status: Annotated[Status, "`pending`, or `failed` when the estimate exceeds the budget."]
    error: Annotated[MaybeNull[Json], "Why the workflow failed at once; null or absent otherwise."]
    warnings: Maybe[Warnings]
    webhook_secret: Maybe[str]


class DryRun(Record):
    """What a publish would do. Nothing was stored."""

    dry_run: Annotated[Yes, "Always true."]
    status: Annotated[Status, "State that the workflow would have after the publish."]
    estimated_credits: Annotated[Credits, "Estimated cost of all nodes."]
    hold_credits: Annotated[Credits, "Amount that would be held in escrow."]
    order: Annotated[list[str], "The nodes in an order in which they can run."]
    candidates: Annotated[
        dict[str, list[str]], "For each node the DIDs of its candidates, best first."
    ]
    unavailable: Annotated[
        dict[str, Json], "For each node without a candidate the error that it would have now."
    ]
    waiting: Annotated[
        dict[str, Json],
        "Nodes of `unavailable` that would wait for an agent, with the maximum wait.",
    ]
    warnings: Warnings
    error: Annotated[Maybe[Json], "Why the workflow would fail."]


class BulkPublished(Record):
    """The results of a bulk publish, in the order of the request."""

    results: Annotated[
        list[Published | DryRun | Problem],
        "For each manifest the reply of a publish, or a problem.",
    ]


class Cancellation(Body):
    """Why a workflow is cancelled."""

    reason: Annotated[
        str, words(CANCEL_REASONS), "Reason of the cancellation, from the closed list."
    ]
    details: Annotated[LongText, "Explanation in words."] = ""


class Cancelled(Done):
    """A cancelled workflow."""

    id: Annotated[Uuid, "Id of the workflow."]
    workflow_id: Uuid
    status: Annotated[str, Kind({"const": "cancelled"}), "State of the workflow."]
    reason: Annotated[str, words(CANCEL_REASONS), "Reason of the cancellation."]
    cancelled_at: Annotated[Timestamp, "Time of the cancellation."]
    cancelled_by: Annotated[Did, "DID of the caller who cancelled it."]
    nodes_affected: Annotated[Count, "Number of unfinished nodes that were ended."]
    refunded_credits: Annotated[Credits, "Amount that returned to the payer."]


class Resumed(Done):
    """A workflow whose quarantine was lifted."""

    id: Annotated[Uuid, "Id of the workflow."]
    workflow_id: Uuid
    status: Annotated[Status, "State of the workflow."]
    resumed_at: Annotated[Timestamp, "Time at which it was resumed."]
    resumed_by: Annotated[Did, "DID of the caller who resumed it."]


class NodeResultTaken(Done):
    """A result that was accepted."""

    ok: Yes
    workflow_id: Uuid
    node_id: str
    attempt: Annotated[Count, "Number of the attempt that the result belongs to."]
    status: Annotated[StatusOfNode, "State of the node after the result."]


class NodeResult(Body):
    """Result of a dispatch that the agent accepted earlier. It is judged like a direct reply."""

    workflow_id: str
    node_id: Annotated[str, "Name of the node, as the dispatch gave it."]
    result_id: Annotated[str, "The `resultId` of the dispatch. It is the credential of this call."]
    agent_did: Annotated[MaybeNull[Any], "DID of the agent; the dispatch's agent when absent."] = (
        None
    )
    status: Annotated[
        MaybeNull[Any], "`success` or `error`, or another word that means one of them."
    ] = None
    result: MaybeNull[Any] = None
    output: Annotated[MaybeNull[Any], "Accepted instead of `result`."] = None
    error: Annotated[MaybeNull[Any], "Error message of the agent."] = None
    code: Annotated[MaybeNull[Any], "Error code of the agent."] = None
    metrics: Annotated[
        MaybeNull[Any],
        "Metrics of the attempt, such as `latency_ms`, `input_tokens` and `output_tokens`.",
    ] = None
    event_id: Annotated[
        MaybeNull[Any], "The `eventId` of the dispatch; must match when present."
    ] = None
    signature: Annotated[
        MaybeNull[Any], "`ed25519:` and base64, over `nodeId:workflowId:resultHash`."
    ] = None
    public_key: Annotated[MaybeNull[Any], "Public key of the signature, base64."] = None


class Escrow(Record):
    """Escrow of a workflow."""

    workflow_id: Annotated[Uuid, Named("workflow_id"), "Id of the workflow."]
    payer_did: Annotated[Did, Named("payer_did"), "DID of the payer."]
    amount: Annotated[Credits, "Amount held at publish."]
    status: Annotated[str, words(("held", "released")), "`held` until the workflow ends."]
    remaining: Annotated[Credits, "Amount still held."]
    currency: str
    fee_bps: Annotated[Count, "Protocol fee of this workflow's payments, in basis points."]
    created_at: Timestamp
    released_at: Annotated[Timestamp | None, "Time of the release; null while held."]


class Budget(Record):
    """Budget of a workflow, and what it spent and holds."""

    workflow_id: Uuid
    payer_did: Did
    max_cents: Annotated[Count, "Most that the workflow may cost, in cents."]
    spent_cents: Annotated[Count, "Cents paid so far, rounded up."]
    remaining_cents: Annotated[Count, "Cents of the budget that are left."]
    held_credits: Annotated[Credits, "Amount still held in escrow."]


class SuggestRequest(Body, is_closed=True):
    """Description of the work, in words."""

    description: Annotated[
        str, text(1, TEXT_CHARS_MAX), "What the workflow should do, 1 to 10,000 characters."
    ]


class Draft(Record):
    """A draft that publish accepts unchanged."""

    intent: str
    nodes: Annotated[Json, "Node definitions, by name."]


class DraftChoice(Record):
    """Why a capability was chosen for a node."""

    node: Annotated[str, "Name of the node."]
    capability_id: CapabilityId
    phrase: Annotated[str, "Part of the description that the node covers."]
    confidence: Annotated[Ratio, "How well the capability matches, 0 to 1."]
    price_credits: Annotated[Credits | None, "Price of one agent; null for prices per token."]
    alternative: Annotated[str | None, "The second-best capability; null without one."]


class Suggestion(Record):
    """A draft and the reasons for it. Nothing is stored."""

    draft: Annotated[Draft, "The drafted workflow."]
    choices: Annotated[list[DraftChoice], "One choice per node."]
    unmatched: Annotated[list[str], "Phrases that no agent's capability matches."]
    open_inputs: Annotated[Json, "For each node the inputs that the caller must add as `payload`."]
    unavailable: Annotated[list[str], "Nodes that no agent would take now."]
    estimated_credits: Annotated[Credits, "Estimated cost of the draft."]
    estimated_ms: Annotated[
        float | None,
        "Estimated duration of the longest chain in milliseconds; null when agents have no"
        " history.",
    ]
    planner: Annotated[
        str, words(("words", "model")), "Whether words or a language model made the draft."
    ]
    notes: Annotated[
        list[str],
        "What was removed or replaced to make the draft publishable, and why no model was used.",
    ]


TRACE_STATUSES = ("running", "completed", "failed", "cancelled", "timeout")
SPAN_OPERATIONS = ("workflow", "node", "attempt", "verification", "queue", "dispatch", "settlement")
SPAN_STATUSES = ("ok", "error", "unset")
_SpanId = Annotated[str, matching("[0-9a-f]{16}", "16 lowercase hexadecimal digits")]


class Trace(Record):
    """A workflow as a trace."""

    id: Annotated[TraceId, "W3C trace id."]
    workflow_id: Annotated[Uuid, "Workflow whose spans these are."]
    workflow_ids: Annotated[
        list[str], "The caller's workflows that share the trace id, newest first, at most 100."
    ]
    started_at: Annotated[Timestamp, "Time of the publish."]
    ended_at: Annotated[Timestamp | None, "Time at which the workflow ended; null before that."]
    status: Annotated[str, words(TRACE_STATUSES), "`completed` when the workflow succeeded."]


class Span(Record):
    """A part of a workflow's run."""

    span_id: Annotated[_SpanId, "Id of the span; agents get that of their attempt."]
    parent_span_id: Annotated[
        _SpanId | None, "Span that it belongs to; of the workflow the caller's span, or null."
    ]
    agent_did: Annotated[Did | None, "Agent or verifier; null when it has none."]
    operation_name: Annotated[str, words(SPAN_OPERATIONS), "What the span is."]
    start_time: Annotated[Timestamp, "Time at which it began."]
    end_time: Annotated[Timestamp | None, "Time at which it ended; null while it is open."]
    status: Annotated[str, words(SPAN_STATUSES), "`unset` if it is open, cancelled or skipped."]
    node_id: Annotated[Maybe[str], "Name of the node; absent for the workflow."]
    attempt: Annotated[Maybe[Count], "Number of the attempt, or of the verification."]
    outcome: Annotated[Maybe[str], "How an attempt or a verification ended."]


class TracePage(Page[Span], plural="spans"):
    """A workflow's trace with its spans. A page has all spans of its nodes."""

    trace: Annotated[Trace, "The trace."]


class TraceQuery(PageQuery):
    """Selects the workflow of a trace, and a page of its nodes."""

    workflow_id: Annotated[
        Maybe[Uuid], "Workflow to show when several share the trace id; default: the newest."
    ] = None
