"""Planning auctions: rounds are opened and closed with a node's steps, bids come between.

Bids are sealed: until the round is closed, the chain says who has bid and not how much; of a bid
for an auctioned node that no round counts it never does. Standing bids it counts. Who wins is
decided by the node's owner and recorded here. A live bid locks stake until its round closes.
Reference: money.md (Auctions). Decision auctions.
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode, ServiceError
from core.market.auction import (
    KEPT_BIDS_MAX,
    AuctionTerms,
    Bid,
    bid_problem,
    live_lock_micro,
)
from core.money import credits_text
from core.records.audit import AuditEventType
from core.workflow.events import AuctionClosed, AuctionOpened
from ledger.auctions.auction_commands import NO_ROUND, EndBidding, KeepBid, PlaceBid
from ledger.auctions.bid_locks import free_bid, free_stake_micro, lock_bid
from ledger.tables.work_tables import AUCTIONS, BIDS, CLOSED_AUCTIONS
from ledger.workflows.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import OpenRound


def record_auctions(command: PublishWorkflow | AdvanceWorkflow, batch: Batch) -> None:
    """Add the rows and audit records of the rounds that a step opens and closes."""
    for record in command.records:
        match record:
            case AuctionOpened():
                _open(command, record, batch)
            case AuctionClosed():
                _close(command, record, batch)
            case _:
                pass


def add_bid_reads(command: PlaceBid, read_set: ReadSet) -> None:
    """Add what is looked at before a bid is taken."""
    read_set.workflow_ids.add(command.workflow_id)
    read_set.rounds.add((command.workflow_id, command.node))
    read_set.add_stake(command.agent_did)
    read_set.agent_dids.add(command.agent_did)
    read_set.trusted.add(command.agent_did)


def add_kept_bid_reads(command: KeepBid, read_set: ReadSet) -> None:
    """Add what is looked at before a bid is kept."""
    read_set.workflow_ids.add(command.workflow_id)
    read_set.kept_bids.add((command.workflow_id, command.node))
    read_set.agent_dids.add(command.agent_did)
    read_set.trusted.add(command.agent_did)


def add_end_bidding_reads(command: EndBidding, read_set: ReadSet) -> None:
    """Add what is looked at before a round's bids are sent to its owner."""
    read_set.rounds.add((command.workflow_id, command.node))


@plans(PlaceBid, reads=add_bid_reads)
def plan_place_bid(command: PlaceBid, batch: Batch) -> Result:
    """Store a sealed bid.

    Steps: (1) the agent is there, and the caller may bid for it, (2) the round is open, (3) the bid
    is good, (4) the round holds it, (5) it locks stake. A refusal leaves no trace: the key is the
    agent's, and others may have tried it. The row of a bid that a lower one displaces stands, for
    its bidder to see; its stake is free again.
    """
    _check_bidder(command, batch)  # (1)
    round_ = _open_round(command.workflow_id, command.node, command.round, batch)  # (2)
    terms = AuctionTerms(round_.reserve_micro, round_.closes_ms, 0)
    received_ms = max(batch.clock_ms, round_.closes_ms) if round_.is_over else batch.clock_ms
    refused = bid_problem(
        command.amount_micro,
        terms,
        received_ms=received_ms,
        has_bid=command.agent_did in round_.bids,
    )
    if refused is not None:  # (3)
        raise Refusal(refused.code, refused.detail, is_stored=False)
    locked_micro = live_lock_micro(
        command.amount_micro,
        stake_bps=round_.stake_bps,
        offered_micro=command.stake_offered_micro,
        free_micro=free_stake_micro(command.agent_did, batch),
    )
    bid = _build_bid(command, batch, locked_micro)
    displaced = round_.displaced_by(bid)  # (4)
    if isinstance(displaced, ServiceError):
        raise Refusal(displaced.code, displaced.detail, is_stored=False)
    round_.hold(bid, displaced)
    place = (command.workflow_id, command.node)
    lock_bid(place, round_, bid, batch)  # (5)
    if displaced is not None:
        free_bid(place, round_, displaced, batch)
    _store_bid(command.workflow_id, command.node, command.round, bid, batch)
    batch.record(
        AuditEventType.BID_PLACED,
        ("workflow", command.workflow_id),
        nodeId=command.node,
        round=command.round,
        agentDid=command.agent_did,
    )
    return {"receivedMs": batch.clock_ms}


