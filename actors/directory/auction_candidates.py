"""Finds the standing bids for an auction in the directory, and the bids that are eligible.

`core/market/auction.py` decides the winner and the price. The directory's stakes may be half a
second old. If the ledger refuses to lock the winner's stake, the next round follows.
Reference: money.md (Auctions, Stakes). Decision auctions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from actors.directory.agent_directory import Directory
from actors.directory.agent_stakes import UNDER_STAKED
from actors.directory.health.agent_health import PASSING, find_owners, find_payer_owners
from actors.directory.ranked_offers import RankedOffers, Terms, Weighed, build_weighed
from actors.directory.subnets import Offers, Scope
from actors.ports import AgentEntry
from core.errors import NodeErrorCode
from core.json_text import write_json
from core.market.auction import (
    AuctionTerms,
    Award,
    Bid,
    Exclusion,
    award_auction,
    award_order,
    best_of_owners,
    find_exclusion,
    merge_bids,
)
from core.market.no_candidates import (
    FAILED_BEFORE,
    FULL,
    REGION_REFUSED,
    TOO_SLOW,
    VERIFIER_NOT_ACCEPTED,
    bids_text,
    explain,
)
from core.market.ranked_candidates import Accepts
from core.market.ranking import Candidate
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

# If there are more standing bids than this, an auction weighs only the lowest eligible bid of each
# owner, for at most this number of owners.
WEIGHED_MAX: Final = 16
# Maximum number of live bids in a node's record. The record of the round has up to `LISTED_MAX`.
SHOWN_MAX: Final = 10
# Maximum number of bids in a round's record: the lowest bids. All live bids also have rows.
LISTED_MAX: Final = 256

# Exclusions of standing bids that are not published: they would reveal the bid's amount or the
# agent's stake.
SEALED: Final = (Exclusion.ABOVE_RESERVE, Exclusion.UNDER_STAKED)


class _Round(NamedTuple):
    """A round of an auction, with the conditions for eligible bids.

    `accepts`: says which agents accept a verifier of the payer's choice; None: all agents may bid.
    `counts_locked`: stake that other work has locked counts too.
    """

    action: SelectBidder
    at_ms: int
    payer_did: str
    accepts: Accepts | None
    counts_locked: bool = False


class AuctioningDirectory(Directory):
    """A directory that awards auctions.

    Args:
        score_min_percent: the lowest reputation score of a bidder, percent.
        directory: the arguments of `Directory`.
    """

    def __init__(self, *, score_min_percent: int = 0, **directory: Any) -> None:
        super().__init__(**directory)
        self._score_min = score_min_percent / 100
        # By capability: the public agents that have an endpoint and a standing bid.
        self._bidders: dict[str, dict[str, AgentEntry]] = {}

    def select_bidder(
        self, action: SelectBidder, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """Award a round, or select the winner of an earlier round for another attempt."""
        refused = self.subnets.find_refusal(payer_did, action.capability_id)
        if refused is not None:
            return AgentNotSelected(action.node, refused, at_ms)
        if action.holder_did is not None:
            return self._reselect_winner(action, action.holder_did, at_ms, payer_did)
        live = [
            replace(
                bid,
                reputation=self._score(bid.agent_did),
                owner_did=self._owner_of(bid.agent_did),
            )
            for bid in action.bids
        ]
        live_dids = {bid.agent_did for bid in live}
        accepts = self._verifiers.who_may_work(action, payer_did)
        first = round_ = _Round(action, at_ms, payer_did, accepts)
        won: Award | None = None
        bids: list[Bid] = []
        unweighed = 0
        excluded: dict[str, str] = {}
        # If no bid is eligible, count locked stakes too: the locks may have ended meanwhile.
        for round_ in (first, first._replace(counts_locked=True)):
            standing: list[Bid] = []
            if not action.is_frozen:
                standing, unweighed = self._standing_bids(round_, live_dids)
            bids = merge_bids(standing, live)
            excluded = self._exclude_bidders(bids, round_)
            won = award_auction(
                [bid for bid in bids if bid.agent_did not in excluded],
                reserve_micro=action.reserve_micro,
            )
            if won is not None:
                break
        closed = _build_closed(action, won, bids, excluded, unweighed)
        if won is None:
            offers, made = self._offers(action, payer_did), len(bids) + unweighed
            told = [
                excluded[bid.agent_did]
                for bid in bids
                if not (bid.is_standing and excluded[bid.agent_did] in SEALED)
            ]
            message = bids_text(made, made - len(told), told, len(offers))
            if not made and not offers:
                hint = self._hints.find(action.capability_id, self._by_capability, at_ms)
                message = explain(action.capability_id, 0, (), hint)
            is_temporary = self._may_bidders_return(excluded, round_)
            failure = Failure(
                NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL, is_temporary=is_temporary
            )
            return AgentNotSelected(action.node, failure, at_ms, closed)
        self._note_chosen(won.agent_did, at_ms)
        (bid,) = (bid for bid in bids if bid.agent_did == won.agent_did)
        promised_ms = bid.eta_ms
        if promised_ms is None:
            promised_ms = self._entries[won.agent_did].find_promise_ms(action.capability_id)
        award = self._build_award(action, won, bid.amount_micro, promised_ms, at_ms)
        reasons = write_json(_build_reasons(closed)).decode()
        return replace(award, selection_json=reasons, closed=closed)

    def _build_award(
        self, action: SelectBidder, won: Award, bid_micro: int, promised_ms: int, at_ms: int
    ) -> AgentSelected:
        """Return the selection of a winner. The bid, not the price, decides the required stake."""
        stake_micro = stake_required_micro(
            bid_micro, stake_bps=action.stake_bps, score=self._score(won.agent_did)
        )
        return AgentSelected(
            action.node,
            won.agent_did,
            won.price_micro,
            at_ms,
            stake_micro=stake_micro,
            promised_ms=promised_ms,
        )

    def _reselect_winner(
        self, action: SelectBidder, did: str, at_ms: int, payer_did: str
    ) -> AgentSelected | AgentNotSelected:
        details = self._find_unavailability(did, at_ms, payer_did=payer_did)
        if details is None and did not in self._offers(action, payer_did):
            details = "capability_not_offered"
        if details is None:
            self._note_chosen(did, at_ms)
            won = Award(did, action.holder_price_micro)
            bid_micro, promised_ms = action.holder_bid_micro, action.holder_promised_ms
            return self._build_award(action, won, bid_micro, promised_ms, at_ms)
        failure = Failure(
            NodeErrorCode.AGENT_UNAVAILABLE,
            f"{did}, the winner of {action.capability_id!r}, is not available: {details}",
            Verdict.RETRYABLE,
            details=details,
            target_agent_id=did,
            is_temporary=details in PASSING and did in self._offers(action, payer_did),
        )
        return AgentNotSelected(action.node, failure, at_ms)

    def _standing_bids(self, round_: _Round, live_dids: Set[str]) -> tuple[list[Bid], int]:
        """Return the standing bids to weigh, and the number of other standing bids.

        Up to `WEIGHED_MAX` standing bids are all weighed. If there are more, only the lowest
        eligible bid of each owner is weighed, for `WEIGHED_MAX` owners. The winner and the price
        are the same as if all bids were weighed. Many bids of one owner do not displace the bids of
        other owners.
        """
        action = round_.action
        _, bidders = self._find_bidders(action, round_.payer_did)
        if len(bidders) <= WEIGHED_MAX:
            return [self._standing_bid(action, entry) for entry in bidders.values()], 0
        ranking = self._rank_bidders(round_)
        ranked = ranking.locked if round_.counts_locked else ranking.free
        refused = self._find_refused(action, round_.at_ms, round_.payer_did) | live_dids
        passed = set(find_payer_owners(self._entries, round_.payer_did))
        lowest: list[Bid] = []
        for did in ranked.walk(action.reserve_micro, passed):
            if did in refused:
                continue
            bid = self._standing_bid(action, bidders[did])
            if self._find_exclusion(bid, round_) is None:
                lowest.append(bid)
                passed.add(bid.owner_did)
                if len(lowest) == WEIGHED_MAX:
                    break
        return lowest, len(bidders) - len(lowest) - len(live_dids & bidders.keys())

    def _may_bidders_return(self, excluded: Mapping[str, str], round_: _Round) -> bool:
        """Say whether any bidder is excluded only for a temporary reason, such as being full.

        With more than `WEIGHED_MAX` standing bids, `excluded` lacks most bidders. So this method
        also examines the lowest standing bids.
        """
        action = round_.action
        offers = self._offers(action, round_.payer_did)
        if any(why in PASSING and did in offers for did, why in excluded.items()):
            return True
        ranking = self._rank_bidders(round_)
        bids = [
            self._standing_bid(action, offers[did])
            for ranked in (ranking.away, ranking.free)
            for did in islice(ranked.walk(action.reserve_micro, ()), WEIGHED_MAX)
        ]
        return any(self._find_exclusion(bid, round_) in PASSING for bid in bids)

    def _rank_bidders(self, round_: _Round) -> RankedOffers:
        capability_id = round_.action.capability_id
        scope, bidders = self._find_bidders(round_.action, round_.payer_did)
        terms = Terms(None, False, True, bid_stake_bps=round_.action.stake_bps, scope=scope)
        return self._rankings.find(capability_id, terms, bidders, round_.at_ms)

    def _weigh(
        self,
        capability_id: str,
        terms: Terms,
        entry: AgentEntry,
        at_ms: int,
    ) -> Weighed:
        """Extend the directory's method: for auctions, rank agents by their standing bids."""
        if terms.bid_stake_bps is None:
            return super()._weigh(capability_id, terms, entry, at_ms)
        did, bid, score = entry.did, entry.standing[capability_id], self._score(entry.did)
        condition = self._find_condition(did, at_ms)
        if condition.excluded == FULL:  # a bid is an offer, even after a decline of another node
            condition = condition._replace(excluded=None)
        required_micro = stake_required_micro(
            bid.amount_micro, stake_bps=terms.bid_stake_bps, score=score
        )
        barred = self.stakes.find_shortage(did, required_micro)
        if score < self._score_min or (
            bid.stake_micro is not None and required_micro > bid.stake_micro
        ):
            barred = UNDER_STAKED
        candidate = Candidate(
            did,
            bid.amount_micro,
            0,
            1,
            (-score, self._stored_ms.get(did, 0)),
            excluded=condition.excluded or barred,
            owner_did=entry.owner_did,
        )
        return build_weighed(candidate, condition, barred)._replace(is_able=False)

    def _standing_bid(self, action: SelectBidder, entry: AgentEntry) -> Bid:
        """Return an agent's standing bid, dated before the round's end so that it is never late."""
        offer = entry.standing[action.capability_id]
        return Bid(
            entry.did,
            offer.amount_micro,
            offer.eta_ms,
            offer.stake_micro,
            min(self._stored_ms.get(entry.did, 0), action.closes_ms - 1),
            self._score(entry.did),
            is_standing=True,
            owner_did=entry.owner_did,
        )

    def _exclude_bidders(self, bids: list[Bid], round_: _Round) -> dict[str, str]:
        """Return the reason of each excluded bid, by agent."""
        excluded: dict[str, str] = {}
        for bid in bids:
            reason = self._find_exclusion(bid, round_)
            if reason is not None:
                excluded[bid.agent_did] = reason
        eligible = [bid for bid in bids if bid.agent_did not in excluded]
        # If an agent has won this node and then failed or declined, its owner comes after others.
        tried = find_owners(self._entries, round_.action.exclude)
        best = best_of_owners([bid for bid in eligible if bid.owner_did not in tried] or eligible)
        counted = {bid.agent_did for bid in best}
        for bid in bids:
            if bid.agent_did not in counted:
                excluded.setdefault(bid.agent_did, str(Exclusion.SAME_OWNER))
        return excluded

    def _find_exclusion(self, bid: Bid, round_: _Round) -> str | None:
        """Return why a bid is excluded from a round; None if it is eligible."""
        action, at_ms, payer_did, accepts, counts_locked = round_
        did = bid.agent_did
        if did in action.exclude:
            return FAILED_BEFORE
        if bid.owner_did in find_payer_owners(self._entries, payer_did):
            return str(Exclusion.PAYERS_OWN)
        if self._is_slow(bid, action):
            return TOO_SLOW
        terms = AuctionTerms(
            action.reserve_micro, action.closes_ms, action.stake_bps, self._score_min
        )
        staked_micro = bid.stake_locked_micro
        staked_micro += self.stakes.staked_micro(did, counts_locked=counts_locked)
        is_revoked = self.is_revoked(did, at_ms)
        why = find_exclusion(bid, terms, stake_free_micro=staked_micro, is_revoked=is_revoked)
        if why is not None:
            return str(why)
        unavailability = self._find_unavailability(did, at_ms, payer_did=payer_did)
        if unavailability is None and did not in self._offers(action, payer_did):
            unavailability = "capability_not_offered"
        if unavailability is None and accepts is not None and not accepts(did):
            return VERIFIER_NOT_ACCEPTED
        permitted = self._acceptance.find_permitted(action, payer_did)
        if unavailability is None and permitted is not None and not permitted(did):
            return REGION_REFUSED
        return unavailability

    def _is_slow(self, bid: Bid, action: SelectBidder) -> bool:
        """Say whether the time that the bid, or else the card, promises exceeds `timeoutMs`."""
        promised_ms, entry = bid.eta_ms, self._entries.get(bid.agent_did)
        if promised_ms is None and entry is not None:
            promised_ms = entry.promised_ms.get(action.capability_id)
        if promised_ms is None or action.timeout_ms is None:
            return False
        return promised_ms > action.timeout_ms

    def _index(self, entry: AgentEntry) -> None:
        super()._index(entry)
        if entry.url and not entry.private_subnet:
            for capability_id in entry.standing:
                self._bidders.setdefault(capability_id, {})[entry.did] = entry

    def _remove(self, did: str) -> AgentEntry | None:
        entry = super()._remove(did)
        if entry is not None and entry.url and not entry.private_subnet:
            for capability_id in entry.standing:
                del self._bidders[capability_id][did]
                if not self._bidders[capability_id]:
                    del self._bidders[capability_id]
        return entry

    def _owner_of(self, did: str) -> str:
        entry = self._entries.get(did)
        return "" if entry is None else entry.owner_did

    def _offers(self, action: SelectBidder, payer_did: str) -> Mapping[str, AgentEntry]:
        return self.subnets.find_offers(action.capability_id, payer_did)[1]

    def _find_bidders(self, action: SelectBidder, payer_did: str) -> tuple[Scope, Offers]:
        """Return the agents with a standing bid, in the form of `Subnets.find_offers`."""
        capability_id = action.capability_id
        scope, offers = self.subnets.find_offers(capability_id, payer_did)
        if scope:
            return scope, {did: one for did, one in offers.items() if capability_id in one.standing}
        return scope, self._bidders.get(capability_id, {})

    def _score(self, did: str) -> float:
        return self.standings.of(did).score


