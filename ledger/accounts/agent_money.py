"""Who may see and collect the money of an agent besides the agent itself.

The owner of a proven claim, or of an unproven one if nobody else uses the DID: it had no account
when it was claimed, and has no keys, agents and workflows of its own. Before a proof the owner gets
neither deposits nor inheritances: they were meant for the person behind the DID. Decision
signed-requests-and-claims.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader

IS_OWNERS: Final = """(a.proven_by IS NOT NULL OR NOT (
    EXISTS (SELECT FROM callboard.api_key k WHERE k.owner_did = a.did)
    OR EXISTS (SELECT FROM callboard.agent o WHERE o.owner_did = a.did)
    OR EXISTS (SELECT FROM callboard.workflow w WHERE w.payer_did = a.did)
    OR EXISTS (
        SELECT FROM callboard.account c
        WHERE c.address IN ('wallet:' || a.did, 'stake:' || a.did)
            AND c.created_ms <= a.registered_ms)))"""
_OWNER: Final = sql.text(
    f"SELECT a.owner_did, {IS_OWNERS} AS is_owners FROM callboard.agent a WHERE a.did = :did"
)
_AGENTS: Final = (
    f"SELECT a.did FROM callboard.agent a WHERE a.owner_did = :owner_did AND {IS_OWNERS}"
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
