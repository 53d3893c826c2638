"""Committed auctions and bids. Reference: money.md (Auctions)."""

from __future__ import annotations

import sqlalchemy as sql

from ledger.reads.agent_pages import is_shown
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent, auction, bid


async def auction_rows(reader: LedgerReader, workflow_id: str, node: str) -> list[RowDict]:
    """Return the rounds of a node's auction, the first one first."""
    query = (
        sql.select(auction)
        .where(auction.c.workflow_id == workflow_id, auction.c.node == node)
        .order_by(auction.c.round)
    )
    return await reader.rows(query)


async def bid_rows(
    reader: LedgerReader, workflow_id: str, node: str, viewer: str | None
) -> list[RowDict]:
    """Return the bids of a node's closed rounds, the lowest first; sealed ones stay sealed.

    `owner_did`: who owns the agent now.

    Args:
        viewer: the DID from which bids of hidden agents are left out; None: an administrator.
    """
    query = (
        sql.select(bid, agent.c.owner_did)
        .outerjoin(agent, agent.c.did == bid.c.agent_did)
        .join(
            auction,
            (auction.c.workflow_id == bid.c.workflow_id)
            & (auction.c.node == bid.c.node)
            & (auction.c.round == bid.c.round),
        )
        .where(
            bid.c.workflow_id == workflow_id,
            bid.c.node == node,
            auction.c.status != "open",
            is_shown("callboard.bid.agent_did", viewer),
        )
        .order_by(bid.c.round, bid.c.amount_micro, bid.c.received_ms, bid.c.agent_did)
    )
    return await reader.rows(query)


async def can_bid(
    reader: LedgerReader, did: str, capability_id: str, workflow_id: str, node: str
) -> bool:
    """Say whether an agent of this DID, or owned by it, offers the capability or has bid."""
    own = sql.select(agent.c.did).where((agent.c.did == did) | (agent.c.owner_did == did))
    offering = own.where(
        agent.c.status == "active", agent.c.capability_ids.contains([capability_id])
    )
    bidding = sql.select(bid.c.agent_did).where(
        bid.c.workflow_id == workflow_id, bid.c.node == node, bid.c.agent_did.in_(own)
    )
    return bool(await reader.rows(sql.union_all(offering, bidding).limit(1)))
