"""Invoices, disputes, feedback, tasks.

Reference: money.md (Invoices, Disputes and refunds).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from core.records.api.kinds import (
    Count,
    Credits,
    CreditsIn,
    Did,
    NodeName,
    PositiveCredits,
    Ratio,
    TimeMs,
    Timestamp,
    Uuid,
    Yes,
    text,
    words,
)
from core.records.api.record import Done, Page, PageQuery, Record
from core.records.api.shape import Also, Body, Json, Kind, Maybe, MaybeNull
from core.records.bounds import TEXT_CHARS_MAX

INVOICE_STATUSES: Final = ("pending", "paid", "void")
DISPUTE_TYPES: Final = ("quality", "timeout", "incorrect_output", "overcharge", "fraud", "other")
DECISIONS: Final = (
    "resolved_complainant",
    "resolved_respondent",
    "resolved_split",
    "dismissed",
)
DESCRIPTION_CHARS_MIN: Final = 10
COMMENT_CHARS_MAX: Final = 2_000
TASK_STATUSES: Final = ("pending", "running", "completed", "failed", "cancelled", "timeout")

InvoiceStatus = Annotated[str, words(INVOICE_STATUSES)]
DisputeType = Annotated[str, words(DISPUTE_TYPES)]
DisputeStatus = Annotated[str, words(("open", *DECISIONS))]
Words = Annotated[str, text(1, TEXT_CHARS_MAX)]

# These members become options of the task's node, which `core/records/manifest.py` checks.
_SELECTION: Final = Kind({"enum": ["best", "auction"]})
_WINDOW: Final = Kind({"type": "integer", "minimum": 0})

# -- invoices --------------------------------------------------------------------------------------


class InvoiceRequest(Body, is_closed=True):
    """What is invoiced: a period or a workflow."""

    payer_did: Annotated[Maybe[Did], "DID of the payer. Default: the caller."] = None
    period_start: Annotated[Maybe[TimeMs], "Start of the period, included."] = None
    period_end: Annotated[Maybe[TimeMs], "End of the period, excluded; not in the future."] = None
    workflow_id: Annotated[Maybe[Uuid], "Id of one finished workflow, instead of a period."] = None


class InvoiceLine(Record):
    """One payment or refund on an invoice."""

    entry_id: Annotated[int, "Number of the ledger entry."]
    kind: Annotated[str, words(("payment", "refund")), "Kind of line."]
    workflow_id: Uuid
    node_id: str
    amount_credits: Annotated[
        Credits, "Gross amount, protocol fee included; negative for a refund."
    ]
    created_at: Timestamp


class Invoice(Record):
    """Invoice over the settled work of a payer."""

    id: Annotated[Uuid, "Id of the invoice."]
    invoice_id: Annotated[Uuid, "Id of the invoice."]
    payer_did: Did
    period_start: Annotated[Timestamp, "Start of the period, included."]
    period_end: Annotated[Timestamp, "End of the period, excluded."]
    workflow_id: Annotated[Uuid | None, "Id of the workflow; null for an invoice over a period."]
    subtotal_cents: Annotated[int, "Payments less refunds, in cents."]
    protocol_fee_cents: Annotated[int, "Fee of 0.3 percent of the subtotal, in cents."]
    total_cents: Annotated[int, "Subtotal and fee, in cents."]
    currency: str
    status: Annotated[InvoiceStatus, "State of the invoice."]
    created_at: Timestamp
    settled_at: Annotated[
        Timestamp | None, "Time at which it was paid or voided; null while pending."
    ]
    settled_by: Annotated[Did | None, "DID of the administrator who did that; null while pending."]


class InvoiceChanged(Invoice, Done):
    """An invoice that was issued, paid or voided."""


class InvoiceWithLines(Invoice):
    """An invoice with its lines."""

    line_count: Annotated[Count, "Number of lines."]
    lines: Annotated[list[InvoiceLine], "Payments and refunds."]


class InvoicePage(Page[Invoice], plural="invoices"):
    """A page of invoices, newest first."""


class InvoicesQuery(PageQuery):
    """Filters of the list of invoices."""

    status: Annotated[Maybe[InvoiceStatus], "Only invoices in this state."] = None
    payer_did: Annotated[
        Maybe[str], "Payer of the invoices; only administrators may name another than themselves."
    ] = None


# -- disputes --------------------------------------------------------------------------------------


class DisputeRequest(Body, is_closed=True):
    """A complaint about work or payment."""

    dispute_type: DisputeType
    description: Annotated[
        str,
        text(DESCRIPTION_CHARS_MIN, TEXT_CHARS_MAX),
        "Complaint in words, 10 to 10,000 characters.",
    ]
    evidence: Maybe[Json] = None
    respondent_did: Annotated[
        MaybeNull[Did],
        Also("agentDid"),
        "DID of the accused agent. Default: the only agent of the disputed nodes.",
    ] = None
    node_id: Annotated[MaybeNull[NodeName], "Name of the disputed node. Default: all nodes."] = None
    workflow_id: Annotated[Maybe[Uuid], "Id of the workflow; optional for `fraud` and `other`."] = (
        None
    )


class Dispute(Record):
    """A dispute and, after the decision, its resolution."""

    id: Annotated[Uuid, "Id of the dispute."]
    dispute_id: Annotated[Uuid, "Id of the dispute."]
    workflow_id: Annotated[Uuid | None, "Id of the disputed workflow; null without one."]
    node_id: Annotated[str | None, "Name of the disputed node; null without one."]
    complainant_did: Annotated[Did, "DID of the complainant."]
    respondent_did: Annotated[Did | None, "DID of the accused; null when not named."]
    dispute_type: DisputeType
    description: Annotated[str, "Complaint in words."]
    evidence: Json
    status: Annotated[DisputeStatus, "State of the dispute."]
    resolution: str | None
    credits_asked: Annotated[Credits | None, "Refund that the decision named; null while open."]
    credits_refunded: Annotated[Credits, "Refund that was made."]
    credits_short: Annotated[Credits, "Part of the refund that no account could cover."]
    created_at: Timestamp
    resolved_at: Annotated[Timestamp | None, "Time of the decision; null while open."]
    resolved_by: Annotated[Did | None, "DID of the operator who decided; null while open."]


class DisputeOpened(Dispute, Done):
    """A dispute that was opened."""


class DisputeResolved(DisputeOpened):
    """A decided dispute."""

    credits_slashed: Annotated[Credits, "Amount slashed from the agent's stake."]


class DisputePage(Page[Dispute], plural="disputes"):
    """A page of disputes, newest first."""


class DisputesQuery(PageQuery):
    """Filters of the list of disputes."""

    status: Annotated[Maybe[DisputeStatus], "Only disputes in this state."] = None
    workflow_id: Annotated[Maybe[Uuid], "Only disputes about this workflow."] = None


class Resolution(Body, is_closed=True):
    """Decision of a dispute."""

    status: Annotated[str, words(DECISIONS), "Outcome."]
    resolution: Annotated[Words, "The decision in words."]
    credits_refunded: Annotated[CreditsIn, "Refund to the payer, at most what was paid."] = 0


# -- feedback --------------------------------------------------------------------------------------


class FeedbackRequest(Body):
    """A rating of an agent's work."""

    agent_did: Annotated[Maybe[Did], "DID of the agent. Default for a task: its agent."] = None
    rating: Annotated[float, "0 to 1, or 1 to 5."]
    scale: Annotated[
        MaybeNull[Literal[1, 5]],
        "5: the rating is 1 to 5; 1: it is 0 to 1. Default: 5 for ratings above 1.",
    ] = None
    comment: Annotated[str, text(0, COMMENT_CHARS_MAX), "Comment in words."] = ""