def _build_closed(
    action: SelectBidder,
    won: Award | None,
    bids: Sequence[Bid],
    excluded: Mapping[str, str],
    unweighed: int,
) -> AuctionClosed:
    """Return a round's record: eligible bids, then excluded ones, both in the order of awards."""
    listed = nsmallest(
        LISTED_MAX, bids, key=lambda bid: (bid.agent_did in excluded, award_order(bid))
    )
    return AuctionClosed(
        action.node,
        action.round,
        None if won is None else won.agent_did,
        None if won is None else won.price_micro,
        tuple(listed),
        tuple(
            (bid.agent_did, excluded[bid.agent_did]) for bid in listed if bid.agent_did in excluded
        ),
        unlisted=len(bids) - len(listed) + unweighed,
    )


def _build_reasons(closed: AuctionClosed) -> dict[str, Any]:
    """Return the lowest live bids of an awarded round, for the node's record.

    Standing bids are only counted, because only their owners and administrators may read them.
    """
    excluded = dict(closed.excluded)
    assert closed.price_micro is not None, closed
    shown = []
    for bid in [bid for bid in closed.bids if not bid.is_standing][:SHOWN_MAX]:
        line = {"agentDid": bid.agent_did, "bidAmount": credits_number(bid.amount_micro)}
        if bid.agent_did in excluded:
            line["excluded"] = excluded[bid.agent_did]
        shown.append(line)
    return {
        "agentDid": closed.winner_did,
        "auctionRound": closed.round,
        "priceCredits": credits_number(closed.price_micro),
        "bids": shown,
        "unshown": len(closed.bids) - len(shown) + closed.unlisted,
    }
