"""Invoices of a payer's payments in a period or for a workflow: issue, read, and settle them.

Administrators settle an invoice as paid or void.

Reference: money.md (Invoices); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Literal

from core.errors import ErrorCode, ServiceError
from core.money import CURRENCY, credits_number
from core.records.api.review import (
    Invoice,
    InvoiceChanged,
    InvoiceLine,
    InvoicePage,
    InvoiceRequest,
    InvoicesQuery,
    InvoiceWithLines,
)
from core.timestamps import iso_ms
from core.trust.access import ADMIN
from ledger.features.accounts import REFUND_KINDS
from ledger.features.invoices import (
    CreateInvoice,
    SettleInvoice,
    invoice_row,
    invoice_rows,
    invoice_settled_key,
    is_same,
    line_rows,
    overlap_text,
    standing_invoice,
    with_content,
)
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, invalid, not_found
from serve_app.http.lists import id_after, listed, page_of
from serve_app.operations.views import iso_time, shown
from serve_app.operations.visibility import paid_workflow

# The most tries to add up and commit an invoice while other commits interfere.
STALE_TRIES: Final = 5
STALE_PAUSE_S: Final = 0.05

OPERATIONS = Operations("invoices", "ledger")


@OPERATIONS.add(
    "POST", "/v1/invoices", body=InvoiceRequest, reply=InvoiceChanged, errors=(ErrorCode.NOT_FOUND,)
)
async def create(call: Call) -> Json:
    """Issue an invoice over a period or a workflow.

    A repeat of the same request returns the existing invoice.
    """
    body = call.given(InvoiceRequest)
    payer_did = body.payer_did or call.caller.did
    call.require(call.right, payer_did)
    start_ms = end_ms = 0
    workflow_id = body.workflow_id
    if workflow_id is not None:
        workflow_id, payer_did = await _paid_workflow(call, body, workflow_id)
    else:
        start_ms, end_ms = _period(body)
        now_ms = call.services.now_ms()
        if end_ms > now_ms:  # Refused before any read: no invoice of such a period can exist.
            expected = f"a time not after {iso_time(now_ms)}"
            raise invalid("periodEnd", str(iso_time(end_ms)), expected)
    lock = call.services.invoicing.of(payer_did)
    await lock.acquire()  # If the client disconnects while it waits here, nothing has begun.
    work = _standing_or_issued(call, lock, payer_did, (start_ms, end_ms), workflow_id)
    return {"success": True, **invoice_record(await call.services.to_the_end(work))}


async def _standing_or_issued(
    call: Call,
    lock: asyncio.Lock,
    payer_did: str,
    period: tuple[int, int],
    workflow_id: str | None,
) -> RowDict:
    """Return the requested invoice: an existing one, or a new one.

    Args:
        call: the request.
        lock: the payer's mutex, already acquired. This function releases the mutex, because the
            function continues after the client has disconnected and the handler has ended.
        payer_did: the payer.
        period: start and end of the period, Unix milliseconds; (0, 0) for a workflow.
        workflow_id: the workflow; None for a period.

    Raises:
        ServiceError: CONFLICT: an existing invoice overlaps; or OVERLOADED.
    """
    try:
        standing = await standing_invoice(call.services.reader, payer_did, period, workflow_id)
        if standing is not None and is_same(standing, period, workflow_id):
            return standing
        if standing is not None:
            raise ServiceError(ErrorCode.CONFLICT, overlap_text(standing["id"]))
        return await _issue(call, payer_did, period, workflow_id)
    finally:
        lock.release()


async def _issue(
    call: Call, payer_did: str, period: tuple[int, int], workflow_id: str | None
) -> RowDict:
    """Add up an invoice and commit it. Retry if another commit comes between these two steps."""
    services = call.services
    empty = CreateInvoice(
        invoice_id=services.new_id(),
        payer_did=payer_did,
        period_start_ms=period[0],
        period_end_ms=period[1],
        workflow_id=workflow_id,
    )
    for tries_left in reversed(range(STALE_TRIES)):
        try:
            filled = await with_content(services.reader, call.authorized(empty))
            outcome = await services.gateway.commit(filled)
        except ServiceError as error:
            if error.code is not ErrorCode.OVERLOADED or not tries_left:
                raise
            await asyncio.sleep(STALE_PAUSE_S)
        else:
            row = await invoice_row(services.reader, outcome.result["invoiceId"])
            assert row is not None, outcome
            return row
    raise AssertionError("the last try returns or raises")


@OPERATIONS.add("GET", "/v1/invoices/{invoice_id}", reply=InvoiceWithLines)
async def get(call: Call) -> Json:
    """Read an invoice with its lines."""
    row = await _readable(call)
    lines = await line_rows(call.services.reader, row["id"])
    return {
        **invoice_record(row),
        "lineCount": lines[0]["line_count"] if lines else 0,
        "lines": [_line_record(line) for line in lines],
    }


@OPERATIONS.add("GET", "/v1/invoices", query=InvoicesQuery, reply=InvoicePage)
async def list_invoices(call: Call) -> Json:
    """List invoices, newest first."""
    query = call.given(InvoicesQuery)
    page = page_of(call, query)
    rows = await invoice_rows(
        call.services.reader,
        payer_did=call.party_did or query.payer_did,
        status=query.status,
        before_id=id_after(page),
        **page.rows,
    )
    return listed("invoices", rows, page, lambda row: row["id"], form=invoice_record)


@OPERATIONS.add("POST", "/v1/invoices/{invoice_id}/pay", scope=ADMIN, reply=InvoiceChanged)
async def pay(call: Call) -> Json:
    """Mark a pending invoice paid, for administrators."""
    return await _settle(call, "paid")


@OPERATIONS.add("POST", "/v1/invoices/{invoice_id}/void", scope=ADMIN, reply=InvoiceChanged)
async def void(call: Call) -> Json:
    """Void a pending invoice, for administrators.

    The payments of a void invoice can be invoiced again.
    """
    return await _settle(call, "void")


async def _settle(call: Call, status: Literal["paid", "void"]) -> Json:
    row = await _readable(call)
    command = SettleInvoice(
        key=invoice_settled_key(row["id"]),
        request_hash=call.act_hash,
        invoice_id=row["id"],
        status=status,
    )
    done = ServiceError(ErrorCode.CONFLICT, "the invoice is already settled")
    await call.commit(command, done=done)
    settled = await invoice_row(call.services.reader, row["id"])
    assert settled is not None, row
    return {"success": True, **invoice_record(settled)}


async def _readable(call: Call) -> RowDict:
    """Return the invoice in the path.

    Raises:
        ServiceError: NOT_FOUND if the invoice does not exist or is hidden from the caller.
    """
    invoice_id = call.path_values["invoice_id"]
    row = await invoice_row(call.services.reader, invoice_id)
    if row is None or not call.may((row["payer_did"],)):
        raise not_found(f"the invoice {invoice_id}")
    return row


async def _paid_workflow(call: Call, body: InvoiceRequest, workflow_id: str) -> tuple[str, str]:
    """Return the id and the payer of a workflow for which the caller may request an invoice.

    Raises:
        ServiceError: INVALID_REQUEST or NOT_FOUND.
    """
    for name, at_ms in (("periodStart", body.period_start), ("periodEnd", body.period_end)):
        if at_ms is not None:
            raise invalid(name, "a period and a workflow", "only one of them")
    stored = await paid_workflow(call, workflow_id)
    if body.payer_did not in (None, stored.payer_did):
        raise invalid("payerDid", str(body.payer_did), "the workflow's payer")
    return stored.id, stored.payer_did


def _period(body: InvoiceRequest) -> tuple[int, int]:
    start_ms, end_ms = body.period_start, body.period_end
    if start_ms is None or end_ms is None:
        missing = "periodStart" if start_ms is None else "periodEnd"
        raise invalid(missing, "nothing", "a time such as 2026-01-31T12:00:00Z")
    if end_ms <= start_ms:
        raise invalid("periodEnd", iso_ms(end_ms), "a time after periodStart")
    if start_ms < 0:
        raise invalid("periodStart", iso_ms(start_ms), "a time after 1970")
    return start_ms, end_ms


def invoice_record(row: RowDict) -> dict[str, Any]:
    """Return an invoice's JSON record. Reference: money.md (Invoices)."""
    by = row["settled_by_did"]
    return shown(Invoice, row, invoice_id=row["id"], currency=CURRENCY, settled_by=by)


def _line_record(line: RowDict) -> dict[str, Any]:
    is_refund = line["kind"] in REFUND_KINDS
    return shown(
        InvoiceLine,
        line,
        kind="refund" if is_refund else "payment",
        amount_credits=credits_number(line["amount_micro"] * (-1 if is_refund else 1)),
    )
