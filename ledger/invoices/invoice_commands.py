"""Invoices over settled work are made, paid and voided.

Plain values, as `ledger/commands.py` says. money.md (Invoices).
"""

from __future__ import annotations

from typing import Literal

from ledger.authority import AuthorizedCommand


class CreateInvoice(AuthorizedCommand, frozen=True, kw_only=True):
    """Put what a payer paid in a period, or for one workflow, on an invoice.

    The content was added up outside the writer (`ledger/invoices/invoice_content.py`), as of the
    entry and the audit record that it names: payments (gross) and refunds, each (entry id, micro-
    credits), which are on no other invoice, void ones apart. Of a workflow, the period is its life.
    The invoice of the same period or workflow is the answer when there is one.
    Rejections: INVALID_REQUEST (a period that has not passed), CONFLICT (it overlaps another);
    OVERLOADED, not stored, when the content is not what it would be now: to be read again.
    Result: {"invoiceId", "isNew": bool}.
    """

    invoice_id: str
    payer_did: str
    period_start_ms: int
    period_end_ms: int
    workflow_id: str | None
    payments: tuple[tuple[int, int], ...] = ()
    refunds: tuple[tuple[int, int], ...] = ()
    read_entry_id: int = 0
    read_audit_id: int = 0


class SettleInvoice(AuthorizedCommand, frozen=True, kw_only=True):
    """Mark a pending invoice paid, or void it: then its payments can be invoiced again.

    Its key is the invoice's, so that it happens once: a repeat is an invoice settled before, with
    the same `request_hash` in the same way. No rejections. Result: {"invoiceId", "status"}.
    """

    request_hash: bytes
    invoice_id: str
    status: Literal["paid", "void"]


def invoice_settled_key(invoice_id: str) -> str:
    """Return the key under which an invoice is settled, once."""
    return f"invoice-settled:{invoice_id}"


def overlap_text(invoice_id: object) -> str:
    """Return why a period is refused that another invoice has a part of."""
    return f"the period overlaps that of invoice {invoice_id}"
