"""The bidders of an auction, from the directory: standing bids of cards and eligibility.

`core/market/auction.py` decides the winner and the price. Stakes and scores are half a second old,
as in all of the directory; a stake lock that the ledger refuses leads to the next round.
Spec: Bid; Settlement rules 7; money.md cases 20 to 26. Decision 0075.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec.structs import replace

from actors.directory.agent_directory import Directory
from actors.engine.ports import AgentEntry
from core.errors import NodeErrorCode
from core.market.auction import AuctionTerms, Award, Bid, award_auction, find_exclusion, merge_bids
from core.market.ranking import UNPROVEN
from core.market.reputation import stake_required_micro
from core.money import credits_number
from core.workflow.actions import SelectBidder
from core.workflow.events import (
    AgentNotSelected,
    AgentSelected,
    AuctionClosed,
    Failure,
    Verdict,
)

FAILED_BEFORE: Final = "failed_before"
# Bids shown in a node's record; the auction's own record has all of them.
SHOWN_MAX: Final = 10


class AuctioningDirectory(Directory):
    """A directory that awards auctions.

    Args:
        score_min_percent: lowest reputation score of a bidder, per cent.
        directory: the arguments of `Directory`.
    """

    def __init__(self, *, score_min_percent: int = 0, **directory: Any) -> None:
        super().__init__(**directory)
        self._score_min = score_min_percent / 100

    def select_bidder(
        self, action: SelectBidder, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """Award a round, or select the winner of an earlier round again."""
        if action.holder_did is not None:
            return self._reselect_winner(action, action.holder_did, at_ms, payer_did)
        live = [replace(bid, reputation=self._score(bid.agent_did)) for bid in action.bids]
        bids = merge_bids(self._standing_bids(action), live)
        won: Award | None = None
        excluded: dict[str, str] = {}
        for counts_locked in (False, True):
            # What other work has locked of a stake may be free by now, if that is all there is.
            excluded = self._exclude_bidders(
                bids, action, at_ms, payer_did=payer_did, counts_locked=counts_locked
            )
            won = award_auction(
                [bid for bid in bids if bid.agent_did not in excluded],
                reserve_micro=action.reserve_micro,
            )
            if won is not None:
                break
        closed = AuctionClosed(
            action.node,
            action.round,
            None if won is None else won.agent_did,
            None if won is None else won.price_micro,
            tuple(bids),
            tuple(excluded.items()),
        )
        if won is None:
            message = f"no bid is eligible: {len(bids)} bids, {len(excluded)} excluded"
            failure = Failure(NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL)
            return AgentNotSelected(action.node, failure, at_ms, closed)
        self._circuits.note_chosen(won.agent_did, at_ms, payer_did=payer_did)
        return self._build_award(action, won.agent_did, won.price_micro, at_ms, closed)

    def _build_award(
        self,
        action: SelectBidder,
        did: str,
        price_micro: int,
        at_ms: int,
        closed: AuctionClosed | None,
    ) -> AgentSelected:
        stake_micro = stake_required_micro(
            action.reserve_micro, stake_bps=action.stake_bps, score=self._score(did)
        )
        reasons = None if closed is None else orjson.dumps(_build_reasons(closed)).decode()
        return AgentSelected(
            action.node, did, price_micro, at_ms, reasons, None, stake_micro, closed
        )

    def _reselect_winner(
        self, action: SelectBidder, did: str, at_ms: int, payer_did: str
    ) -> AgentSelected | AgentNotSelected:
        details = self._find_unavailability(did, at_ms, payer_did=payer_did)
        if details is None and did not in self._offers(action):
            details = "capability_not_offered"
        if details is None:
            self._circuits.note_chosen(did, at_ms, payer_did=payer_did)
            return self._build_award(action, did, action.holder_price_micro, at_ms, None)
        failure = Failure(
            NodeErrorCode.AGENT_UNAVAILABLE,
            f"{did}, the winner of {action.capability_id!r}, is not available: {details}",
            Verdict.RETRYABLE,
            details=details,
            target_agent_id=did,
        )
        return AgentNotSelected(action.node, failure, at_ms)

    def _standing_bids(self, action: SelectBidder) -> list[Bid]:
        """Return the standing bids of the current cards; a standing bid is never late."""
        bids = []
        for did, entry in self._offers(action).items():
            offer = entry.standing.get(action.capability_id)
            if offer is not None:
                stored_ms = min(self._stored_ms.get(did, 0), action.closes_ms - 1)
                bids.append(
                    Bid(
                        did,
                        offer.amount_micro,
                        offer.eta_ms,
                        offer.stake_micro,
                        stored_ms,
                        self._score(did),
                        is_standing=True,
                    )
                )
        return bids

    def _exclude_bidders(
        self,
        bids: list[Bid],
        action: SelectBidder,
        at_ms: int,
        *,
        payer_did: str,
        counts_locked: bool,
    ) -> dict[str, str]:
        """Return the reason of each excluded bidder, by agent."""
        terms = AuctionTerms(
            action.reserve_micro, action.closes_ms, action.stake_bps, self._score_min
        )
        offers = self._offers(action)
        excluded: dict[str, str] = {}
        for bid in bids:
            did = bid.agent_did
            if did in action.exclude:
                excluded[did] = FAILED_BEFORE
                continue
            staked_micro = self.stakes.staked_micro(did, counts_locked=counts_locked)
            is_revoked = self.is_revoked(did, at_ms)
            why = find_exclusion(bid, terms, stake_free_micro=staked_micro, is_revoked=is_revoked)
            unavailability = str(why) if why is not None else None
            if unavailability is None:
                unavailability = self._find_unavailability(did, at_ms, payer_did=payer_did)
            if unavailability is None and did not in offers:
                unavailability = "capability_not_offered"
            if unavailability is not None:
                excluded[did] = unavailability
        return excluded

    def _offers(self, action: SelectBidder) -> Mapping[str, AgentEntry]:
        return self._by_capability.get(action.capability_id, {})

    def _score(self, did: str) -> float:
        return self._standings.get(did, UNPROVEN).score


def _build_reasons(closed: AuctionClosed) -> dict[str, Any]:
    """Return the lowest bids of an awarded round, as a node's record shows them."""
    excluded = dict(closed.excluded)
    lowest = sorted(
        closed.bids, key=lambda bid: (bid.agent_did in excluded, bid.amount_micro, bid.agent_did)
    )
    assert closed.price_micro is not None, closed
    shown = []
    for bid in lowest[:SHOWN_MAX]:
        line: dict[str, Any] = {
            "agentDid": bid.agent_did,
            "bidAmount": credits_number(bid.amount_micro),
        }
        if bid.agent_did in excluded:
            line["excluded"] = excluded[bid.agent_did]
        shown.append(line)
    return {
        "agentDid": closed.winner_did,
        "auctionRound": closed.round,
        "priceCredits": credits_number(closed.price_micro),
        "bids": shown,
        "unshown": max(0, len(closed.bids) - SHOWN_MAX),
    }
