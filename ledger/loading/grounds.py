"""Reads for the commands that stand on stored rows (ledger/planning/grounds.py).

Run by the writer, in the moment it plans the command, so that nothing can come between. Every
statement is bounded. money.md cases 15 and 33 to 34; decisions 0080 and 0081.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from core.market.settlement import PaymentSplit
from ledger.planning.books import stake_address, stake_locked_address, wallet_address
from ledger.planning.grounds import (
    ENTRIES_MAX,
    Billable,
    DisputeGrounds,
    Grounds,
    InvoiceGrounds,
    PaidLine,
    ReputationGrounds,
    SlashGrounds,
)
from ledger.reputation import load_compared
from ledger.review_commands import (
    CreateInvoice,
    GroundedCommand,
    RebuildReputation,
    SlashStake,
)

Connection = psycopg.AsyncConnection[Any]

# A workflow runs for 30 days at most, and clocks of machines may differ by less than one day.
_REACH_BACK_MS: Final = 31 * 86_400_000
_REACH_AHEAD_MS: Final = 86_400_000

_NOT_INVOICED: Final = (
    "NOT EXISTS (SELECT 1 FROM callboard.invoice_line l"
    " WHERE l.entry_id = {entry_id} AND NOT l.is_void)"
)
_REFUNDS: Final = "e.kind IN ('refund', 'fee_refund', 'stake_refund')"
# Entries by their escrow accounts, which are found by payer and time of publishing.
_PAYMENTS: Final = f"""
WITH paid AS (
    SELECT e.id, e.kind, e.amount, e.workflow_id, e.node_id
    FROM {{source}} JOIN callboard.entry e ON e.debit_account_id = s.account_id
    WHERE {{condition}} AND e.kind IN ('node_payment', 'protocol_fee')
    LIMIT {ENTRIES_MAX + 1}
), line AS (
    SELECT coalesce(min(id) FILTER (WHERE kind = 'node_payment'), min(id)) AS id,
        sum(amount)::bigint AS gross, count(*) AS entries
    FROM paid GROUP BY workflow_id, node_id
)
SELECT line.id, line.gross, {_NOT_INVOICED.format(entry_id="line.id")},
    sum(line.entries) OVER ()
FROM line ORDER BY line.id
"""
_PAYMENTS_OF_PERIOD: Final = _PAYMENTS.format(
    source="callboard.workflow w JOIN callboard.escrow s ON s.workflow_id = w.id",
    condition="w.payer_did = %(payer)s AND w.created_ms BETWEEN %(from)s AND %(until)s"
    " AND e.created_ms >= %(start)s AND e.created_ms < %(end)s",
)
_PAYMENTS_OF_WORKFLOW: Final = _PAYMENTS.format(
    source="callboard.escrow s", condition="s.workflow_id = %(workflow)s::uuid"
)
_REFUNDS_OF_PERIOD: Final = f"""
SELECT e.id, e.amount, {_NOT_INVOICED.format(entry_id="e.id")}
FROM callboard.account a JOIN callboard.entry e ON e.credit_account_id = a.id
WHERE a.address = %(wallet)s AND {_REFUNDS}
    AND e.created_ms >= %(start)s AND e.created_ms < %(end)s
ORDER BY e.id LIMIT {ENTRIES_MAX + 1}
"""
_REFUNDS_OF_WORKFLOW: Final = f"""
SELECT e.id, e.amount, {_NOT_INVOICED.format(entry_id="e.id")}
FROM callboard.entry e WHERE e.workflow_id = %(workflow)s::uuid AND {_REFUNDS} ORDER BY e.id
"""
_STANDING: Final = """
SELECT id::text, period_start_ms, period_end_ms, workflow_id::text FROM callboard.invoice
WHERE payer_did = %(payer)s AND status <> 'void' AND CASE
    WHEN %(workflow)s::uuid IS NOT NULL THEN workflow_id = %(workflow)s::uuid
    ELSE workflow_id IS NULL AND period_start_ms < %(end)s AND period_end_ms > %(start)s END
ORDER BY id LIMIT 2
"""
_LIFE: Final = """
SELECT coalesce(s.created_ms, w.created_ms), coalesce(s.released_ms, w.completed_ms)
FROM callboard.workflow w LEFT JOIN callboard.escrow s ON s.workflow_id = w.id
WHERE w.id = %(workflow)s::uuid
"""
_DISPUTE: Final = """
SELECT d.status, d.workflow_id::text, d.complainant_did, d.respondent_did, d.node_id,
    d.dispute_type, w.payer_did
FROM callboard.dispute d LEFT JOIN callboard.workflow w ON w.id = d.workflow_id
WHERE d.id = %(dispute)s::uuid
"""
# Of a line that was all fee, only the node's row knows the agent.
_LINES: Final = f"""
SELECT p.node_id, coalesce(a.owner_did, n.agent_did, ''), coalesce(p.agent, 0), coalesce(p.fee, 0),
    coalesce(r.agent, 0), coalesce(r.fee, 0)
