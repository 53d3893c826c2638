"""Reads for the commands that stand on stored rows (ledger/writer/barrier_reads.py).

Run by the writer, in the moment it plans the command, so that nothing can come between. Every
statement is bounded. money.md (Disputes and refunds, Invoices); decisions
refunds-disputes-invoices-quotas and signed-requests-and-claims.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from core.market.settlement import PaymentSplit
from ledger.accounts.account_commands import CollectCredits
from ledger.accounts.agent_money import IS_OWNERS
from ledger.commands import Command
from ledger.disputes.dispute_commands import ResolveDispute
from ledger.invoices.invoice_commands import CreateInvoice
from ledger.stakes.stake_commands import SlashStake
from ledger.writer.barrier_reads import (
    BarrierReads,
    CollectReads,
    DisputeReads,
    InvoiceReads,
    PaidLine,
    SlashReads,
)
from ledger.writer.state_cache import stake_address, stake_locked_address, wallet_address

Connection = psycopg.AsyncConnection[Any]

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
_OWNER: Final = f"""
SELECT a.owner_did, {IS_OWNERS}, (
    SELECT coalesce(sum(e.amount), 0)::bigint
    FROM callboard.entry e JOIN callboard.account c ON c.id = e.credit_account_id
    WHERE a.proven_by IS NULL AND c.address = 'wallet:' || a.did
        AND e.kind IN ('deposit', 'inheritance'))
FROM callboard.agent a WHERE a.did = %(did)s
"""
# The payments to an agent that an open dispute is about, less what was refunded of them.
_DISPUTED: Final = """
WITH own AS (SELECT id FROM callboard.account WHERE address = 'wallet:' || %(did)s),
paid AS (
    SELECT DISTINCT e.workflow_id, e.node_id, e.amount
    FROM callboard.dispute d
    JOIN callboard.entry e ON e.workflow_id = d.workflow_id AND e.kind = 'node_payment'
        AND e.node_id = coalesce(d.node_id, e.node_id)
    JOIN own ON own.id = e.credit_account_id
    WHERE d.status = 'open' AND (
        d.complainant_did = %(did)s OR d.respondent_did = %(did)s OR d.respondent_did IS NULL)
)
SELECT coalesce(sum(p.amount - coalesce((
    SELECT sum(r.amount) FROM callboard.entry r JOIN own ON own.id = r.debit_account_id
    WHERE r.kind IN ('refund', 'fee_refund', 'stake_refund')
        AND r.workflow_id = p.workflow_id AND r.node_id = p.node_id), 0)), 0)::bigint AS micro
FROM paid p
"""


async def load_barrier_reads(
    connection: Connection, command: Command
) -> tuple[BarrierReads | None, set[str]]:
    """Return what a command stands on, None for what is not known, and the accounts it needs."""
    if isinstance(command, CreateInvoice):
        return await _invoice_reads(connection, command), set()
    if isinstance(command, SlashStake):
        return await _slash_reads(connection, command)
    if isinstance(command, CollectCredits):
        return await _collect_reads(connection, command.agent_did)
    assert isinstance(command, ResolveDispute), command
    stored = await _dispute_reads(connection, command.dispute_id)
    if stored is None or stored.payer_did is None:
        return stored, set()
    addresses = {wallet_address(stored.payer_did)}
    agents = {line.agent_did for line in stored.disputed_lines()}
    for did in agents | ({stored.agent_did} if stored.agent_did is not None else set()):
        addresses |= {wallet_address(did), stake_address(did), stake_locked_address(did)}
    return stored, addresses


async def _invoice_reads(connection: Connection, command: CreateInvoice) -> InvoiceReads:
    values = {
        "payer": command.payer_did,
        "workflow": command.workflow_id,
        "start": command.period_start_ms,
        "end": command.period_end_ms,
        "entry": command.read_entry_id,
    }
    is_of_workflow = command.workflow_id is not None
    standing = _STANDING_WORKFLOW if is_of_workflow else _STANDING_PERIOD
    for invoice_id, start_ms, end_ms in await _rows(connection, standing, values):
        if is_of_workflow or (start_ms, end_ms) == (values["start"], values["end"]):
            return InvoiceReads(same_id=invoice_id)
        return InvoiceReads(overlapping_id=invoice_id)
    since = _SINCE_WORKFLOW if is_of_workflow else _SINCE_PERIOD
    ((is_stale,),) = await _rows(connection, since, values)
    return InvoiceReads(is_stale=is_stale)


async def _dispute_reads(connection: Connection, dispute_id: str) -> DisputeReads | None:
    found = await _rows(connection, _DISPUTE, {"dispute": dispute_id})
    if not found:
        return None
    (row,) = found
    lines = await _rows(connection, _LINES, {"workflow": row[1]}) if row[1] is not None else []
    status, workflow_id, complainant_did, respondent_did, node_id, dispute_type, payer_did = row
    disputed = {"workflow": workflow_id, "agent": respondent_did, "node": node_id}
    locks = await _rows(connection, _LOCKS, disputed)
    return DisputeReads(
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


async def _slash_reads(
    connection: Connection, command: SlashStake
) -> tuple[SlashReads | None, set[str]]:
    place = {"workflow": command.workflow_id, "node": command.node}
    found = [SlashReads(*row) for row in await _rows(connection, _NODE, place)]
    did = command.agent_did
    addresses = {stake_address(did), stake_locked_address(did)}
    for stored in found:
        return stored, addresses | {wallet_address(stored.payer_did)}
    return None, set()


async def _collect_reads(connection: Connection, did: str) -> tuple[CollectReads | None, set[str]]:
    values = {"did": did}
    for owner_did, is_owners, given_micro in await _rows(connection, _OWNER, values):
        ((disputed_micro,),) = await _rows(connection, _DISPUTED, values)
        addresses = {wallet_address(did), wallet_address(owner_did)}
        return CollectReads(owner_did, is_owners, disputed_micro, given_micro), addresses
    return None, set()


async def _rows(
    connection: Connection, query: str, values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query.encode(), values)
    return await cursor.fetchall()
