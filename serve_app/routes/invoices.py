"""Invoices over what a payer has paid: by period or by workflow; an administrator settles them.

Spec: Invoice, Settlement rules 5; contract.md section 6 (Invoices); decision 0080.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from core.errors import ErrorCode, ServiceError
from core.money import CURRENCY, credits_number
from core.trust.access import ADMIN
from ledger.invoices.invoice_commands import CreateInvoice, SettleInvoice, invoice_settled_key
from ledger.invoices.invoice_content import standing_invoice, with_content
from ledger.invoices.invoice_reads import (
    REFUND_KINDS,
    invoice_row,
    invoice_rows,
    line_rows,
)
from ledger.reads.reader import RowDict
from serve_app.calls import Call, Operation, Repeats, Reply, invalid, not_found
from serve_app.fields import got_of
from serve_app.limits import RateClass
from serve_app.lists import listed, page_of, parse_time
from serve_app.views import iso_time
from serve_app.whose import did_of, paid_workflow

# An invoice is added up again so often when the ledger was written to meanwhile.
STALE_TRIES: Final = 5
STALE_PAUSE_S: Final = 0.05
STATUSES: Final = ("pending", "paid", "void")
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


async def create(call: Call) -> Reply:
    """Issue the invoice of a period or a workflow; the same again is the same invoice."""
    body = call.object_body()
    payer_did = did_of("payerDid", body.get("payerDid", call.caller.did))
    call.require(call.right, payer_did)
    start_ms = end_ms = 0
    workflow_id = None
    if "workflowId" in body:
        workflow_id, payer_did = await _paid_workflow(call, body)
    else:
        start_ms, end_ms = _period(body)
    row = await standing_invoice(call.services.reader, payer_did, (start_ms, end_ms), workflow_id)
    if row is None:
        work = _issue(call, payer_did, (start_ms, end_ms), workflow_id)
        row = await call.services.to_the_end(work)
    return Reply({"success": True, **invoice_record(row)})


async def _issue(
    call: Call, payer_did: str, period: tuple[int, int], workflow_id: str | None
) -> RowDict:
    """Add up and commit; once more when something came between the two."""
    services = call.services
    now_ms = services.now_ms()
    if period[1] > now_ms:
        expected = f"a time not after {iso_time(now_ms)}"
        raise invalid("periodEnd", str(iso_time(period[1])), expected)
    empty = CreateInvoice(
        key=call.command_key(f"invoice:{services.new_id()}"),
        actor_did=call.caller.did,
        invoice_id=services.new_id(),
        payer_did=payer_did,
        period_start_ms=period[0],
        period_end_ms=period[1],
        workflow_id=workflow_id,
    )
    for tries_left in reversed(range(STALE_TRIES)):
        try:
            outcome = await services.gateway.commit(await with_content(services.reader, empty))
        except ServiceError as error:
            if error.code is not ErrorCode.OVERLOADED or not tries_left:
                raise
            await asyncio.sleep(STALE_PAUSE_S)
        else:
            row = await invoice_row(services.reader, outcome.result["invoiceId"])
            assert row is not None, outcome
            return row
    raise AssertionError("the last try returns or raises")


async def get(call: Call) -> Reply:
    """Read one invoice with its lines."""
    row = await _readable(call)
    lines = await line_rows(call.services.reader, row["id"])
    return Reply(
        {
            **invoice_record(row),
            "lineCount": lines[0]["line_count"] if lines else 0,
            "lines": [_line_record(line) for line in lines],
        }
    )


async def list_invoices(call: Call) -> Reply:
    """List the caller's invoices, newest first; an administrator sees everybody's."""
    settings = call.services.settings
    page = page_of(call, default=settings.page_default, most=settings.page_max)
    status = call.query.get("status")
    if status is not None and status not in STATUSES:
        raise invalid("status", status, ", ".join(STATUSES))
    rows = await invoice_rows(
        call.services.reader,
        payer_did=call.party_did or call.query.get("payerDid"),
        status=status,
        limit=page.limit + 1,
        offset=page.offset,
        before_id=id_after(page.after),
    )
    shown = [invoice_record(row) for row in rows]
    return Reply(listed("invoices", shown, page, lambda row: row["id"]))


async def pay(call: Call) -> Reply:
    """Mark a pending invoice paid."""
    return await _settle(call, "paid")


async def void(call: Call) -> Reply:
    """Void a pending invoice; its payments can be invoiced again."""
    return await _settle(call, "void")


async def _settle(call: Call, status: Literal["paid", "void"]) -> Reply:
    row = await _readable(call)
    # What tells a repeat of this very request from somebody who also wants the invoice settled.
    request = f"{status} {call.command_key(call.services.new_id())}"
    command = SettleInvoice(
        key=invoice_settled_key(row["id"]),
        request_hash=hashlib.sha256(request.encode()).digest(),
        actor_did=call.caller.did,
        invoice_id=row["id"],
        status=status,
    )
    try:
        await call.services.to_the_end(call.services.gateway.commit(command))
    except ServiceError as error:
        if error.code is not ErrorCode.KEY_REUSED:
            raise
        raise ServiceError(ErrorCode.CONFLICT, "the invoice was settled before") from None
    settled = await invoice_row(call.services.reader, row["id"])
    assert settled is not None, row
    return Reply({"success": True, **invoice_record(settled)})


async def _readable(call: Call) -> RowDict:
    """Return the invoice of the path, if the caller may know of it."""
    given = call.path_values["invoice_id"]
    row = await invoice_row(call.services.reader, given)
    if row is None or not call.may((row["payer_did"],)):
        raise not_found(f"the invoice {given[:64]}")
    return row


async def _paid_workflow(call: Call, body: dict[str, Any]) -> tuple[str, str]:
    """Return a workflow's id and payer, if the caller may have it invoiced."""
    for name in ("periodStart", "periodEnd"):
        if name in body:
            raise invalid(name, "a period and a workflow", "one of them")
    workflow_id = uuid_of("workflowId", body["workflowId"])
    stored = await paid_workflow(call, workflow_id)
    wanted = body.get("payerDid")
    if wanted not in (None, stored.payer_did):
        raise invalid("payerDid", str(wanted), "the workflow's payer")
    return stored.id, stored.payer_did


