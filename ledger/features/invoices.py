"""Invoices for settled work: issue, mark as paid, void and read them.

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
from ledger.connections.connect import fetch
from ledger.features.accounts import REFUND_KINDS
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import invoice
from ledger.tables.money_tables import INVOICE_LINES, INVOICES, SETTLED_INVOICES, VOIDED_LINES
from ledger.writer.batch import Batch, Refusal, Result, conflict, invalid
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import wallet_address


class CreateInvoice(AuthorizedCommand, frozen=True, kw_only=True):
    """Issue an invoice for a payer's payments in a period, or for one workflow.

    `with_content` fills in the content. `payments` (gross) and `refunds` are (entry id,
    micro-credits) pairs that are on no other invoice, except void invoices. They were read as of
    `read_entry_id` and `read_audit_id`. The period of a workflow's invoice is the workflow's life.
    If an invoice of the same period or workflow exists, the result names that invoice.
    Rejections: INVALID_REQUEST (the period has not ended); CONFLICT (the period overlaps that of
    another invoice); OVERLOADED, not stored, when the content has changed since it was read.
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
    """Mark a pending invoice as paid, or void it, so that its payments can be invoiced again.

    The key is derived from the invoice, so it is settled once. A repeat with the same
    `request_hash` gets the first result. No rejections. Result: {"invoiceId", "status"}.
    """

    request_hash: bytes
    invoice_id: str
    status: Literal["paid", "void"]


def invoice_settled_key(invoice_id: str) -> str:
    """Return the key under which an invoice is settled once."""
    return f"invoice-settled:{invoice_id}"


def overlap_text(invoice_id: object) -> str:
    """Return the error text for a period that overlaps another invoice's."""
    return f"the period overlaps that of invoice {invoice_id}"


# The content of an invoice, read outside the writer while it commits other commands. One statement
# reads one snapshot, and returns its entry and audit ids; the writer compares them with later
# entries. The number of lines is bounded. A process reads the content of one invoice at a time,
# because the read is expensive for the database.

# Payments and refunds of one invoice: 5,000 lines occupy the writer for less than 0.1 s.
LINES_MAX: Final = 5_000
# A payment is one or two entries: the agent's part and the fee.
_ENTRIES_MAX: Final = 2 * LINES_MAX + 1
# A workflow runs for 30 days at most, and the clocks of machines differ by less than one day.
_REACH_BACK_MS: Final = 31 * 86_400_000
_REACH_AHEAD_MS: Final = 86_400_000

_REFUNDS: Final = f"e.kind IN {REFUND_KINDS}"
_NOT_INVOICED: Final = (
    "NOT EXISTS (SELECT 1 FROM callboard.invoice_line l"
    " WHERE l.entry_id = {entry_id} AND NOT l.is_void)"
)
# Entries are found by their escrow accounts. Escrow accounts are found by payer and publish time.
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
    """Return the command with the content that is committed now.

    Raises:
        ServiceError: CONFLICT, the workflow has not ended, or all its payments are on other
            invoices; INVALID_REQUEST, there are more payments than an invoice may have lines;
            OVERLOADED.
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


_STANDING_WORKFLOW: Final = """
SELECT * FROM callboard.invoice
WHERE workflow_id = %(workflow)s::uuid AND payer_did = %(payer)s AND status <> 'void' LIMIT 1
"""
# The stored periods of a payer never overlap. So only the first one that ends after the start of
# the new period can overlap it.
_STANDING_PERIOD: Final = """
SELECT * FROM (
    SELECT * FROM callboard.invoice
    WHERE payer_did = %(payer)s AND workflow_id IS NULL AND status <> 'void'
        AND period_end_ms > %(start)s
    ORDER BY period_end_ms LIMIT 1) AS next
