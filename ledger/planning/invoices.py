"""Planning invoices: which payments stand on one, what it adds up to, how it is settled.

An invoice moves no money: the work was paid out of escrow (money.md case 35). Every check comes
before the first row. Spec: Settlement rules 5; contract.md section 6 (Invoices); decision 0080.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.market.invoice import invoice_totals
from core.money import credits_text
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from ledger.commands import Outcome
from ledger.planning.batch import Batch, Refusal
from ledger.planning.grounds import ENTRIES_MAX, InvoiceGrounds
from ledger.review_commands import CreateInvoice, SettleInvoice


def plan_create_invoice(command: CreateInvoice, batch: Batch) -> Outcome:
    """Issue an invoice over what is not invoiced yet, or answer with the one that stands.

    Steps: (1) the period has passed, (2) the same or an overlapping one, (3) what it is made of,
    (4) the rows.
    """
    grounds = batch.books.grounds
    assert isinstance(grounds, InvoiceGrounds), grounds
    is_of_workflow = command.workflow_id is not None
    if not is_of_workflow and command.period_end_ms > batch.now_ms:  # (1)
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"periodEnd: got {iso_ms(command.period_end_ms)},"
            f" expected a time not after {batch.created_at}",
        )
    if grounds.same_id is not None:  # (2)
        return batch.decided(command.key, result={"invoiceId": grounds.same_id, "isNew": False})
    if grounds.overlapping_id is not None:
        raise Refusal(
            ErrorCode.CONFLICT, f"the period overlaps that of invoice {grounds.overlapping_id}"
        )
    _check_content(command, grounds)  # (3)
    totals = invoice_totals(
        (payment.micro for payment in grounds.payments),
        (refund.micro for refund in grounds.refunds),
    )
    batch.trade(  # (4)
        "invoices",
        command.invoice_id,
        {
            "id": command.invoice_id,
            "payer_did": command.payer_did,
            "period_start_ms": grounds.period_start_ms,
            "period_end_ms": grounds.period_end_ms,
            "workflow_id": command.workflow_id,
            "subtotal_cents": totals.subtotal_cents,
            "protocol_fee_cents": totals.fee_cents,
            "total_cents": totals.total_cents,
            "subtotal_micro": totals.subtotal_micro,
        },
    )
    for entry in (*grounds.payments, *grounds.refunds):
        batch.trade(
            "invoice_lines",
            str(entry.entry_id),
            {
                "invoice_id": command.invoice_id,
                "entry_id": entry.entry_id,
                "amount_micro": entry.micro,
            },
        )
    audit_id = batch.record(
        AuditEventType.INVOICE_ISSUED,
        actor_did=command.actor_did,
        target=("invoice", command.invoice_id),
        payload={
            "payerDid": command.payer_did,
            "periodStart": iso_ms(grounds.period_start_ms),
            "periodEnd": iso_ms(grounds.period_end_ms),
            "workflowId": command.workflow_id,
            "lines": len(grounds.payments) + len(grounds.refunds),
            "subtotalCredits": credits_text(totals.subtotal_micro),
            "subtotalCents": totals.subtotal_cents,
            "protocolFeeCents": totals.fee_cents,
        },
    )
    return batch.decided(
        command.key, result={"invoiceId": command.invoice_id, "isNew": True}, audit_id=audit_id
    )


def _check_content(command: CreateInvoice, grounds: InvoiceGrounds) -> None:
    if not grounds.is_over:
        raise Refusal(
            ErrorCode.CONFLICT, f"the workflow {command.workflow_id} has not ended: invoice it then"
        )
    if not grounds.is_complete:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"the period has more than {ENTRIES_MAX} ledger entries, expected a shorter one",
        )
    if command.workflow_id is not None and grounds.invoiced and not grounds.payments:
        raise Refusal(
            ErrorCode.CONFLICT,
            f"every payment of the workflow {command.workflow_id} is on other invoices",
        )


def plan_settle_invoice(command: SettleInvoice, batch: Batch) -> Outcome:
    """Mark an invoice paid or void; its key makes that happen once."""
    batch.trade(
        "settled_invoices",
        command.invoice_id,
        {
            "id": command.invoice_id,
            "status": command.status,
            "settled_by_did": command.actor_did,
        },
    )
    is_paid = command.status == "paid"
    audit_id = batch.record(
        AuditEventType.INVOICE_PAID if is_paid else AuditEventType.INVOICE_VOIDED,
        actor_did=command.actor_did,
        target=("invoice", command.invoice_id),
        payload={},
    )
    return batch.decided(
        command.key,
        result={"invoiceId": command.invoice_id, "status": command.status},
        request_hash=command.request_hash,
        audit_id=audit_id,
    )
