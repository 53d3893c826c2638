"""The money of peers: payments for their work, and transfers out of a clearing account.

Reference: money.md (Work of peers).
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql

from core.ids import event_id
from core.money import MICRO_MAX, credits_text
from ledger.authority import AuthorizedCommand
from ledger.features.accounts import collect
from ledger.reads.reader import LedgerReader, RowDict
from ledger.writer.batch import Batch, Result, conflict
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import wallet_address

# Attempts at a peer that ended in a period, each with its payment. For a success this is the
# payment of the node. For another outcome it is the payment of the peer's verification that ended
# with the attempt.
_ORDERS: Final = """
SELECT a.id, a.workflow_id, a.node, a.attempt, a.outcome, a.started_ms, a.completed_ms,
    coalesce(e.amount, 0) AS received_micro, coalesce(e.amount, 0) + coalesce(f.amount, 0)
        AS paid_micro,
    CASE WHEN n.attempt = a.attempt THEN n.metrics -> 'peer' ->> 'workflowId' END
        AS peer_workflow_id
FROM callboard.attempt a
JOIN callboard.node n ON n.workflow_id = a.workflow_id AND n.name = a.node
LEFT JOIN LATERAL (
    SELECT v.node || '#verify' || CASE v.attempt WHEN 1 THEN '' ELSE v.attempt::text END AS line
    FROM callboard.attempt v
    WHERE v.workflow_id = a.workflow_id AND v.node = a.node AND v.kind = 'verify'
        AND v.agent_did = a.agent_did AND v.completed_ms = a.completed_ms
    ORDER BY v.attempt LIMIT 1) r ON a.outcome <> 'success'
LEFT JOIN callboard.entry e ON e.workflow_id = a.workflow_id AND e.kind = 'node_payment'
    AND e.node_id = CASE a.outcome WHEN 'success' THEN a.node ELSE r.line END
LEFT JOIN LATERAL (
    SELECT x.amount FROM callboard.entry x
    WHERE x.debit_account_id = e.debit_account_id AND x.node_id = e.node_id
        AND x.kind = 'protocol_fee' LIMIT 1) f ON true
WHERE a.agent_did = :did AND starts_with(a.agent_did, 'did:callboard:clearing-')
    AND a.kind = 'primary' AND a.completed_ms >= :start AND a.completed_ms < :end
"""
_PAGE: Final = sql.text(f"{_ORDERS} AND a.id < :before ORDER BY a.id DESC LIMIT :most")
ENDED_ORDERS: Final = sql.text(f"{_ORDERS} ORDER BY a.completed_ms, a.id LIMIT :most")
_OPEN: Final = sql.text(
    """
    SELECT n.workflow_id, n.name AS node, n.attempt
    FROM callboard.workflow w JOIN callboard.node n ON n.workflow_id = w.id
    WHERE w.completed_ms IS NULL AND n.agent_did = :did AND n.status IN ('dispatched', 'running')
    """
)
_SUMS: Final = sql.text(
    "SELECT count(*) AS order_count, coalesce(sum(paid_micro), 0)::bigint AS paid_micro,"
    f" coalesce(sum(received_micro), 0)::bigint AS received_micro FROM ({_ORDERS}) o"
)
_ID_MAX: Final = 2**63 - 1


class SettlePeer(AuthorizedCommand, frozen=True, kw_only=True):
    """Move credits from a clearing account to the wallet of an operator.

    `amount_micro` None: the whole balance. Rejections: CONFLICT, the account holds less.
    Result: as for `CollectCredits`.
    """

    clearing_did: str
    amount_micro: int | None = None


def _add_reads(command: SettlePeer, read_set: ReadSet) -> None:
    read_set.wallets |= {command.clearing_did, command.actor_did}


@plans(SettlePeer, reads=_add_reads)
def plan_settle_peer(command: SettlePeer, batch: Batch) -> Result:
    """Move credits out of a clearing account."""
    did, owner_did = command.clearing_did, command.actor_did
    held_micro = batch.cache.balance(wallet_address(did))
    wanted_micro = command.amount_micro
    amount_micro = min(held_micro, MICRO_MAX) if wanted_micro is None else wanted_micro
    if not 0 < amount_micro <= held_micro:
        got = "nothing" if wanted_micro is None else f"{credits_text(amount_micro)} credits"
        held = credits_text(held_micro)
        raise conflict(f"cannot move {got}: {did} holds {held} credits")
    return collect(did, owner_did, amount_micro, "moved out of a clearing account", batch)


async def order_rows(
    reader: LedgerReader,
    clearing_did: str,
    start_ms: int,
    end_ms: int,
    *,
    limit: int,
    before_id: int | None = None,
) -> list[RowDict]:
    """Return a page of a clearing account's orders that ended in a period, newest first.

    Args:
        start_ms, end_ms: the period, Unix milliseconds; the end is excluded.
        before_id: the id of the last row of the previous page; None: the first page.
    """
    values = {"did": clearing_did, "start": start_ms, "end": end_ms, "most": limit}
    rows = await reader.rows(_PAGE, {**values, "before": before_id or _ID_MAX})
    return [{**row, "order_id": _order_id(row)} for row in rows]


async def ended_orders(
    reader: LedgerReader, clearing_did: str, start_ms: int, end_ms: int, *, limit: int
) -> dict[str, RowDict]:
    """Return a clearing account's orders that ended in a period by order id, oldest first."""
    values = {"did": clearing_did, "start": start_ms, "end": end_ms, "most": limit}
    return {_order_id(row): row for row in await reader.rows(ENDED_ORDERS, values)}


async def open_order_ids(reader: LedgerReader, clearing_did: str) -> set[str]:
    """Return the ids of a clearing account's orders whose attempts have not ended."""
    return {_order_id(row) for row in await reader.rows(_OPEN, {"did": clearing_did})}


async def order_sums(
    reader: LedgerReader, clearing_did: str, start_ms: int, end_ms: int
) -> dict[str, Any]:
    """Return the number of a clearing account's orders that ended in a period, and the sums of
    their payments."""
    (row,) = await reader.rows(_SUMS, {"did": clearing_did, "start": start_ms, "end": end_ms})
    return dict(row)


def _order_id(row: RowDict) -> str:
    return event_id(str(row["workflow_id"]), row["node"], row["attempt"])
