"""What an invoice would be made of, added up by a reader while the writer serves others.

One statement, which sees one moment, and says which: the writer compares it with what has come
since. Bounded by lines; one at a time per process, because it is work for the database.
Reference: money.md (Invoices); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from ledger.invoices.invoice_commands import CreateInvoice
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import invoice
from ledger.writer.state_cache import wallet_address

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