@plans(KeepBid, reads=add_kept_bid_reads, is_asked_again=True)
def plan_keep_bid(command: KeepBid, batch: Batch) -> Result:
    """Store a bid that no round counts.

    Steps: (1) the agent is there, and the caller may bid for it, (2) the workflow has not ended,
    (3) the node keeps fewer than it may. Of an auctioned node the entry names the bidder alone: the
    amount would tell its payer what the agent bids in the next round.
    """
    _check_bidder(command, batch)  # (1)
    escrow = batch.cache.escrows[command.workflow_id]
    if escrow is None or escrow.is_released:  # (2)
        raise Refusal(ErrorCode.ESCROW_RELEASED, "the workflow has ended", is_stored=False)
    place = (command.workflow_id, command.node)
    if batch.cache.kept_bids[place] >= KEPT_BIDS_MAX:  # (3)
        detail = f"the node already has {KEPT_BIDS_MAX} bids outside a round: no more are stored"
        raise conflict(detail, is_stored=False)
    batch.cache.kept_bids[place] += 1
    bid = _build_bid(command, batch)
    _store_bid(command.workflow_id, command.node, NO_ROUND, bid, batch)
    payload: dict[str, Any] = {
        "nodeId": command.node,
        "agentDid": command.agent_did,
        "isCounted": False,
    }
    if not command.is_sealed:
        payload["bidCredits"] = credits_text(command.amount_micro)
        if command.eta_ms is not None:
            payload["etaMs"] = command.eta_ms
        if command.stake_offered_micro is not None:
            payload["stakeOfferedCredits"] = credits_text(command.stake_offered_micro)
    batch.record(AuditEventType.BID_PLACED, ("workflow", command.workflow_id), **payload)
    return {"receivedMs": batch.clock_ms}


@plans(EndBidding, reads=add_end_bidding_reads, is_asked_again=True)
def plan_end_bidding(command: EndBidding, batch: Batch) -> Result:
    """Return the live bids of a round whose time is over."""
    round_ = _open_round(command.workflow_id, command.node, command.round, batch)
    if batch.clock_ms < round_.closes_ms:
        raise Refusal(ErrorCode.OVERLOADED, "the round is still open", retry_after_s=1)
    round_.is_over = True
    bids = [
        {
            "agentDid": bid.agent_did,
            "amountMicro": bid.amount_micro,
            "etaMs": bid.eta_ms,
            "stakeOfferedMicro": bid.stake_offered_micro,
            "receivedMs": bid.received_ms,
            **({"stakeLockedMicro": bid.stake_locked_micro} if bid.stake_locked_micro else {}),
        }
        # A writer that has loaded the round says the same as one that has taken its bids.
        for bid in sorted(round_.bids.values(), key=lambda bid: (bid.received_ms, bid.agent_did))
    ]
    return {"bids": bids}


def _check_bidder(command: PlaceBid | KeepBid, batch: Batch) -> None:
    """Refuse a bid for an agent that is not there, or that the caller may not bid for."""
    agent = batch.cache.agents.get(command.agent_did)
    if agent is None or not agent.is_active:
        raise not_found(f"no agent {command.agent_did} is registered", is_stored=False)
    if command.actor_did not in (command.agent_did, agent.owner_did) and not command.is_admin:
        raise forbidden(
            f"only {command.agent_did}, its owner or an administrator may bid for it",
            is_stored=False,
        )
    if batch.cache.is_revoked(command.agent_did, batch.clock_ms):
        raise forbidden(f"{command.agent_did} is revoked", is_stored=False)


