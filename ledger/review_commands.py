"""Commands about work done: invoices over it, disputes, what it costs by decree, opinions on it.

Plain values, as in ledger/commands.py. Spec: Settlement rules 5 and 10; contract.md section 6
(Invoices, Disputes, Feedback); money.md cases 15 and 33a to 36.
"""

from __future__ import annotations

from typing import Literal

from core.message import Message


class CreateInvoice(Message, frozen=True, kw_only=True):
    """Put what a payer paid in a period, or for one workflow, on an invoice.

    The content was added up outside the writer (`ledger/invoices/invoice_content.py`), as of the
    entry and the audit record that it names: payments (gross) and refunds, each (entry id, micro-
    credits), which are on no other invoice, void ones apart. Of a workflow, the period is its life.
    The invoice of the same period or workflow is the answer when there is one.
    Rejections: INVALID_REQUEST (a period that has not passed), CONFLICT (it overlaps another);
    OVERLOADED, not stored, when the content is not what it would be now: to be read again.
    Result: {"invoiceId", "isNew": bool}.
    """

    key: str
    actor_did: str
    invoice_id: str
    payer_did: str
    period_start_ms: int
    period_end_ms: int
    workflow_id: str | None
    payments: tuple[tuple[int, int], ...] = ()
    refunds: tuple[tuple[int, int], ...] = ()
    read_entry_id: int = 0
    read_audit_id: int = 0


class SettleInvoice(Message, frozen=True, kw_only=True):
    """Mark a pending invoice paid, or void it: then its payments can be invoiced again.

    Its key is the invoice's, so that it happens once: a repeat is an invoice settled before, with
    the same `request_hash` in the same way. No rejections. Result: {"invoiceId", "status"}.
    """

    key: str
    request_hash: bytes
    actor_did: str
    invoice_id: str
    status: Literal["paid", "void"]


class OpenDispute(Message, frozen=True, kw_only=True):
    """Store a complaint; it moves and freezes nothing (money.md case 40).

    `respondent_did` None: it is about a whole workflow of several agents, or names nobody.
    `evidence_json`: a JSON object. Result: {"disputeId"}.
    """

    key: str
    actor_did: str
    dispute_id: str
    workflow_id: str | None
    complainant_did: str
    respondent_did: str | None
    node_id: str | None
    dispute_type: str
    description: str
    evidence_json: str


class ResolveDispute(Message, frozen=True, kw_only=True):
    """Decide a dispute; a refund goes to the workflow's payer by reversing entries.

    `slash_bps`: of what is locked for the disputed nodes, taken when fraud is upheld. Rejections:
    NOT_FOUND, CONFLICT (resolved before), INVALID_REQUEST (a refund that the status does not go
    with, or above what is left of the payments). Result: {"disputeId", "refundedMicro",
    "shortMicro", "slashedMicro"}.
    """

    key: str
    actor_did: str
    dispute_id: str
    status: str
    resolution: str
    refund_micro: int
    slash_bps: int


class SlashStake(Message, frozen=True, kw_only=True):
    """Take what an agent has locked for a node, by an administrator's word.

    `slash_bps`: of that lock, which ends; the rest is free. Rejections: NOT_FOUND (no such node was
    dispatched), CONFLICT (it is another agent's), KEY_REUSED. Result: {"payerDid", "slashedMicro",
    "freeMicro", "lockedMicro"}.
    """

    key: str
    request_hash: bytes
    actor_did: str
    agent_did: str
    workflow_id: str
    node: str
    reason: str
    slash_bps: int


class GiveFeedback(Message, frozen=True, kw_only=True):
    """Store a payer's opinion of an agent in one workflow, 0 to 1,000 thousandths.

    Its key is made of workflow and agent, so that it is given once. Result: {"agentDid"}.
    """

    key: str
    request_hash: bytes
    actor_did: str
    workflow_id: str
    agent_did: str
    payer_did: str
    rating_milli: int
    comment: str


class RebuildReputation(Message, frozen=True, kw_only=True):
    """Correct the counts of agents' outcomes by what history has more or less of each.

    `changes`: (agent DID, successful, failed, cancelled, latency ms), each found minus stored, read
    outside the writer as of an audit record. Rejections: OVERLOADED, not stored, when counts were
    corrected since. Result: {"changed"}.
    """

    key: str
    actor_did: str
    changes: tuple[tuple[str, int, int, int, int], ...]
    read_audit_id: int


ReviewCommand = (
    CreateInvoice
    | SettleInvoice
    | OpenDispute
    | ResolveDispute
    | SlashStake
    | GiveFeedback
    | RebuildReputation
)
# Those that look at stored rows which other commands may change; each is a transaction of its own.
GroundedCommand = CreateInvoice | ResolveDispute | SlashStake


def invoice_settled_key(invoice_id: str) -> str:
    """Return the key under which an invoice is settled, once."""
    return f"invoice-settled:{invoice_id}"


def feedback_key(workflow_id: str, agent_did: str) -> str:
    """Return the key under which an agent gets feedback for a workflow, once."""
    return f"feedback:{workflow_id}:{agent_did}"