def _period(body: dict[str, Any]) -> tuple[int, int]:
    start = parse_time("periodStart", body.get("periodStart"))
    end = parse_time("periodEnd", body.get("periodEnd"))
    start_ms, end_ms = ((at - _UNIX_EPOCH) // _MILLISECOND for at in (start, end))
    if end_ms <= start_ms:
        raise invalid("periodEnd", str(body["periodEnd"]), "a time after periodStart")
    if start_ms < 0:
        raise invalid("periodStart", str(body["periodStart"]), "a time after 1970")
    return start_ms, end_ms


def uuid_of(path: str, given: object) -> str:
    """Return an id in its one spelling.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    try:
        return str(uuid.UUID(given if isinstance(given, str) else ""))
    except ValueError:
        raise invalid(path, got_of(given), "an id in UUID form") from None


def id_after(cursor: str | None) -> str | None:
    """Return the cursor of a list that is keyed by ids.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    return None if cursor is None else uuid_of("cursor", cursor)


def invoice_record(row: RowDict) -> dict[str, Any]:
    """Return an invoice in its JSON form. Spec: Invoice."""
    return {
        "id": row["id"],
        "invoiceId": row["id"],
        "payerDid": row["payer_did"],
        "periodStart": iso_time(row["period_start_ms"]),
        "periodEnd": iso_time(row["period_end_ms"]),
        "workflowId": row["workflow_id"],
        "subtotalCents": row["subtotal_cents"],
        "protocolFeeCents": row["protocol_fee_cents"],
        "totalCents": row["total_cents"],
        "currency": CURRENCY,
        "status": row["status"],
        "createdAt": iso_time(row["created_ms"]),
        "settledAt": iso_time(row["settled_ms"]),
        "settledBy": row["settled_by_did"],
    }


def _line_record(line: RowDict) -> dict[str, Any]:
    is_refund = line["kind"] in REFUND_KINDS
    return {
        "entryId": line["entry_id"],
        "kind": "refund" if is_refund else "payment",
        "workflowId": line["workflow_id"],
        "nodeId": line["node_id"],
        "amountCredits": credits_number(line["amount_micro"] * (-1 if is_refund else 1)),
        "createdAt": iso_time(line["created_ms"]),
    }


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/invoices",
        handler=create,
        summary="Issue an invoice over a period or a workflow",
        scope="ledger:write",
        rate=RateClass.WRITE,
        tag="invoices",
        request="InvoiceRequest",
        reply="Invoice",
        errors=(ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.CONFLICT),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="GET",
        path="/v1/invoices",
        handler=list_invoices,
        summary="List invoices, newest first",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="invoices",
        reply="InvoiceList",
        parameters=("InvoiceStatus", "PayerDid", "Limit", "Offset", "Cursor"),
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
    Operation(
        method="GET",
        path="/v1/invoices/{invoice_id}",
        handler=get,
        summary="Read an invoice with its lines",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="invoices",
        reply="InvoiceWithLines",
        parameters=("InvoiceId",),
        errors=(ErrorCode.NOT_FOUND,),
    ),
    *(
        Operation(
            method="POST",
            path=f"/v1/invoices/{{invoice_id}}/{verb}",
            handler=handler,
            summary=summary,
            scope=ADMIN,
            rate=RateClass.WRITE,
            tag="invoices",
            reply="Invoice",
            parameters=("InvoiceId",),
            errors=(ErrorCode.NOT_FOUND, ErrorCode.CONFLICT),
            is_body_optional=True,
            repeats=Repeats.BY_REPLY,
        )
        for verb, handler, summary in (
            ("pay", pay, "Mark a pending invoice paid, for administrators"),
            ("void", void, "Void a pending invoice, for administrators"),
        )
    ),
)
