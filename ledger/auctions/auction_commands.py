"""Bids in the rounds of auctions.

Plain values, as `ledger/commands.py` says. Reference: money.md (Auctions).
"""

from __future__ import annotations

from typing import Final

from core.ids import composed_key
from ledger.authority import OwnersCommand
from ledger.commands import Command

# The round of bids that no round of an auction counts.
NO_ROUND: Final = 0


class PlaceBid(OwnersCommand, frozen=True, kw_only=True):
    """Bid for a node in the open round of its auction; the first bid of an agent is final.

    `stake_offered_micro` None: as much as is asked. `is_admin` lets anybody act for the agent.
    Rejections: NOT_FOUND (the agent), FORBIDDEN, CONFLICT (no open round, late, a second bid, a
    round full of lower bids), INVALID_REQUEST above the reserve, KEY_REUSED. Result:
    {"receivedMs": int}.
    """

    request_hash: bytes
    agent_did: str
    workflow_id: str
    node: str
    round: int
    amount_micro: int
    eta_ms: int | None
    stake_offered_micro: int | None


class KeepBid(OwnersCommand, frozen=True, kw_only=True):
    """Keep a bid for a node that takes none now: it is recorded, and decides nothing.

    The first such bid of an agent is final. `is_admin` lets anybody act for the agent. `is_sealed`:
    the node is auctioned, so the audit entry does not say how much is bid.
    Rejections: NOT_FOUND (the agent), FORBIDDEN, ESCROW_RELEASED (the workflow has ended), CONFLICT
    (the node has as many as are kept), KEY_REUSED. Result: {"receivedMs": int}.
    """

    request_hash: bytes
    agent_did: str
    workflow_id: str
    node: str
    amount_micro: int
    eta_ms: int | None
    stake_offered_micro: int | None
    is_sealed: bool = False


class EndBidding(Command, frozen=True, kw_only=True):
    """Ask for a round's live bids; by the writer's clock none comes after them.

    Before its time it is refused and not stored: OVERLOADED, {"retryAfterS"}. Other rejections:
    CONFLICT (no such open round). Result: {"bids": [{agentDid, amountMicro, etaMs,
    stakeOfferedMicro, receivedMs}]}.
    """

    member: str
    shard_epoch: int
    workflow_id: str
    node: str
    round: int


def bid_key(workflow_id: str, node: str, round_: int, agent_did: str) -> str:
    """Return the key under which an agent bids once in a round (money.md, Auctions)."""
    return composed_key("bid", workflow_id, node, str(round_), agent_did)


def bids_key(workflow_id: str, node: str, round_: int) -> str:
    """Return the key under which a round's bids are sent: once it stands, no bid is taken."""
    return composed_key("bids", workflow_id, node, str(round_))