class Feedback(Done):
    """A payer's rating of an agent's work."""

    workflow_id: Uuid
    agent_did: Did
    payer_did: Did
    rating: Annotated[Ratio, "Rating, 0 to 1."]
    comment: str | None
    created_at: Timestamp


# -- tasks -----------------------------------------------------------------------------------------


class TaskRequest(Body, is_closed=True):
    """A task in words."""

    description: Annotated[Words, "The work in words; a leading `[cap.id]` names the capability."]
    budget: Annotated[
        MaybeNull[CreditsIn], "Most that the task may cost. Default: the estimate."
    ] = None
    selection: Annotated[
        MaybeNull[Any],
        _SELECTION,
        "How the agent is selected. Default `best`; an auction needs `budget`.",
    ] = None
    auction_window_ms: Annotated[
        MaybeNull[Any], _WINDOW, "Milliseconds for which bids are accepted."
    ] = None
    webhook_url: Annotated[MaybeNull[str], "URL that gets a message when the task ends."] = None


class TaskPublished(Done):
    """A published task."""

    id: Annotated[Uuid, "Id of the task."]
    task_id: Uuid
    workflow_id: Uuid
    capability_id: str
    status: Annotated[str, "State of the task."]
    warnings: Annotated[Maybe[list[str]], "Members of the request that have no effect."]
    webhook_secret: Maybe[str]


class Task(Record):
    """A workflow seen as one piece of work."""

    id: Annotated[Uuid, "Id of the task."]
    task_id: Uuid
    workflow_id: Uuid
    status: Annotated[str, words(TASK_STATUSES), "State of the task."]
    description: Annotated[MaybeNull[str], "The work in words; null without a description."]
    result: Annotated[Any, "Result of the node; of several last nodes an object by name."]
    error: Annotated[Json | None, "Why the task failed; null otherwise."]
    agent_did: Annotated[MaybeNull[Did], "DID of the agent; null before the selection."]
    metrics: Annotated[MaybeNull[Json], "Metrics of the agent; null without any."]
    spent_credits: Maybe[Credits]
    created_at: Timestamp
    started_at: Timestamp | None
    completed_at: Timestamp | None


class Payout(Body, is_closed=True):
    """What the agent of a task is paid."""

    agent_did: Did
    amount: Annotated[PositiveCredits, "Amount to pay, protocol fee included."]


class Settlement(Body, is_closed=True):
    """How a payer settles a task.

    Without payouts, the agent of the task gets its fixed price. If the agent is paid by tokens and
    has not reported its tokens, payouts are required.
    """

    payouts: Annotated[
        MaybeNull[list[Payout]], "Payment of the task's own agent. Default: its fixed price."
    ] = None


class Paid(Record):
    """What an agent was paid for a task."""

    agent_did: Did
    amount: Annotated[Credits, "Amount paid, protocol fee included."]


class TaskSettled(Done):
    """A settled task."""

    ok: Yes
    paid: Annotated[list[Paid], "Payments to agents."]
    task_id: Uuid
    workflow_id: Uuid
    status: Annotated[str, Kind({"const": "settled"}), "State of the task."]
    settled_credits: Annotated[Credits, "Sum of the payments."]
    returned_credits: Annotated[Credits, "Amount that returned to the payer."]
