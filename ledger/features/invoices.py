"""Invoices over settled work: made, paid, voided, read.

Reference: money.md (Invoices); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sql
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from core.market.invoice import InvoiceTotals, invoice_totals
from core.money import credits_text
from core.records.audit import AuditEventType
from core.timestamps import iso_ms
from ledger.authority import AuthorizedCommand
from ledger.connections.connecting import fetch
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import columns, entry, invoice, invoice_line
from ledger.tables.money_tables import INVOICE_LINES, INVOICES, SETTLED_INVOICES, VOIDED_LINES
from ledger.writer.batch import Batch, Refusal, Result, conflict, invalid
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import wallet_address


class CreateInvoice(AuthorizedCommand, frozen=True, kw_only=True):
    """Put what a payer paid in a period, or for one workflow, on an invoice.

    The content was added up outside the writer (`ledger/features/invoices.py`), as of the
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


# What an invoice would be made of, added up by a reader while the writer serves others. One
# statement, which sees one moment, and says which: the writer compares it with what has come
# since. Bounded by lines; one at a time per process, because it is work for the database.

# Payments and refunds of one invoice: 5,000 lines hold the writer for less than 0.1 s.
LINES_MAX: Final = 5_000
# A payment is one or two entries, the agent's part and the fee.
_ENTRIES_MAX: Final = 2 * LINES_MAX + 1
# A workflow runs for 30 days at most, and clocks of machines may differ by less than one day.
_REACH_BACK_MS: Final = 31 * 86_400_000
_REACH_AHEAD_MS: Final = 86_400_000

_REFUNDS: Final = "e.kind IN ('refund', 'fee_refund', 'stake_refund')"
_NOT_INVOICED: Final = (
    "NOT EXISTS (SELECT 1 FROM callboard.invoice_line l"
    " WHERE l.entry_id = {entry_id} AND NOT l.is_void)"
)
# Entries by their escrow accounts, which are found by payer and time of publishing.
_PAID_IN_PERIOD: Final = """
    callboard.workflow w JOIN callboard.escrow s ON s.workflow_id = w.id
    JOIN callboard.entry e ON e.debit_account_id = s.account_id
    WHERE w.payer_did = :payer AND w.created_ms BETWEEN :from_ms AND :until_ms
        AND e.created_ms >= :start_ms AND e.created_ms < :end_ms
"""
_PAID_BY_WORKFLOW: Final = """
    callboard.escrow s JOIN callboard.entry e ON e.debit_account_id = s.account_id
    WHERE s.workflow_id = CAST(:workflow AS uuid)
"""
_BACK_IN_PERIOD: Final = """
    callboard.account a JOIN callboard.entry e ON e.credit_account_id = a.id
    WHERE a.address = :wallet AND e.created_ms >= :start_ms AND e.created_ms < :end_ms
"""
_BACK_OF_WORKFLOW: Final = "callboard.entry e WHERE e.workflow_id = CAST(:workflow AS uuid)"
_CONTENT: Final = """
WITH moment AS (SELECT entry_seq, audit_seq FROM callboard.head),
paid AS (
    SELECT e.id, e.kind, e.amount, e.workflow_id, e.node_id FROM {paid}
        AND e.kind IN ('node_payment', 'protocol_fee')
    LIMIT {entries_max}
), line AS (
    SELECT coalesce(min(id) FILTER (WHERE kind = 'node_payment'), min(id)) AS id,
        sum(amount)::bigint AS micro, false AS is_refund
    FROM paid GROUP BY workflow_id, node_id
), back AS (
    SELECT e.id, e.amount AS micro, true AS is_refund FROM {back} AND {refunds}
    LIMIT {entries_max}
), both_kinds AS (SELECT * FROM line UNION ALL SELECT * FROM back)
SELECT entry_seq, audit_seq,
    (SELECT count(*) FROM paid) AS paid_entries, (SELECT count(*) FROM back) AS back_entries,
    (SELECT coalesce(json_agg(json_build_array(b.id, b.micro, b.is_refund) ORDER BY b.id), '[]')
        FROM both_kinds b WHERE {not_invoiced}) AS lines,
    (SELECT count(*) FROM line) AS payments
FROM moment
"""
_LIFE: Final = """
SELECT coalesce(s.created_ms, w.created_ms) AS start_ms,
    coalesce(s.released_ms, w.completed_ms) AS end_ms
FROM callboard.workflow w LEFT JOIN callboard.escrow s ON s.workflow_id = w.id
WHERE w.id = CAST(:workflow AS uuid)
"""


