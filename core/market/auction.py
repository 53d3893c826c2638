"""Sealed-bid, second-price auctions for one node: eligible bids, the winner and its price.

The lowest eligible bid wins. The winner is paid the lowest bid of another owner, so an owner gains
most if it bids its real cost. Without a bid of another owner, the winner is paid its own bid (the
rule of the specification). The stake that a bidder needs depends on its own bid, not on the payer's
reserve.
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

# The most live bids that a round stores. A full round stores the best bids (`displaced_bid`).
LIVE_BIDS_MAX: Final = 1_024
# The most bids of a node that are stored outside a round; such bids cannot win. Further bids of
# this kind are refused.
KEPT_BIDS_MAX: Final = 1_024


class Bid(Message, frozen=True):
    """One agent's sealed bid. Amounts are in micro-credits.

    `eta_ms`: the time in which the agent promises its result. `stake_offered_micro`: the stake that
    the agent offers; None: as much as is required. `reputation`: the agent's score when the round
    closes. `is_standing`: the bid is from the agent's card. `stake_locked_micro`: the part of the
    agent's stake that a live bid has locked. `owner_did`: the agent's owner when the round closes;
    "" if the agent has no other owner.
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
    """The winner, and the price that the winner is paid."""

    agent_did: str
    price_micro: int


class AuctionTerms(Struct, frozen=True):
    """The terms of one auction, fixed before its first bid.

    `reserve_micro`: the highest price that is paid. `closes_ms`: bids at or after this time are
    late, Unix milliseconds. `stake_bps`: the stake that a bidder needs, basis points of its bid.
    `score_min`: the lowest reputation score of a bidder, 0 to 1.
    """

    reserve_micro: int
    closes_ms: int
    stake_bps: int
    score_min: float = 0.0


class Exclusion(StrEnum):
    """Reasons why a bid can neither win nor set the second price, in the order of the checks."""

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
    """Return the error with which a live bid is refused at submission, None if it is accepted.

    `micro_from_credits` has already checked the number of decimals.

    Args:
        amount_micro: the bid, micro-credits.
        received_ms: when the bid arrived, Unix milliseconds.
        has_bid: whether the agent already has a live bid in this round; the first bid is final.

    Reference: money.md (Auctions).
    """
    if received_ms >= terms.closes_ms:
        return ServiceError(ErrorCode.CONFLICT, "the bid is late: the auction round has closed")
    if has_bid:
        return ServiceError(
            ErrorCode.CONFLICT, "the agent has already bid in this round: the first bid is final"
        )
    if 0 <= amount_micro <= terms.reserve_micro:
        return None
    got, most = credits_text(amount_micro), credits_text(terms.reserve_micro)
    problem = Problem("bidAmount", got, f"credits, 0 to the reserve of {most}")
    return ServiceError(
        ErrorCode.INVALID_REQUEST, f"bidAmount: got {got}, expected 0 to {most}", (problem,)
    )


def best_held(bids: Iterable[Bid]) -> dict[str, Bid]:
    """Return the best bid of each owner, the lowest bid first; equal bids by arrival, then DID."""
    best: dict[str, Bid] = {}
    for bid in sorted(bids, key=_held_order):
        best.setdefault(owner_of(bid), bid)
    return best


def highest_held(bids: Iterable[Bid], best: Mapping[str, Bid]) -> Bid:
    """Return the bid of a full round that a new bid replaces first.

    If some bids are not the best bid of their owner, this is the highest of them, because such a
    bid cannot win. Otherwise this is the highest bid of the round.

    Args:
        bids: all bids of the round.
        best: `best_held` of these bids.
    """
    return max(bids, key=lambda bid: (best[owner_of(bid)] is not bid, _held_order(bid)))


