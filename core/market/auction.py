"""Sealed-bid, second-price auctions for one node: eligibility, the winner and its price.

The lowest eligible bid wins and is paid the best bid of another owner, so that each owner's best
bid is its own cost; a single bid is paid its own amount (the specification's rule). The stake that
a bidder needs follows from its own bid, never from the payer's reserve.
Reference: money.md (Auctions, Slashing). Decision auctions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from core.errors import ErrorCode, Problem, ServiceError
from core.market.reputation import NEUTRAL, stake_required_micro
from core.market.slashing import lock_micro
from core.message import Message
from core.money import credits_text

# Live bids that a round holds: the lowest ones.
LIVE_BIDS_MAX: Final = 1_024
# Bids of a node that are kept and that no round counts: the earliest ones.
KEPT_BIDS_MAX: Final = 1_024


class Bid(Message, frozen=True):
    """One agent's sealed bid. Amounts in micro-credits; `reputation`: its score at the close.

    `stake_offered_micro` None: as much as is required. `is_standing`: the bid is from its card.
    `stake_locked_micro`: what a live bid has locked of its agent's stake. `owner_did`: the agent's
    owner at the close, "" for an agent that is its own.
    """

    agent_did: str
    amount_micro: int
    eta_ms: int | None
    stake_offered_micro: int | None
    received_ms: int
    reputation: float = NEUTRAL
    is_standing: bool = False
    stake_locked_micro: int = 0
    owner_did: str = ""


class Award(Struct, frozen=True):
    """The winner, and what it is paid."""

    agent_did: str
    price_micro: int


class AuctionTerms(Struct, frozen=True):
    """The terms of one auction, fixed before its first bid.

    `reserve_micro`: the highest price paid. `closes_ms`: bids from then on are late. `stake_bps`:
    the stake required of a bidder, basis points of its bid. `score_min`: lowest reputation score,
    0 to 1.
    """

    reserve_micro: int
    closes_ms: int
    stake_bps: int
    score_min: float = 0.0


class Exclusion(StrEnum):
    """Why a bid counts neither as winner nor as second price, in the order of the checks."""

    LATE = "late"
    REVOKED = "revoked"
    ABOVE_RESERVE = "above_reserve"
    LOW_REPUTATION = "low_reputation"
    UNDER_STAKED = "under_staked"
    PAYERS_OWN = "payers_own"
    SAME_OWNER = "same_owner"


def bid_problem(
    amount_micro: int, terms: AuctionTerms, *, received_ms: int, has_bid: bool
) -> ServiceError | None:
    """Return why a live bid is refused at submission, None when it is accepted.

    `micro_from_credits` checks the number of decimals, as for all amounts.

    Args:
        has_bid: whether the agent already has a live bid in this round; the first one is final.

    money.md (Auctions).
    """
    if received_ms >= terms.closes_ms:
        return ServiceError(ErrorCode.CONFLICT, "the bid is late: the auction round has closed")
    if has_bid:
        return ServiceError(
            ErrorCode.CONFLICT, "the agent has already bid in this round: its first bid is final"
        )
    if 0 <= amount_micro <= terms.reserve_micro:
        return None
    got, most = credits_text(amount_micro), credits_text(terms.reserve_micro)
    problem = Problem("bidAmount", got, f"credits, 0 to the reserve of {most}")
    return ServiceError(
        ErrorCode.INVALID_REQUEST, f"bidAmount: got {got}, expected 0 to {most}", (problem,)
    )


def best_held(bids: Iterable[Bid]) -> dict[str, Bid]:
    """Return the best bid of each owner, in the order in which a round holds bids."""
    best: dict[str, Bid] = {}
    for bid in sorted(bids, key=_held_order):
        best.setdefault(owner_of(bid), bid)
    return best


def highest_held(bids: Iterable[Bid], best: Mapping[str, Bid]) -> Bid:
    """Return the bid whose place is the next to be taken in a full round.

    Args:
        bids: those that the round holds.
        best: `best_held` of them; the others do not count and give way first.
    """
    return max(bids, key=lambda bid: (best[owner_of(bid)] is not bid, _held_order(bid)))


def displaced_bid(
    bid: Bid, highest: Bid | None, *, own: Bid | None = None, is_spare: bool = False
) -> Bid | ServiceError | None:
    """Return the bid whose place a new one takes in its round, None while there is a free place.

    A round holds the best bid of each owner before all others, then the lowest, then the earliest,
    as they win: neither high bids nor the many of one owner keep a lower one from winning. What it
    holds follows from the bids alone, not from their order.

    Args:
        highest: `highest_held` of the round, None while it is not full.
        own: the best bid of the same owner that the round holds.
        is_spare: whether the owner of the highest has a better one in the round.

    Returns:
        CONFLICT where the round is full of bids that count before this one.

    Decision auctions.
    """
    if highest is None:
        return None
    if own is not None and _held_order(bid) < _held_order(own):
        return max(highest, own, key=_held_order) if is_spare else own
    if own is None and (is_spare or _held_order(bid) < _held_order(highest)):
        return highest
    message = f"the round is full: it holds {LIVE_BIDS_MAX} bids that are as low: bid lower"
    return ServiceError(ErrorCode.CONFLICT, message)


def owner_of(bid: Bid) -> str:
    """Return the owner of a bid's agent."""
    return bid.owner_did or bid.agent_did


