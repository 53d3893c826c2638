"""Auctions: rounds, sealed bids, and the stakes that bids lock.

Reference: money.md (Stakes, Auctions). Decision auctions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
import sqlalchemy as sql
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from core.ids import composed_key
from core.market.auction import (
    KEPT_BIDS_MAX,
    LIVE_BIDS_MAX,
    AuctionTerms,
    Bid,
    bid_problem,
    live_lock_micro,
)
from core.money import credits_text
from core.records.audit import AuditEventType
from core.workflow.events import AuctionClosed, AuctionOpened
from ledger.authority import OwnersCommand
from ledger.commands import Command
from ledger.connections.connect import columns_of, fetch
from ledger.features.stakes import stake_accounts, stake_parts
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.reads.agent_pages import IS_SHOWN
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import auction, typed
from ledger.tables.work_tables import AUCTIONS, BIDS, CLOSED_AUCTIONS
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, not_found
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import OpenRound, StateCache

# The round number of bids outside of any round (`KeepBid`).
NO_ROUND: Final = 0


class PlaceBid(OwnersCommand, frozen=True, kw_only=True):
    """Bid for a node in the open round of its auction. An agent's first bid in a round is final.

    `stake_offered_micro` None: as much as the round requires. `is_admin`: the caller may act for
    any agent.
    Rejections: NOT_FOUND (the agent), FORBIDDEN, CONFLICT (no open round, too late, a second bid, a
    round full of lower bids), INVALID_REQUEST above the reserve, KEY_REUSED.
    Result: {"receivedMs": int}.
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
    """Store a bid for a node that has no open round. It is recorded, and never wins.

    The first such bid of an agent for a node is final. `is_admin`: the caller may act for any
    agent.
    `is_sealed`: the node is auctioned, so the audit entry does not contain the amount.
    Rejections: NOT_FOUND (the agent), FORBIDDEN, ESCROW_RELEASED (the workflow has ended), CONFLICT
    (the node has the maximum of such bids), KEY_REUSED. Result: {"receivedMs": int}.
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
    """End the bidding of a round and return its live bids. Later bids are refused.

    Rejections: OVERLOADED with {"retryAfterS"}, not stored, before the round's time is over by the
    writer's clock; CONFLICT (the round is not open).
    Result: {"bids": [{agentDid, amountMicro, etaMs, stakeOfferedMicro, receivedMs}]}.
    """

    member: str
    shard_epoch: int
    workflow_id: str
    node: str
    round: int


def bid_key(workflow_id: str, node: str, round_: int, agent_did: str) -> str:
    """Return the key of an agent's only bid in a round. Reference: money.md (Auctions)."""
    return composed_key("bid", workflow_id, node, str(round_), agent_did)


def bids_key(workflow_id: str, node: str, round_: int) -> str:
    """Return the key of a round's `EndBidding`. Once the command is stored, the round accepts no
    bids."""
    return composed_key("bids", workflow_id, node, str(round_))


# Stakes that live bids lock until their round closes. A bid locks the largest stake that its award
# may require, or all unlocked stake if that is less. So a bidder cannot withdraw stake that the
# award needs. The audit events of these locks contain no amount, because it would reveal the bid;
# the agent can see the amount in its own entries.

Place = tuple[str, str]


def lock_bid(place: Place, round_: OpenRound, bid: Bid, batch: Batch) -> None:
    """Lock the stake of a bid (`Bid.stake_locked_micro`), if any."""
    _move(AuditEventType.STAKE_LOCKED, place, round_, bid, batch)


def unlock_bid(place: Place, round_: OpenRound, bid: Bid, batch: Batch) -> None:
    """Unlock the stake of a bid.

    If a refund has reduced the locked stake meanwhile, only the rest is unlocked.
    """
    _move(AuditEventType.STAKE_UNLOCKED, place, round_, bid, batch)


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


# Planning of auctions. Steps of a workflow open and close rounds; bids come in between. Bids are
# sealed: while a round is open, the audit log says who has bid, but not how much. If a node is
# auctioned, the audit log never contains the amount of a bid outside its rounds. The workflow's
# owner process decides who wins; the decision is recorded here.


def record_auctions(command: PublishWorkflow | AdvanceWorkflow, batch: Batch) -> None:
    """Add the rows and audit events of the rounds that a step opens and closes."""
    for record in command.records:
        match record:
            case AuctionOpened():
                _open(command, record, batch)
            case AuctionClosed():
                _close(command, record, batch)
            case _:
                pass