def _open_round(workflow_id: str, node: str, number: int, batch: Batch) -> OpenRound:
    known = batch.cache.rounds.get((workflow_id, node))
    if known is None or known.number != number:
        raise conflict("this round of the node's auction is not open", is_stored=False)
    return known


def _open(command: PublishWorkflow | AdvanceWorkflow, record: AuctionOpened, batch: Batch) -> None:
    place = (command.workflow_id, record.node)
    batch.cache.rounds[place] = OpenRound(
        record.round, record.reserve_micro, record.closes_ms, stake_bps=record.stake_bps
    )
    row_key = (command.workflow_id, record.node, record.round)
    batch.store(AUCTIONS, row_key, record, workflow_id=command.workflow_id)
    batch.record(
        AuditEventType.AUCTION_OPENED,
        ("workflow", command.workflow_id),
        nodeId=record.node,
        round=record.round,
        capabilityId=record.capability_id,
        reserveCredits=credits_text(record.reserve_micro),
        stakeBps=record.stake_bps,
        closesAtMs=record.closes_ms,
    )


def _close(command: PublishWorkflow | AdvanceWorkflow, record: AuctionClosed, batch: Batch) -> None:
    place = (command.workflow_id, record.node)
    round_ = batch.cache.rounds[place]
    held = {} if round_ is None else round_.bids
    batch.cache.rounds[place] = None
    status = "no_bids" if record.winner_did is None else "awarded"
    if record.is_cancelled:
        status = "cancelled"
    excluded = dict(record.excluded)
    row_key = (command.workflow_id, record.node, record.round)
    closed = {"workflow_id": command.workflow_id, "status": status, "excluded": excluded or None}
    batch.store(CLOSED_AUCTIONS, row_key, record, **closed)
    # In a full round a standing bid may be that of an agent whose live one was displaced: it has a
    # row already.
    is_full = round_ is not None and round_.highest() is not None
    for bid in record.bids:
        if bid.agent_did not in held and not is_full:  # a standing one, or of an earlier round
            _store_bid(command.workflow_id, record.node, record.round, bid, batch)
    live = [bid for bid in record.bids if not bid.is_standing]
    payload: dict[str, Any] = {
        "nodeId": record.node,
        "round": record.round,
        "status": status,
        "bids": [
            {
                "agentDid": bid.agent_did,
                "bidCredits": credits_text(bid.amount_micro),
                "isStanding": False,
                "excluded": excluded.get(bid.agent_did),
            }
            for bid in live
        ],
    }
    unlisted = len(record.bids) - len(live) + record.unlisted
    if unlisted:
        payload["unlistedBids"] = unlisted
    if record.winner_did is not None:
        assert record.price_micro is not None, record
        payload["winnerDid"] = record.winner_did
        payload["priceCredits"] = credits_text(record.price_micro)
    batch.record(AuditEventType.AUCTION_CLOSED, ("workflow", command.workflow_id), **payload)
    for bid in held.values():
        assert round_ is not None, record
        free_bid(place, round_, bid, batch)


def _build_bid(command: PlaceBid | KeepBid, batch: Batch, locked_micro: int = 0) -> Bid:
    agent = batch.cache.agents[command.agent_did]
    assert agent is not None, command
    return Bid(
        command.agent_did,
        command.amount_micro,
        command.eta_ms,
        command.stake_offered_micro,
        batch.clock_ms,
        stake_locked_micro=locked_micro,
        owner_did=agent.owner_did,
    )


def _store_bid(workflow_id: str, node: str, number: int, bid: Bid, batch: Batch) -> None:
    batch.store(
        BIDS,
        (workflow_id, node, number, bid.agent_did),
        bid,
        workflow_id=workflow_id,
        node=node,
        round=number,
        # By the clock that judges whether a bid is in time, not by the date of the batch.
        received_ms=batch.now_ms if bid.is_standing else bid.received_ms,
    )