def _held_order(bid: Bid) -> tuple[int, int, str]:
    return bid.amount_micro, bid.received_ms, bid.agent_did


def merge_bids(standing: Iterable[Bid], live: Iterable[Bid]) -> list[Bid]:
    """Return one bid per agent: its live bid, else its card's standing one.

    Two bids of one agent would let it set its own second price.
    """
    by_agent = {bid.agent_did: bid for bid in standing}
    by_agent |= {bid.agent_did: bid for bid in live}
    return list(by_agent.values())


def find_exclusion(
    bid: Bid, terms: AuctionTerms, *, stake_free_micro: int, is_revoked: bool
) -> Exclusion | None:
    """Return why a bid is excluded, None when it is eligible.

    Args:
        stake_free_micro: the bidder's free stake at the close and what the bid has locked,
            micro-credits.
        is_revoked: whether the bidder is revoked at the close.

    money.md (Auctions, Stakes, Slashing).
    """
    if bid.received_ms >= terms.closes_ms:
        return Exclusion.LATE
    if is_revoked:
        return Exclusion.REVOKED
    if bid.amount_micro > terms.reserve_micro:
        return Exclusion.ABOVE_RESERVE  # a standing bid; live ones are refused at submission
    if bid.reputation < terms.score_min:
        return Exclusion.LOW_REPUTATION
    required_micro = stake_required_micro(
        bid.amount_micro, stake_bps=terms.stake_bps, score=bid.reputation
    )
    offered_micro = stake_free_micro if bid.stake_offered_micro is None else bid.stake_offered_micro
    if lock_micro(required_micro, offered_micro=offered_micro, free_micro=stake_free_micro) is None:
        return Exclusion.UNDER_STAKED
    return None


def award_auction(bids: Iterable[Bid], *, reserve_micro: int) -> Award | None:
    """Return the winner and its price, None without a bid within the reserve.

    1. Bids above the reserve are left out before the price is formed. 2. Of each owner only the
    best bid counts. 3. The lowest bid wins; of equal bids the higher reputation, then the earlier
    receipt, then the smaller DID. 4. The winner is paid the best bid of another owner, or its own
    if there is none.

    Args:
        bids: those without an exclusion (`find_exclusion`) of agents that have not failed in an
            earlier round, at most one per agent (`merge_bids`); amounts 0 or more.

    Reference: money.md (Auctions).
    """
    within = [bid for bid in bids if bid.amount_micro <= reserve_micro]
    assert len({bid.agent_did for bid in within}) == len(within), "one bid per agent"
    counted = best_of_owners(within)
    if not counted:
        return None
    winner = counted[0]
    second = counted[1] if len(counted) > 1 else None
    price_micro = winner.amount_micro if second is None else second.amount_micro
    assert 0 <= winner.amount_micro <= price_micro <= reserve_micro, (winner, price_micro)
    return Award(winner.agent_did, price_micro)


def best_of_owners(bids: Iterable[Bid]) -> list[Bid]:
    """Return the best bid of each owner, the winner first."""
    best: dict[str, Bid] = {}
    for bid in sorted(bids, key=award_order):
        best.setdefault(owner_of(bid), bid)
    return list(best.values())


def live_lock_micro(
    amount_micro: int, *, stake_bps: int, offered_micro: int | None, free_micro: int
) -> int:
    """Return what a live bid locks of its agent's stake when it is placed, micro-credits.

    It is the most that the bid may require, whatever the agent's reputation at the close, at most
    what is offered and what is free. money.md (Auctions).
    """
    most_micro = stake_required_micro(amount_micro, stake_bps=stake_bps, score=0)
    return min(most_micro, free_micro if offered_micro is None else offered_micro, free_micro)


def award_order(bid: Bid) -> tuple[int, float, int, str]:
    """Return the key that sorts eligible bids: the winner first.

    The lowest; of equal ones the higher reputation, then the earlier receipt, then the smaller DID.
    """
    return bid.amount_micro, -bid.reputation, bid.received_ms, bid.agent_did