@plans(
    PlaceBid,
    reads=keys_of(
        workflow_ids="workflow_id", rounds="workflow_id node", stakes="agent_did",
        trusted="agent_did",
    ),
)  # fmt: skip
def plan_place_bid(command: PlaceBid, batch: Batch) -> Result:
    """Store a sealed bid.

    Steps: (1) check the agent and the caller's right, (2) find the open round, (3) check the bid,
    (4) place it in the round, (5) lock stake. Refusals are not stored, because the key does not
    depend on the caller: another caller may have used it for a refused bid. The row of a displaced
    bid stays, so that the bidder can read it. The stake of that bid is unlocked.
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
        free_micro=stake_parts(command.agent_did, batch)[0],
    )
    bid = _build_bid(command, batch, locked_micro)
    displaced = round_.displaced_by(bid)  # (4)
    if isinstance(displaced, ServiceError):
        raise Refusal(displaced.code, displaced.detail, is_stored=False)
    round_.hold(bid, displaced)
    place = (command.workflow_id, command.node)
    lock_bid(place, round_, bid, batch)  # (5)
    if displaced is not None:
        unlock_bid(place, round_, displaced, batch)
    _store_bid(command.workflow_id, command.node, command.round, bid, batch)
    batch.record(
        AuditEventType.BID_PLACED,
        ("workflow", command.workflow_id),
        nodeId=command.node,
        round=command.round,
        agentDid=command.agent_did,
    )
    return {"receivedMs": batch.clock_ms}


@plans(
    KeepBid,
    reads=keys_of(workflow_ids="workflow_id", kept_bids="workflow_id node", trusted="agent_did"),
    reuses_key=True,
)
def plan_keep_bid(command: KeepBid, batch: Batch) -> Result:
    """Store a bid outside of any round.

    Steps: (1) check the agent and the caller's right, (2) check that the workflow has not ended,
    (3) check the node's maximum of such bids. For an auctioned node the audit entry contains no
    amount, because the amount would tell the payer what the agent may bid in the next round.
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


@plans(EndBidding, reads=keys_of(rounds="workflow_id node"), reuses_key=True)
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
        # Sorted, so that a writer that has loaded the bids from rows returns the same order.
        for bid in sorted(round_.bids.values(), key=lambda bid: (bid.received_ms, bid.agent_did))
    ]
    return {"bids": bids}


def _check_bidder(command: PlaceBid | KeepBid, batch: Batch) -> None:
    """Refuse a bid if the agent is not active or is revoked, or the caller may not bid for it."""
    agent = batch.cache.agents.get(command.agent_did)
    if agent is None or not agent.is_active:
        raise not_found(f"no agent {command.agent_did} is registered", is_stored=False)
    if not command.may_act_for(command.agent_did, agent.owner_did):
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
    # In a full round, the agent of a standing bid may also have a displaced live bid, which has a
    # row already.
    is_full = round_ is not None and round_.highest() is not None
    for bid in record.bids:
        if bid.agent_did not in held and not is_full:  # standing, or from an earlier round
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
        unlock_bid(place, round_, bid, batch)


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
        # Live bids: the clock that decides whether a bid is in time, not the time of the batch.
        received_ms=batch.now_ms if bid.is_standing else bid.received_ms,
    )


# Loads open rounds with their bids, and the number of bids outside of any round.

# One lateral count per node, so that even a plan that was made when the table was small does not
# read the whole table.
COUNT_KEPT: Final = f"""
    SELECT p.workflow_id::text, p.node, b.count
    FROM unnest(%s::uuid[], %s::text[]) AS p(workflow_id, node) CROSS JOIN LATERAL (
        SELECT count(*) FROM callboard.bid
        WHERE workflow_id = p.workflow_id AND node = p.node AND round = {NO_ROUND}) AS b
"""