async def with_content(reader: LedgerReader, command: CreateInvoice) -> CreateInvoice:
    """Return the command with what it is to put on the invoice, as of now.

    Raises:
        ServiceError: CONFLICT, the workflow runs, or all of it is on other invoices;
            INVALID_REQUEST, there are more payments than an invoice has lines; OVERLOADED.
    """
    start_ms, end_ms = command.period_start_ms, command.period_end_ms
    values: dict[str, Any] = {"payer": command.payer_did, "workflow": command.workflow_id}
    if command.workflow_id is None:
        values |= {"wallet": wallet_address(command.payer_did), "start_ms": start_ms}
        values |= {"end_ms": end_ms, "from_ms": start_ms - _REACH_BACK_MS}
        values |= {"until_ms": end_ms + _REACH_AHEAD_MS}
        row = await _content(reader, _PAID_IN_PERIOD, _BACK_IN_PERIOD, values)
    else:
        (life,) = await reader.rows(sql.text(_LIFE), values)
        if life["end_ms"] is None:
            raise ServiceError(
                ErrorCode.CONFLICT,
                f"the workflow {command.workflow_id} has not ended: invoice it after its end",
            )
        start_ms, end_ms = life["start_ms"], max(life["start_ms"], life["end_ms"]) + 1
        row = await _content(reader, _PAID_BY_WORKFLOW, _BACK_OF_WORKFLOW, values)
    lines = row["lines"]
    is_whole = max(row["paid_entries"], row["back_entries"]) < _ENTRIES_MAX
    if not is_whole or len(lines) > LINES_MAX:
        raise ServiceError(
            ErrorCode.INVALID_REQUEST,
            f"the period has more than {LINES_MAX} payments: use a shorter period",
        )
    payments = tuple((entry_id, micro) for entry_id, micro, is_back in lines if not is_back)
    if command.workflow_id is not None and row["payments"] and not payments:
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"every payment of the workflow {command.workflow_id} is on other invoices",
        )
    return replace(
        command,
        period_start_ms=start_ms,
        period_end_ms=end_ms,
        payments=payments,
        refunds=tuple((entry_id, micro) for entry_id, micro, is_back in lines if is_back),
        read_entry_id=row["entry_seq"],
        read_audit_id=row["audit_seq"],
    )


async def standing_invoice(
    reader: LedgerReader, payer_did: str, period: tuple[int, int], workflow_id: str | None
) -> RowDict | None:
    """Return the invoice beside which this one cannot stand, None without one.

    It is not void, and of the same workflow or of a period that overlaps. Periods of a payer never
    overlap, so the first that ends later tells, as in ledger/writer/barrier_loading.py.
    """
    query = sql.select(invoice).where(invoice.c.payer_did == payer_did, invoice.c.status != "void")
    if workflow_id is not None:
        query = query.where(invoice.c.workflow_id == workflow_id)
    else:
        query = query.where(invoice.c.workflow_id.is_(None), invoice.c.period_end_ms > period[0])
        query = query.order_by(invoice.c.period_end_ms)
    for row in await reader.rows(query.limit(1)):
        if workflow_id is not None or row["period_start_ms"] < period[1]:
            return row
    return None


def is_same(standing: RowDict, period: tuple[int, int], workflow_id: str | None) -> bool:
    """Say whether a standing invoice is the one of exactly this period or workflow."""
    return (
        workflow_id is not None
        or (standing["period_start_ms"], standing["period_end_ms"]) == period
    )


async def _content(reader: LedgerReader, paid: str, back: str, values: dict[str, Any]) -> RowDict:
    query = _CONTENT.format(
        paid=paid,
        back=back,
        refunds=_REFUNDS,
        entries_max=_ENTRIES_MAX,
        not_invoiced=_NOT_INVOICED.format(entry_id="b.id"),
    )
    async with reader.turns.turn(values["payer"]):
        (row,) = await reader.rows(sql.text(query), values)
    return row


# Planning invoices: which payments stand on one, what it adds up to, how it is settled. An
# invoice moves no money: the work was paid out of escrow (money.md, Invoices). Every check comes
# before the first row.

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


LINES_SHOWN_MAX: Final = 1_000
REFUND_KINDS: Final = ("refund", "fee_refund", "stake_refund")


async def invoice_row(reader: LedgerReader, invoice_id: str) -> RowDict | None:
    """Return an invoice's row by its id."""
    return await reader.row(sql.select(invoice).where(invoice.c.id == invoice_id))


async def invoice_rows(
    reader: LedgerReader,
    *,
    payer_did: str | None,
    status: str | None,
    limit: int,
    offset: int,
    before_id: str | None,
) -> list[RowDict]:
    """Return invoices, newest first; of everybody when `payer_did` is None."""
    return await reader.listed(
        sql.select(invoice), "id", before_id, limit=limit, offset=offset, is_newest_first=True,
        payer_did=payer_did, status=status,
    )  # fmt: skip


async def line_rows(reader: LedgerReader, invoice_id: str) -> list[RowDict]:
    """Return the first lines of an invoice with their entries, and in each how many there are.

    `amount_micro` of a payment is gross; of a refund it counts against the rest.
    """
    query = (
        sql.select(
            *columns(invoice_line, "entry_id amount_micro"),
            *columns(entry, "kind workflow_id node_id created_ms"),
            sql.func.count().over().label("line_count"),
        )
        .join(entry, entry.c.id == invoice_line.c.entry_id)
        .where(invoice_line.c.invoice_id == invoice_id)
        .order_by(invoice_line.c.entry_id)
        .limit(LINES_SHOWN_MAX)
    )
    return await reader.rows(query)