WHERE period_start_ms < %(end)s
"""


async def standing_invoice(
    reader: LedgerReader, payer_did: str, period: tuple[int, int], workflow_id: str | None
) -> RowDict | None:
    """Return the stored invoice that prevents a new one, None if there is none.

    It is an invoice that is not void and is for the same workflow or for an overlapping period.
    """
    standing = _STANDING_PERIOD if workflow_id is None else _STANDING_WORKFLOW
    values = {"payer": payer_did, "workflow": workflow_id, "start": period[0], "end": period[1]}
    rows = await reader.lookups.rows(standing, values)
    return rows[0] if rows else None


def is_same(standing: RowDict, period: tuple[int, int], workflow_id: str | None) -> bool:
    """Say whether an invoice is for exactly this workflow or period."""
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


# Plans. An invoice moves no money, because the work was paid out of escrow (money.md, Invoices).
# All checks come before the first row.

# Whether entries that belong to the invoice were added after the content was read. Ids and times of
# entries grow together, so for a period only the next entry is checked.
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
    """The facts that may prevent an invoice.

    `same_id`: the invoice for the same workflow or period. `overlapping_id`: another invoice of
    this payer whose period overlaps. `is_stale`: entries were added since the content was read.
    """

    same_id: str | None = None
    overlapping_id: str | None = None
    is_stale: bool = False


async def load_invoice(
    connection: Connection, command: CreateInvoice, read_set: ReadSet
) -> InvoiceReads:
    """Return the facts that may prevent an invoice."""
    values = {
        "payer": command.payer_did,
        "workflow": command.workflow_id,
        "start": command.period_start_ms,
        "end": command.period_end_ms,
        "entry": command.read_entry_id,
    }
    is_of_workflow = command.workflow_id is not None
    standing = _STANDING_WORKFLOW if is_of_workflow else _STANDING_PERIOD
    found = f"SELECT id, period_start_ms, period_end_ms FROM ({standing}) AS standing"
    for invoice_id, start_ms, end_ms in await fetch(connection, found, values):
        if is_of_workflow or (start_ms, end_ms) == (values["start"], values["end"]):
            return InvoiceReads(same_id=invoice_id)
        return InvoiceReads(overlapping_id=invoice_id)
    since = _SINCE_WORKFLOW if is_of_workflow else _SINCE_PERIOD
    ((is_stale,),) = await fetch(connection, since, values)
    return InvoiceReads(is_stale=is_stale)


@plans(CreateInvoice, load=load_invoice)
def plan_create_invoice(command: CreateInvoice, batch: Batch) -> Result:
    """Issue an invoice for payments that are not invoiced yet, or return the existing one.

    Steps: (1) check that the period has ended, (2) look for the same or an overlapping invoice, (3)
    check that the content has not changed since it was read, (4) add the rows.
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
    """Add the invoice and its lines; return the number of lines."""
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
    """Return the payer of an invoice."""
    rows = await fetch(connection, _PAYER, {"invoice": command.invoice_id})
    return rows[0][0] if rows else None


@plans(SettleInvoice, load=load_payer, reuses_key=True)
def plan_settle_invoice(command: SettleInvoice, batch: Batch) -> Result:
    """Mark an invoice as paid or void; its key allows this once."""
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


async def invoice_row(reader: LedgerReader, invoice_id: str) -> RowDict | None:
    """Return the row of an invoice, None if there is none."""
    return await reader.row(sql.select(invoice).where(invoice.c.id == invoice_id))


async def invoice_rows(
    reader: LedgerReader, *, before_id: str | None, **page: Any
) -> list[RowDict]:
    """Return invoices, newest first.

    Args:
        page: `limit`, `offset`, and the filters `payer_did` and `status`.
    """
    return await reader.listed(sql.select(invoice), "id", before_id, is_newest_first=True, **page)


_LINES_SHOWN: Final = sql.text(f"""
    SELECT l.entry_id, l.amount_micro, e.kind, e.workflow_id, e.node_id, e.created_ms,
        count(*) OVER () AS line_count
    FROM callboard.invoice_line l JOIN callboard.entry e ON e.id = l.entry_id
    WHERE l.invoice_id = CAST(:invoice_id AS uuid) ORDER BY l.entry_id LIMIT {LINES_SHOWN_MAX}
""")


async def line_rows(reader: LedgerReader, invoice_id: str) -> list[RowDict]:
    """Return the first lines of an invoice with their entries. `line_count`: the number of all its
    lines.

    `amount_micro` of a payment is gross. The amounts of refunds reduce the invoice.
    """
    return await reader.rows(_LINES_SHOWN, {"invoice_id": invoice_id})
