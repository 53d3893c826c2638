"""Planning invoices: which payments stand on one, what it adds up to, how it is settled.

An invoice moves no money: the work was paid out of escrow (money.md, Invoices). Every check comes
before the first row. Reference: money.md (Invoices); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.errors import ErrorCode
from core.market.invoice import InvoiceTotals, invoice_totals
from core.money import credits_text
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from ledger.connections.connecting import fetch
from ledger.invoices.invoice_commands import CreateInvoice, SettleInvoice, overlap_text
from ledger.tables.money_tables import INVOICE_LINES, INVOICES, SETTLED_INVOICES, VOIDED_LINES
from ledger.writer.batch import Batch, Refusal, Result, conflict, invalid
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet

_REFUNDS: Final = "e.kind IN ('refund', 'fee_refund', 'stake_refund')"
_STANDING_WORKFLOW: Final = """
SELECT id::text, period_start_ms, period_end_ms FROM callboard.invoice
WHERE workflow_id = %(workflow)s::uuid AND payer_did = %(payer)s AND status <> 'void' LIMIT 1
"""
# Periods of a payer never overlap, so the first that ends later tells.
_STANDING_PERIOD: Final = """
SELECT id::text, period_start_ms, period_end_ms FROM (
    SELECT id, period_start_ms, period_end_ms FROM callboard.invoice
    WHERE payer_did = %(payer)s AND workflow_id IS NULL AND status <> 'void'
        AND period_end_ms > %(start)s
    ORDER BY period_end_ms LIMIT 1) AS next
WHERE period_start_ms < %(end)s
"""
# Entries that have come since an invoice's content was read and would be a part of it. Ids and
# times grow together, so of a period the next entry tells.
_SINCE_PERIOD: Final = """
SELECT EXISTS (
    SELECT 1 FROM callboard.entry WHERE id = %(entry)s + 1 AND created_ms < %(end)s)
"""
_SINCE_WORKFLOW: Final = f"""
SELECT EXISTS (
    SELECT 1 FROM callboard.entry e
    WHERE e.workflow_id = %(workflow)s::uuid AND e.id > %(entry)s AND {_REFUNDS})
"""


_PAYER: Final = "SELECT payer_did FROM callboard.invoice WHERE id = %(invoice)s::uuid"


@dataclass(frozen=True, slots=True)
class InvoiceReads:
    """What is in the way of an invoice.

    `same_id`: the invoice that already is what is asked for; `overlapping_id`: another of this
    payer whose period overlaps. `is_stale`: entries have come since its content was read.
    """

    same_id: str | None = None
    overlapping_id: str | None = None
    is_stale: bool = False


async def load_invoice(
    connection: Connection, command: CreateInvoice, read_set: ReadSet
) -> InvoiceReads:
    """Return what is in the way of an invoice."""
    values = {
        "payer": command.payer_did,
        "workflow": command.workflow_id,
        "start": command.period_start_ms,
        "end": command.period_end_ms,
        "entry": command.read_entry_id,
    }
    is_of_workflow = command.workflow_id is not None
    standing = _STANDING_WORKFLOW if is_of_workflow else _STANDING_PERIOD
    for invoice_id, start_ms, end_ms in await fetch(connection, standing, values):
        if is_of_workflow or (start_ms, end_ms) == (values["start"], values["end"]):
            return InvoiceReads(same_id=invoice_id)
        return InvoiceReads(overlapping_id=invoice_id)
    since = _SINCE_WORKFLOW if is_of_workflow else _SINCE_PERIOD
    ((is_stale,),) = await fetch(connection, since, values)
    return InvoiceReads(is_stale=is_stale)


@plans(CreateInvoice, load=load_invoice)
def plan_create_invoice(command: CreateInvoice, batch: Batch) -> Result:
    """Issue an invoice over what is not invoiced yet, or answer with the one that stands.

    Steps: (1) the period has passed, (2) the same or an overlapping one, (3) its content is what it
    would be if it were added up now, (4) the rows.
    """
    cache = batch.cache
    stored: InvoiceReads = batch.loaded
    is_of_workflow = command.workflow_id is not None
    if not is_of_workflow and command.period_end_ms > batch.now_ms:  # (1)
        raise invalid(
            f"periodEnd: got {iso_ms(command.period_end_ms)},"
            f" expected a time not after {batch.created_at}"
        )
    if stored.same_id is not None:  # (2)
        return {"invoiceId": stored.same_id, "isNew": False}
    if stored.overlapping_id is not None:
        raise conflict(overlap_text(stored.overlapping_id))
    latest_audit_id = cache.invoiced.get(command.payer_did, cache.read_audit_id)
    if stored.is_stale or command.read_audit_id < latest_audit_id:  # (3)
        raise Refusal(
            ErrorCode.OVERLOADED,
            "payments of the period changed during the request: repeat it",
            retry_after_s=1,
        )
    totals = invoice_totals(
        (micro for _, micro in command.payments), (micro for _, micro in command.refunds)
    )
    lines = _add_rows(command, totals, batch)  # (4)
    audit_id = batch.record(
        AuditEventType.INVOICE_ISSUED,
        ("invoice", command.invoice_id),
        payerDid=command.payer_did,
        periodStart=iso_ms(command.period_start_ms),
        periodEnd=iso_ms(command.period_end_ms),
        workflowId=command.workflow_id,
        lines=lines,
        subtotalCredits=credits_text(totals.subtotal_micro),
        subtotalCents=totals.subtotal_cents,
        protocolFeeCents=totals.fee_cents,
    )
    cache.invoiced[command.payer_did] = audit_id
    return {"invoiceId": command.invoice_id, "isNew": True}


def _add_rows(command: CreateInvoice, totals: InvoiceTotals, batch: Batch) -> int:
    """Add the invoice and its lines; return how many lines there are."""
    own = {"id": command.invoice_id, "protocol_fee_cents": totals.fee_cents}
    batch.store(INVOICES, command.invoice_id, command, totals, **own)
    lines = (*command.payments, *command.refunds)
    for entry_id, micro in lines:
        batch.add(
            INVOICE_LINES,
            {"invoice_id": command.invoice_id, "entry_id": entry_id, "amount_micro": micro},
        )
    return len(lines)


async def load_payer(
    connection: Connection, command: SettleInvoice, read_set: ReadSet
) -> str | None:
    """Return who pays an invoice."""
    rows = await fetch(connection, _PAYER, {"invoice": command.invoice_id})
    return rows[0][0] if rows else None


@plans(SettleInvoice, load=load_payer, is_asked_again=True)
def plan_settle_invoice(command: SettleInvoice, batch: Batch) -> Result:
    """Mark an invoice paid or void; its key makes that happen once."""
    settled = {"id": command.invoice_id, "settled_by_did": command.actor_did}
    batch.store(SETTLED_INVOICES, command.invoice_id, command, **settled)
    is_paid = command.status == "paid"
    if not is_paid:
        batch.put(VOIDED_LINES, command.invoice_id, {"invoice_id": command.invoice_id})
    batch.add_parties(batch.loaded)
    batch.record(
        AuditEventType.INVOICE_PAID if is_paid else AuditEventType.INVOICE_VOIDED,
        ("invoice", command.invoice_id),
    )
    return {"invoiceId": command.invoice_id, "status": command.status}
