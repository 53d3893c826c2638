"""Who may see and collect the money of an agent besides the agent itself, and what is disputed.

The owner of a proven claim may. The owner of an unproven one may where the DID is nobody's wallet:
it had no account when it was claimed, and it has no keys and no agents of its own.
Spec: contract.md section 6 (Ledger). Decision 0305.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader

_IS_OWNERS: Final = """(a.proven_by IS NOT NULL OR NOT (
    EXISTS (SELECT FROM callboard.api_key k WHERE k.owner_did = a.did)
    OR EXISTS (SELECT FROM callboard.agent o WHERE o.owner_did = a.did)
    OR EXISTS (
        SELECT FROM callboard.account c
        WHERE c.address IN ('wallet:' || a.did, 'stake:' || a.did)
            AND c.created_ms < a.registered_ms)))"""
_OWNER: Final = sql.text(
    f"SELECT a.owner_did, {_IS_OWNERS} AS is_owners FROM callboard.agent a WHERE a.did = :did"
)
_AGENTS: Final = (
    f"SELECT a.did FROM callboard.agent a WHERE a.owner_did = :owner_did AND {_IS_OWNERS}"
)
# The payments to an agent that an open dispute is about, less what was refunded of them.
_DISPUTED: Final = sql.text(
    """
    WITH own AS (SELECT id FROM callboard.account WHERE address = 'wallet:' || :did),
    paid AS (
        SELECT DISTINCT e.workflow_id, e.node_id, e.amount
        FROM callboard.dispute d
        JOIN callboard.entry e ON e.workflow_id = d.workflow_id AND e.kind = 'node_payment'
            AND e.node_id = coalesce(d.node_id, e.node_id)
        JOIN own ON own.id = e.credit_account_id
        WHERE d.status = 'open' AND (
            d.complainant_did = :did OR d.respondent_did = :did OR d.respondent_did IS NULL)
    )
    SELECT coalesce(sum(p.amount - coalesce((
        SELECT sum(r.amount) FROM callboard.entry r JOIN own ON own.id = r.debit_account_id
        WHERE r.kind IN ('refund', 'fee_refund', 'stake_refund')
            AND r.workflow_id = p.workflow_id AND r.node_id = p.node_id), 0)), 0)::bigint AS micro
    FROM paid p
    """
)


class MoneyOwner(NamedTuple):
    """The owner of an agent; `is_owners`: the agent's money is the owner's to see and collect."""

    owner_did: str
    is_owners: bool


async def money_owner(reader: LedgerReader, did: str) -> MoneyOwner | None:
    """Return the owner of an agent, None for a DID that is no agent."""
    rows = await reader.rows(_OWNER, {"did": did})
    return MoneyOwner(**rows[0]) if rows else None


def money_agents(owner_did: str) -> sql.Select[Any]:
    """Return the query for the agents whose money an owner may see."""
    found = sql.text(_AGENTS).bindparams(owner_did=owner_did).columns(sql.column("did"))
    return sql.select(found.subquery().c.did)


async def disputed_micro(reader: LedgerReader, did: str) -> int:
    """Return what was paid to an agent and is under an open dispute, micro-credits."""
    (row,) = await reader.rows(_DISPUTED, {"did": did})
    return int(row["micro"])
