"""Planning the stakes that live bids lock, from their placing until their round closes.

A bid locks the most that it may require, or all that is free when that is less, so a bidder cannot
withdraw the stake that its award needs. The audit events of these locks name no amount, since that
would tell what is bid; the agent's own entries tell it.
Reference: money.md (Stakes, Auctions).
"""

from __future__ import annotations

from core.market.auction import Bid
from core.records.audit import AuditEventType
from ledger.stakes.stake_plan import stake_accounts, stake_parts
from ledger.writer.batch import Batch
from ledger.writer.state_cache import OpenRound

Place = tuple[str, str]


def lock_bid(place: Place, round_: OpenRound, bid: Bid, batch: Batch) -> None:
    """Lock what a bid locks (`Bid.stake_locked_micro`), if anything."""
    _move(AuditEventType.STAKE_LOCKED, place, round_, bid, batch)


def free_bid(place: Place, round_: OpenRound, bid: Bid, batch: Batch) -> None:
    """Free what a bid has locked.

    A refund may have taken from the locked stake since: then less is left than was locked.
    """
    _move(AuditEventType.STAKE_UNLOCKED, place, round_, bid, batch)


def free_stake_micro(agent_did: str, batch: Batch) -> int:
    """Return the free stake of an agent, micro-credits."""
    return stake_parts(agent_did, batch)[0]


def _move(event: AuditEventType, place: Place, round_: OpenRound, bid: Bid, batch: Batch) -> None:
    if not bid.stake_locked_micro:
        return
    workflow_id, node = place
    free, locked = stake_accounts(bid.agent_did, batch)
    is_lock = event is AuditEventType.STAKE_LOCKED
    debit, credit = (free, locked) if is_lock else (locked, free)
    micro = min(bid.stake_locked_micro, debit.balance)
    said = ("stake_unlock", "stake of a bid free again")
    if is_lock:
        said = ("stake_lock", "stake at risk with a bid")
    entry_ids = batch.transfer(debit, credit, micro, *said, workflow_id=workflow_id, node_id=node)
    batch.record(
        event,
        ("stake", bid.agent_did),
        workflowId=workflow_id,
        nodeId=node,
        round=round_.number,
        entryIds=entry_ids,
    )