FROM (
    SELECT e.node_id, min(e.id) AS first_id,
        max(e.credit_account_id) FILTER (WHERE e.kind = 'node_payment') AS wallet_id,
        sum(e.amount) FILTER (WHERE e.kind = 'node_payment')::bigint AS agent,
        sum(e.amount) FILTER (WHERE e.kind = 'protocol_fee')::bigint AS fee
    FROM callboard.escrow s JOIN callboard.entry e ON e.debit_account_id = s.account_id
    WHERE s.workflow_id = %(workflow)s::uuid AND e.kind IN ('node_payment', 'protocol_fee')
    GROUP BY e.node_id
) p
LEFT JOIN callboard.account a ON a.id = p.wallet_id
LEFT JOIN callboard.node n ON n.workflow_id = %(workflow)s::uuid AND n.name = p.node_id
LEFT JOIN (
    SELECT e.node_id,
        sum(e.amount) FILTER (WHERE e.kind <> 'fee_refund')::bigint AS agent,
        sum(e.amount) FILTER (WHERE e.kind = 'fee_refund')::bigint AS fee
    FROM callboard.entry e WHERE e.workflow_id = %(workflow)s::uuid AND {_REFUNDS}
    GROUP BY e.node_id
) r ON r.node_id = p.node_id
ORDER BY p.first_id
"""
_LOCKS: Final = """
SELECT name, attempt, stake_micro FROM callboard.node
WHERE workflow_id = %(workflow)s::uuid AND agent_did = %(agent)s AND stake_micro > 0
    AND name = coalesce(%(node)s::text, name)
ORDER BY name
"""

_NODE: Final = """
SELECT w.payer_did, n.agent_did, n.attempt, n.stake_micro
FROM callboard.node n JOIN callboard.workflow w ON w.id = n.workflow_id
WHERE n.workflow_id = %(workflow)s::uuid AND n.name = %(node)s
"""


async def load_grounds(
    connection: Connection, command: GroundedCommand
) -> tuple[Grounds | None, set[str]]:
    """Return what a command stands on, None for what is not known, and the accounts it needs."""
    if isinstance(command, CreateInvoice):
        return await _invoice_grounds(connection, command), set()
    if isinstance(command, RebuildReputation):
        return ReputationGrounds(await load_compared(connection)), set()
    if isinstance(command, SlashStake):
        return await _slash_grounds(connection, command)
    grounds = await _dispute_grounds(connection, command.dispute_id)
    if grounds is None or grounds.payer_did is None:
        return grounds, set()
    addresses = {wallet_address(grounds.payer_did)}
    agents = {line.agent_did for line in grounds.disputed_lines()}
    for did in agents | ({grounds.agent_did} if grounds.agent_did is not None else set()):
        addresses |= {wallet_address(did), stake_address(did), stake_locked_address(did)}
    return grounds, addresses


async def _invoice_grounds(connection: Connection, command: CreateInvoice) -> InvoiceGrounds:
    """Read what stands already; then, unless that is the answer, payments and refunds."""
    start_ms, end_ms = command.period_start_ms, command.period_end_ms
    values = {
        "payer": command.payer_did,
        "wallet": wallet_address(command.payer_did),
        "workflow": command.workflow_id,
        "start": start_ms,
        "end": end_ms,
        "from": start_ms - _REACH_BACK_MS,
        "until": end_ms + _REACH_AHEAD_MS,
    }
    is_of_workflow = command.workflow_id is not None
    for invoice_id, known_start_ms, known_end_ms, _ in await _rows(connection, _STANDING, values):
        if is_of_workflow or (known_start_ms, known_end_ms) == (start_ms, end_ms):
            return InvoiceGrounds(same_id=invoice_id)
        return InvoiceGrounds(overlapping_id=invoice_id)
    is_over = True
    if is_of_workflow:
        ((start_ms, ended_ms),) = await _rows(connection, _LIFE, values)
        is_over = ended_ms is not None
        end_ms = max(start_ms, ended_ms or 0) + 1
    payments = await _rows(
        connection, _PAYMENTS_OF_WORKFLOW if is_of_workflow else _PAYMENTS_OF_PERIOD, values
    )
    refunds = await _rows(
        connection, _REFUNDS_OF_WORKFLOW if is_of_workflow else _REFUNDS_OF_PERIOD, values
    )
    entries = int(payments[0][3]) if payments else 0
    return InvoiceGrounds(
        payments=tuple(Billable(row[0], row[1]) for row in payments if row[2]),
        refunds=tuple(Billable(row[0], row[1]) for row in refunds if row[2]),
        is_complete=max(entries, len(refunds)) <= ENTRIES_MAX,
        period_start_ms=start_ms,
        period_end_ms=end_ms,
        is_over=is_over,
        invoiced=sum(not row[2] for row in (*payments, *refunds)),
    )


async def _dispute_grounds(connection: Connection, dispute_id: str) -> DisputeGrounds | None:
    found = await _rows(connection, _DISPUTE, {"dispute": dispute_id})
    if not found:
        return None
    (row,) = found
    lines = await _rows(connection, _LINES, {"workflow": row[1]}) if row[1] is not None else []
    status, workflow_id, complainant_did, respondent_did, node_id, dispute_type, payer_did = row
    disputed = {"workflow": workflow_id, "agent": respondent_did, "node": node_id}
    locks = await _rows(connection, _LOCKS, disputed)
    return DisputeGrounds(
        status,
        workflow_id,
        complainant_did,
        respondent_did,
        node_id,
        dispute_type,
        payer_did,
        tuple(
            PaidLine(line, agent_did, PaymentSplit(agent, fee), PaymentSplit(back, fee_back))
            for line, agent_did, agent, fee, back, fee_back in lines
        ),
        tuple((name, attempt, micro) for name, attempt, micro in locks),
    )


async def _slash_grounds(
    connection: Connection, command: SlashStake
) -> tuple[SlashGrounds | None, set[str]]:
    place = {"workflow": command.workflow_id, "node": command.node}
    found = [SlashGrounds(*row) for row in await _rows(connection, _NODE, place)]
    did = command.agent_did
    addresses = {stake_address(did), stake_locked_address(did)}
    for grounds in found:
        return grounds, addresses | {wallet_address(grounds.payer_did)}
    return None, set()


async def _rows(
    connection: Connection, query: str, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query.encode(), values)
    return await cursor.fetchall()
