"""The bidders of an auction, from the directory: standing bids of cards and eligibility.

`core/market/auction.py` decides the winner and the price. Stakes may be half a second old,
as in all of the directory; a stake lock that the ledger refuses leads to the next round.
Spec: Bid; Settlement rules 7; money.md cases 20 to 26. Decision 0075.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from actors.directory.agent_directory import Directory
from actors.directory.health.agent_health import PASSING
from actors.directory.standing_bidders import WEIGHED_MAX, RankedBidder, StandingBidders
from actors.ports import AgentEntry
from core.errors import NodeErrorCode
from core.json_text import write_json
from core.market.auction import (
    AuctionTerms,
    Award,
    Bid,
    award_auction,
    award_order,
    find_exclusion,
    merge_bids,
)
from core.market.no_candidates import FAILED_BEFORE, bids_text, explain
from core.market.reputation import stake_reach, stake_required_micro
from core.money import credits_number
from core.workflow.actions import SelectBidder
from core.workflow.events import (
    AgentNotSelected,
    AgentSelected,
    AuctionClosed,
    Failure,
    Verdict,
)

# Bids shown in a node's record; the auction's own record has `LISTED_MAX` of them.
SHOWN_MAX: Final = 10
# Bids of a round that its record and its audit entry list: the lowest. Live ones besides have rows.
LISTED_MAX: Final = 256


class AuctioningDirectory(Directory):
    """A directory that awards auctions.

    Args:
        score_min_percent: lowest reputation score of a bidder, per cent.
        directory: the arguments of `Directory`.
    """

    def __init__(self, *, score_min_percent: int = 0, **directory: Any) -> None:
        super().__init__(**directory)
        self._score_min = score_min_percent / 100
        self._standing_bidders = StandingBidders()

    def select_bidder(
        self, action: SelectBidder, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """Award a round, or select the winner of an earlier round again."""
        if action.holder_did is not None:
            return self._reselect_winner(action, action.holder_did, at_ms, payer_did)
        live = [replace(bid, reputation=self._score(bid.agent_did)) for bid in action.bids]
        live_dids = {bid.agent_did for bid in live}
        won: Award | None = None
        bids: list[Bid] = []
        unweighed = 0
        excluded: dict[str, str] = {}
        for counts_locked in (False, True):
            # What other work has locked of a stake may be free by now, if that is all there is.
            standing, unweighed = self._standing_bids(
                action, at_ms, live_dids, payer_did=payer_did, counts_locked=counts_locked
            )
            bids = merge_bids(standing, live)
            excluded = self._exclude_bidders(
                bids, action, at_ms, payer_did=payer_did, counts_locked=counts_locked
            )
            won = award_auction(
                [bid for bid in bids if bid.agent_did not in excluded],
                reserve_micro=action.reserve_micro,
            )
            if won is not None:
                break
        listed = _list_lowest(bids, excluded)
        closed = AuctionClosed(
            action.node,
            action.round,
            None if won is None else won.agent_did,
            None if won is None else won.price_micro,
            tuple(listed),
            tuple(
                (bid.agent_did, excluded[bid.agent_did])
                for bid in listed
                if bid.agent_did in excluded
            ),
            unlisted=len(bids) - len(listed) + unweighed,
        )
        if won is None:
            offers, made = self._offers(action), len(bids) + unweighed
            message = bids_text(made, unweighed, excluded.values(), len(offers))
            if not made and not offers:
                hint = self._hints.find(action.capability_id, self._by_capability, at_ms)
                message = explain(action.capability_id, 0, (), hint)
            is_passing = self._may_bidders_return(action, excluded, at_ms, payer_did)
            failure = Failure(
                NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL, is_passing=is_passing
            )
            return AgentNotSelected(action.node, failure, at_ms, closed)
        self._note_chosen(won.agent_did, at_ms, payer_did)
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
        reasons = None if closed is None else write_json(_build_reasons(closed)).decode()
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
            self._note_chosen(did, at_ms, payer_did)
            return self._build_award(action, did, action.holder_price_micro, at_ms, None)
        failure = Failure(
            NodeErrorCode.AGENT_UNAVAILABLE,
            f"{did}, the winner of {action.capability_id!r}, is not available: {details}",
            Verdict.RETRYABLE,
            details=details,
            target_agent_id=did,
            is_passing=details in PASSING and did in self._offers(action),
        )
        return AgentNotSelected(action.node, failure, at_ms)

    def _standing_bids(
        self,
        action: SelectBidder,
        at_ms: int,
        live_dids: Set[str],
        *,
        payer_did: str,
        counts_locked: bool,
    ) -> tuple[list[Bid], int]:
        """Return the standing bids to weigh, and how many there are besides.

        All of the current cards', or of very many the lowest that are eligible.
        """
        offers = self._offers(action)
        if len(offers) <= WEIGHED_MAX:
            return [
                self._standing_bid(action, entry)
                for entry in offers.values()
                if action.capability_id in entry.standing
            ], 0
        capability_id = action.capability_id
        rank = partial(self._rank_bidders, capability_id, at_ms)
        ranking = self._standing_bidders.ranking(capability_id, len(offers), rank, at_ms)
        reach = action.reserve_micro * action.stake_bps
        # What leaves them out of this round alone does not say that the ranking is out of date.
        refused = self._find_refused(action, at_ms, payer_did)
        lowest: list[Bid] = []
        changed = 0
        for bidder in ranking.find_within(action.reserve_micro, reach, counts_locked=counts_locked):
            if len(lowest) == WEIGHED_MAX:
                break
            did = bidder.did
            if did in live_dids or did in refused:
                continue
            entry = offers.get(did)
            if entry is not None and capability_id in entry.standing:
                bid = self._standing_bid(action, entry)
                reason = self._find_exclusion(
                    bid, action, at_ms, payer_did=payer_did, counts_locked=counts_locked
                )
                if reason is None:
                    lowest.append(bid)
                    continue
            changed += 1
            if changed > WEIGHED_MAX and ranking.made_ms < at_ms:
                # Many have changed at once: passing them again for each node would take long.
                self._standing_bidders.drop(capability_id)
                return self._standing_bids(
                    action, at_ms, live_dids, payer_did=payer_did, counts_locked=counts_locked
                )
        replaced = sum(did in offers and capability_id in offers[did].standing for did in live_dids)
        return lowest, max(0, ranking.bids - len(lowest) - replaced)

    def _may_bidders_return(
        self, action: SelectBidder, excluded: Mapping[str, str], at_ms: int, payer_did: str
    ) -> bool:
        """Say whether a bidder is excluded for a passing reason alone.

        Of very many standing bids, of which only eligible ones are weighed, some are looked at.
        """
        offers = self._offers(action)
        if any(why in PASSING and did in offers for did, why in excluded.items()):
            return True
        if len(offers) <= WEIGHED_MAX:
            return False
        bids = (
            self._standing_bid(action, entry)
            for entry in islice(offers.values(), WEIGHED_MAX)
            if action.capability_id in entry.standing
        )
        return any(
            self._find_exclusion(bid, action, at_ms, payer_did=payer_did, counts_locked=True)
            in PASSING
            for bid in bids
        )

    def _rank_bidders(self, capability_id: str, at_ms: int) -> tuple[list[RankedBidder], int]:
        """Return the standing bidders that can take work, and how many bidders there are."""
        able: list[RankedBidder] = []
        bids = 0
        for did, entry in self._by_capability.get(capability_id, {}).items():
            offer = entry.standing.get(capability_id)
            if offer is None:
                continue
            bids += 1
            score = self._score(did)
            if score < self._score_min:
                continue
            # Of no payer: what one payer has seen of an agent leaves it in the auctions of others.
            if self._find_unavailability(did, at_ms, payer_did="") is not None:
                continue
            free, whole = (
                self.stakes.staked_micro(did, counts_locked=counts_locked)
                for counts_locked in (False, True)
            )
            if offer.stake_micro is not None:
                free, whole = min(offer.stake_micro, free), min(offer.stake_micro, whole)
            able.append(
                RankedBidder(
                    offer.amount_micro,
                    -score,
                    self._stored_ms.get(did, 0),
                    did,
                    stake_reach(free, score=score),
                    stake_reach(whole, score=score),
                )
            )
        return able, bids

    def _standing_bid(self, action: SelectBidder, entry: AgentEntry) -> Bid:
        """Return an agent's standing bid, which is never late."""
        offer = entry.standing[action.capability_id]
        return Bid(
            entry.did,
            offer.amount_micro,
            offer.eta_ms,
            offer.stake_micro,
            min(self._stored_ms.get(entry.did, 0), action.closes_ms - 1),
            self._score(entry.did),
            is_standing=True,
        )

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
        reasons = (
            (
                bid.agent_did,
                self._find_exclusion(
                    bid, action, at_ms, payer_did=payer_did, counts_locked=counts_locked
                ),
            )
            for bid in bids
        )
        return {did: reason for did, reason in reasons if reason is not None}

    def _find_exclusion(
        self, bid: Bid, action: SelectBidder, at_ms: int, *, payer_did: str, counts_locked: bool
    ) -> str | None:
        """Return why a bid takes no part in a round, None when it is eligible."""
        did = bid.agent_did
        if did in action.exclude:
            return FAILED_BEFORE
        terms = AuctionTerms(
            action.reserve_micro, action.closes_ms, action.stake_bps, self._score_min
        )
        staked_micro = self.stakes.staked_micro(did, counts_locked=counts_locked)
        is_revoked = self.is_revoked(did, at_ms)
        why = find_exclusion(bid, terms, stake_free_micro=staked_micro, is_revoked=is_revoked)
        if why is not None:
            return str(why)
        unavailability = self._find_unavailability(did, at_ms, payer_did=payer_did)
        if unavailability is None and did not in self._offers(action):
            unavailability = "capability_not_offered"
        return unavailability

    def _offers(self, action: SelectBidder) -> Mapping[str, AgentEntry]:
        return self._by_capability.get(action.capability_id, {})

    def _score(self, did: str) -> float:
        return self.standings.of(did).score


def _list_lowest(bids: Iterable[Bid], excluded: Container[str]) -> list[Bid]:
    """Return the bids that a round's record lists, the lowest first, excluded ones last."""
    return nsmallest(
        LISTED_MAX, bids, key=lambda bid: (bid.agent_did in excluded, award_order(bid))
    )


def _build_reasons(closed: AuctionClosed) -> dict[str, Any]:
    """Return the lowest bids of an awarded round, as a node's record shows them."""
    excluded = dict(closed.excluded)
    assert closed.price_micro is not None, closed
    shown = []
    for bid in closed.bids[:SHOWN_MAX]:
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
        "unshown": max(0, len(closed.bids) - SHOWN_MAX) + closed.unlisted,
    }