async def load_rounds(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, pairs: Sequence[tuple[str, str]]
) -> None:
    """Put the open round of each (workflow, node) pair into the cache; a pair without one stays
    None."""
    asked: dict[str, tuple[str, str]] = {}
    places = columns_of(pairs)
    opened = await fetch(
        connection,
        "SELECT a.workflow_id::text, a.node, a.round, a.reserve_micro, a.closes_ms, a.stake_bps"
        " FROM callboard.auction a JOIN unnest(%s::uuid[], %s::text[]) AS p(workflow_id, node)"
        " ON a.workflow_id = p.workflow_id AND a.node = p.node WHERE a.status = 'open'",
        places,
    )
    for workflow_id, node, number, reserve_micro, closes_ms, stake_bps in opened:
        cache.rounds[workflow_id, node] = OpenRound(
            number, reserve_micro, closes_ms, stake_bps=stake_bps
        )
        asked[bids_key(workflow_id, node, number)] = (workflow_id, node)
    # The bidding of a round has ended if its `EndBidding` is stored, even if this writer's clock is
    # behind.
    sent = "SELECT id FROM callboard.command WHERE id = ANY(%s)"
    for (key,) in await fetch(connection, sent, (list(asked),)):
        round_ = cache.rounds[asked[key]]
        assert round_ is not None, key
        round_.is_over = True
    bids = await fetch(
        connection,
        "SELECT b.workflow_id::text, b.node, b.agent_did, b.amount_micro, b.eta_ms,"
        " b.stake_offered_micro, b.received_ms, b.stake_locked_micro, b.owner_did"
        " FROM callboard.auction a"
        " JOIN unnest(%s::uuid[], %s::text[]) AS p(workflow_id, node)"
        " ON a.workflow_id = p.workflow_id AND a.node = p.node"
        # The bids that the round holds, in the order of `highest_held`.
        " CROSS JOIN LATERAL (SELECT l.*, coalesce(g.owner_did, '') AS owner_did,"
        " row_number() OVER (PARTITION BY coalesce(g.owner_did, l.agent_did)"
        ' ORDER BY l.amount_micro, l.received_ms, l.agent_did COLLATE "C") > 1 AS is_spare'
        " FROM callboard.bid l LEFT JOIN callboard.agent g ON g.did = l.agent_did"
        " WHERE l.workflow_id = a.workflow_id AND l.node = a.node AND l.round = a.round"
        " AND NOT l.is_standing"
        ' ORDER BY is_spare, amount_micro, received_ms, agent_did COLLATE "C" LIMIT %s) AS b'
        " WHERE a.status = 'open' ORDER BY b.received_ms, b.agent_did",
        (*places, LIVE_BIDS_MAX),
    )
    for workflow_id, node, *fields, locked_micro, owner_did in bids:
        bid = replace(Bid(*fields), stake_locked_micro=locked_micro, owner_did=owner_did)
        round_ = cache.rounds[workflow_id, node]
        assert round_ is not None, bid
        round_.bids[bid.agent_did] = bid


def find_bidders(cache: StateCache, read_set: ReadSet) -> set[str]:
    """Return the agents whose bids in the rounds of a read set have locked stake."""
    rounds = (cache.rounds[place] for place in read_set.rounds)
    bids = (bid for round_ in rounds if round_ is not None for bid in round_.bids.values())
    return {bid.agent_did for bid in bids if bid.stake_locked_micro}


async def auction_rows(reader: LedgerReader, workflow_id: str, node: str) -> list[RowDict]:
    """Return the rounds of a node's auction, in order."""
    query = (
        sql.select(auction)
        .where(auction.c.workflow_id == workflow_id, auction.c.node == node)
        .order_by(auction.c.round)
    )
    return await reader.rows(query)


_BIDS: Final = sql.text(f"""
    SELECT b.*, g.owner_did
    FROM callboard.bid b JOIN callboard.auction a USING (workflow_id, node, round)
        LEFT JOIN callboard.agent g ON g.did = b.agent_did
    WHERE b.workflow_id = CAST(:workflow_id AS uuid) AND b.node = :node AND a.status <> 'open'
        AND {IS_SHOWN.format(did="b.agent_did")}
    ORDER BY b.round, b.amount_micro, b.received_ms, b.agent_did
""").bindparams(*typed(text="viewer"))
_BIDDER: Final = sql.text("""
    SELECT 1 FROM callboard.agent a
    WHERE (a.did = :did OR a.owner_did = :did) AND (
        a.status = 'active' AND a.capability_ids @> ARRAY[CAST(:id AS text)] OR EXISTS (
            SELECT FROM callboard.bid b WHERE b.workflow_id = CAST(:workflow_id AS uuid)
                AND b.node = :node AND b.agent_did = a.did)) LIMIT 1
""")


async def bid_rows(
    reader: LedgerReader, workflow_id: str, node: str, viewer: str | None
) -> list[RowDict]:
    """Return the bids of a node's closed rounds, lowest first. Bids of open rounds stay sealed.

    `owner_did`: the current owner of the agent.

    Args:
        viewer: the caller's DID; bids of agents that are hidden from it are left out. None: an
            administrator.
    """
    values = {"workflow_id": workflow_id, "node": node, "viewer": viewer}
    return await reader.rows(_BIDS, values)


async def can_bid(
    reader: LedgerReader, did: str, capability_id: str, workflow_id: str, node: str
) -> bool:
    """Say whether the DID is or owns an agent that offers the capability or has bid for the
    node."""
    place = {"workflow_id": workflow_id, "node": node}
    return bool(await reader.rows(_BIDDER, {**place, "did": did, "id": capability_id}))
