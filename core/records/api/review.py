"""Invoices, disputes, feedback, tasks.

Spec: Invoice, Dispute; contract.md section 6 (Invoices, Disputes, Feedback, Tasks).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from core.records.api.kinds import (
    Count,
    Credits,
    CreditsSent,
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
from core.records.api.record import Page, PageQuery, Record
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

# Judged as options of the task's node, by `core/records/manifest.py`.
_SELECTION: Final = Kind({"enum": ["best", "auction"]})
_WINDOW: Final = Kind({"type": "integer", "minimum": 0})

# -- invoices --------------------------------------------------------------------------------------


class InvoiceRequest(Body, is_closed=True):
    """What is invoiced: a period, or a workflow."""

    payer_did: Maybe[Did] = None
    period_start: Maybe[TimeMs] = None
    period_end: Maybe[TimeMs] = None
    workflow_id: Maybe[Uuid] = None


class InvoiceLine(Record):
    """One payment or refund on an invoice."""

    entry_id: int
    kind: Annotated[str, words(("payment", "refund"))]
    workflow_id: Uuid
    node_id: str
    amount_credits: Annotated[Credits, "gross, with the fee; of a refund below 0"]
    created_at: Timestamp


class Invoice(Record):
    """What a payer's settled work adds up to."""

    id: Uuid
    invoice_id: Uuid
    payer_did: Did
    period_start: Timestamp
    period_end: Timestamp
    workflow_id: Uuid | None
    subtotal_cents: int
    protocol_fee_cents: Annotated[int, "0.3 percent of the subtotal"]
    total_cents: int
    currency: str
    status: InvoiceStatus
    created_at: Timestamp
    settled_at: Timestamp | None
    settled_by: Did | None


class InvoiceChanged(Invoice):
    """An invoice that was issued or settled."""

    success: Yes


class InvoiceWithLines(Invoice):
    """An invoice with its lines."""

    line_count: Count
    lines: list[InvoiceLine]


class InvoicePage(Page[Invoice]):
    """A page of invoices, newest first."""

    plural = "invoices"
    row = Invoice


class InvoicesQuery(PageQuery):
    """Which invoices a list shows."""

    status: Maybe[InvoiceStatus] = None
    payer_did: Annotated[Maybe[str], "whose; others than one's own for administrators"] = None


# -- disputes --------------------------------------------------------------------------------------


class DisputeRequest(Body, is_closed=True):
    """A complaint about work or pay."""

    dispute_type: DisputeType
    description: Annotated[str, text(DESCRIPTION_CHARS_MIN, TEXT_CHARS_MAX)]
    evidence: Maybe[Json] = None
    respondent_did: Annotated[MaybeNull[Did], Also("agentDid")] = None
    node_id: MaybeNull[NodeName] = None
    workflow_id: Annotated[Maybe[Uuid], "not needed for fraud and other"] = None


class Dispute(Record):
    """A dispute and, once decided, its resolution."""

    id: Uuid
    dispute_id: Uuid
    workflow_id: Uuid | None
    node_id: str | None
    complainant_did: Did
    respondent_did: Did | None
    dispute_type: DisputeType
    description: str
    evidence: Json
    status: DisputeStatus
    resolution: str | None
    credits_asked: Credits | None
    credits_refunded: Credits
    credits_short: Annotated[Credits, "the part of the refund that no account could give back"]
    created_at: Timestamp
    resolved_at: Timestamp | None
    resolved_by: Did | None


class DisputeOpened(Dispute):
    """A dispute that was opened."""

    success: Yes


class DisputeResolved(DisputeOpened):
    """A dispute that was decided, with what was taken of a stake."""

    credits_slashed: Credits


class DisputePage(Page[Dispute]):
    """A page of disputes, newest first."""

    plural = "disputes"
    row = Dispute


class DisputesQuery(PageQuery):
    """Which disputes a list shows."""

    status: Maybe[DisputeStatus] = None
    workflow_id: Annotated[Maybe[Uuid], "only of this workflow"] = None


class Resolution(Body, is_closed=True):
    """How a dispute is decided."""

    status: Annotated[str, words(DECISIONS)]
    resolution: Words
    credits_refunded: CreditsSent = 0


# -- feedback --------------------------------------------------------------------------------------


class FeedbackRequest(Body):
    """A rating of an agent's work."""

    agent_did: Maybe[Did] = None
    rating: Annotated[float, "0 to 1, or 1 to 5"]
    scale: Annotated[MaybeNull[Literal[1, 5]], "1 or 5, what the rating is out of; for 1 of 5"] = (
        None
    )
    comment: Annotated[str, text(0, COMMENT_CHARS_MAX)] = ""


class Feedback(Record):
    """A payer's rating of an agent's work in a workflow, 0 to 1."""

    success: Yes
    workflow_id: Uuid
    agent_did: Did
    payer_did: Did
    rating: Ratio
    comment: str | None
    created_at: Timestamp


# -- tasks -----------------------------------------------------------------------------------------


class TaskRequest(Body, is_closed=True):
    """One task described in words; `[cap.id]` before them names its capability."""

    description: Words
    budget: MaybeNull[CreditsSent] = None
    selection: Annotated[MaybeNull[Any], _SELECTION, "in an auction up to `budget`"] = None
    auction_window_ms: Annotated[MaybeNull[Any], _WINDOW] = None
    webhook_url: Annotated[MaybeNull[str], "taken, and not called yet"] = None


class TaskPublished(Record):
    """A published task."""

    success: Yes
    id: Uuid
    task_id: Uuid
    workflow_id: Uuid
    capability_id: str
    status: str
    warnings: Annotated[Maybe[list[str]], "members of the request that have no effect"]


class Task(Record):
    """A task: the view of a workflow as one piece of work."""

    id: Uuid
    task_id: Uuid
    workflow_id: Uuid
    status: Annotated[str, words(TASK_STATUSES)]
    description: MaybeNull[str]
    result: Annotated[Any, "of the one node; of several, those of the last ones by name"]
    error: Json | None
    agent_did: MaybeNull[Did]
    metrics: MaybeNull[Json]
    spent_credits: Maybe[Credits]
    created_at: Timestamp
    started_at: Timestamp | None
    completed_at: Timestamp | None


class Payout(Body, is_closed=True):
    """What an agent shall have for a task, at most."""

    agent_did: Did
    amount: PositiveCredits


class Settlement(Body, is_closed=True):
    """How a task's payer settles it.

    Without payouts its agent gets its fixed price; for one that is paid by tokens, and has not said
    how many, payouts are required.
    """

    payouts: Annotated[MaybeNull[list[Payout]], "of the task's own agent"] = None


class Paid(Record):
    """What an agent was paid for a task, with the protocol's fee."""

    agent_did: Did
    amount: Credits


class TaskSettled(Record):
    """A settled task: what was paid for it, and what came back."""

    ok: Yes
    success: Yes
    paid: list[Paid]
    task_id: Uuid
    workflow_id: Uuid
    status: Annotated[str, Kind({"const": "settled"})]
    settled_credits: Credits
    returned_credits: Credits