def displaced_bid(
    bid: Bid, highest: Bid | None, *, own: Bid | None = None, is_spare: bool = False
) -> Bid | ServiceError | None:
    """Return the stored bid that a new bid replaces in its round.

    A full round gives priority to the best bid of each owner. Lower bids replace higher ones; of
    equal bids, the earlier one stays. Therefore, high bids or many bids of one owner cannot exclude
    a lower bid. The stored best bids do not depend on the order in which bids are submitted.

    Args:
        bid: the new bid.
        highest: `highest_held` of the round, None while the round is not full.
        own: the best stored bid of the new bid's owner, None without one.
        is_spare: whether the owner of `highest` has a better bid in the round.

    Returns:
        The replaced bid; None while the round is not full. CONFLICT if the round is full and the
        new bid replaces none: its owner has a better bid there, or all bids precede it.

    Decision auctions.
    """
    if highest is None:
        return None
    if own is not None and _held_order(bid) < _held_order(own):
        return max(highest, own, key=_held_order) if is_spare else own
    if own is None and (is_spare or _held_order(bid) < _held_order(highest)):
        return highest
    message = f"the auction round is full ({LIVE_BIDS_MAX} bids): expected a lower bid"
    return ServiceError(ErrorCode.CONFLICT, message)


def owner_of(bid: Bid) -> str:
    """Return the owner of a bid's agent; the agent itself if it has no other owner."""
    return bid.owner_did or bid.agent_did


def _held_order(bid: Bid) -> tuple[int, int, str]:
    return bid.amount_micro, bid.received_ms, bid.agent_did


def merge_bids(standing: Iterable[Bid], live: Iterable[Bid]) -> list[Bid]:
    """Return one bid per agent: its live bid, otherwise the standing bid of its card.

    With two bids, an agent could set its own second price.
    """
    by_agent = {bid.agent_did: bid for bid in standing}
    by_agent |= {bid.agent_did: bid for bid in live}
    return list(by_agent.values())


def find_exclusion(
    bid: Bid, terms: AuctionTerms, *, stake_free_micro: int, is_revoked: bool
) -> Exclusion | None:
    """Return why a bid is excluded, None when it is eligible.

    Args:
        stake_free_micro: the bidder's free stake when the round closes plus the stake that the bid
            has locked, micro-credits.
        is_revoked: whether the bidder is revoked when the round closes.

    Reference: money.md (Auctions, Stakes, Slashing).
    """
    if bid.received_ms >= terms.closes_ms:
        return Exclusion.LATE
    if is_revoked:
        return Exclusion.REVOKED
    if bid.amount_micro > terms.reserve_micro:
        return Exclusion.ABOVE_RESERVE  # only a standing bid; live bids are refused at submission
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
    """Return the winner and its price, None if no bid is within the reserve.

    1. Bids above the reserve are ignored.
    2. Only the best bid of each owner counts.
    3. The lowest bid wins. Equal bids are decided by the higher reputation, then by the earlier
       arrival, then by the smaller DID.
    4. The winner is paid the lowest bid of another owner, or its own bid if no other owner has bid.

    Args:
        bids: the eligible bids (`find_exclusion` returns None), at most one per agent
            (`merge_bids`), amounts 0 or more; without bids of agents that have failed in an earlier
            round.
        reserve_micro: the highest price that is paid, micro-credits.

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
    """Return the stake that a live bid locks when it is placed, micro-credits.

    This is the stake that the bid requires at a reputation score of 0, because the agent's score
    when the round closes is not known yet. It is at most the offered stake and at most the free
    stake.

    Args:
        amount_micro: the bid, micro-credits.
        stake_bps: the stake that a bidder needs, basis points of its bid.
        offered_micro: the stake that the agent offers; None: as much as is required.
        free_micro: the agent's free stake.

    Reference: money.md (Auctions).
    """
    most_micro = stake_required_micro(amount_micro, stake_bps=stake_bps, score=0)
    return min(most_micro, free_micro if offered_micro is None else offered_micro, free_micro)


def award_order(bid: Bid) -> tuple[int, float, int, str]:
    """Return the key that sorts eligible bids, the winner first (see `award_auction`, step 3)."""
    return bid.amount_micro, -bid.reputation, bid.received_ms, bid.agent_did
