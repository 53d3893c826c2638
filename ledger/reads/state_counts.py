"""Gauges of stored rows for the metrics: unfinished work, held money, sizes of the ledger.

Only unfinished rows are counted, by their indexes; finished rows are never scanned. Reference:
operations.md (Metrics).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.metric_families import Key
from core.money import MICRO_PER_CREDIT
from core.peers.routing import status_of
from core.records.statuses import PeerStatus
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from ledger.features.peers import present_peers
from ledger.reads.reader import LedgerReader

_WORKFLOWS: Final = sql.text("""
SELECT status, count(*) AS found, count(quarantined_ms) AS quarantined
FROM callboard.workflow WHERE completed_ms IS NULL GROUP BY status
""")
_NODES: Final = sql.text("""
SELECT n.status, count(*) AS found
FROM callboard.workflow w JOIN callboard.node n ON n.workflow_id = w.id
WHERE w.completed_ms IS NULL GROUP BY n.status
""")
_MONEY: Final = sql.text("""
SELECT h.entry_seq, h.audit_seq,
    (SELECT -balance FROM callboard.account WHERE address = 'world') AS issued,
    (SELECT coalesce(sum(balance), 0)::bigint FROM callboard.account
        WHERE address IN (SELECT 'wallet:' || clearing_did FROM callboard.peer)) AS cleared,
    held.found, held.micro
FROM callboard.head h, (
    SELECT count(*) AS found, coalesce(sum(a.balance), 0)::bigint AS micro
    FROM callboard.escrow s JOIN callboard.account a ON a.id = s.account_id
    WHERE s.status = 'held') held
""")
_CHECKPOINT: Final = sql.text(
    "SELECT size, created_ms FROM callboard.checkpoint ORDER BY size DESC LIMIT 1"
)


async def state_counts(reader: LedgerReader) -> dict[Key, float]:
    """Return the current values of the gauges.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE, OVERLOADED; the values cannot be read.
    """
    (money,) = await reader.rows(_MONEY)
    found: dict[Key, float] = {
        **{("callboard_workflows", one): 0 for one in WorkflowStatus if not is_terminal(one)},
        **{("callboard_nodes", one): 0 for one in NodeStatus},
        **{("callboard_peers", one): 0 for one in PeerStatus},
        ("callboard_clearing_credits",): money["cleared"] / MICRO_PER_CREDIT,
        ("callboard_workflows_quarantined",): 0,
        ("callboard_ledger_entries",): money["entry_seq"],
        ("callboard_audit_entries",): money["audit_seq"],
        ("callboard_issued_credits",): money["issued"] / MICRO_PER_CREDIT,
        ("callboard_escrows_held",): money["found"],
        ("callboard_escrow_held_credits",): money["micro"] / MICRO_PER_CREDIT,
    }
    for row in await reader.rows(_WORKFLOWS):
        found["callboard_workflows", row["status"]] = row["found"]
        found["callboard_workflows_quarantined",] += row["quarantined"]
    for row in await reader.rows(_NODES):
        found["callboard_nodes", row["status"]] = row["found"]
    for row in await present_peers(reader):
        found["callboard_peers", status_of(row["heard_ms"])] += 1
    for row in await reader.rows(_CHECKPOINT):
        found["callboard_audit_checkpoint_size",] = row["size"]
        found["callboard_audit_checkpoint_timestamp_seconds",] = row["created_ms"] / 1_000
    return found
