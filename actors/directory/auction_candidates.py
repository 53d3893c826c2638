"""The bidders of an auction, from the directory: standing bids of cards and eligibility.

`core/market/auction.py` decides the winner and the price. Stakes may be half a second old,
as in all of the directory; a stake lock that the ledger refuses leads to the next round.
Spec: Bid; Settlement rules 7; money.md (Auctions, Stakes). Decision auctions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from actors.directory.agent_directory import Directory
from actors.directory.health.agent_health import PASSING, find_owners, find_payer_owners
from actors.directory.standing_bidders import WEIGHED_MAX, RankedBidder, StandingBidders
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
    TOO_SLOW,
    VERIFIER_NOT_ACCEPTED,
    bids_text,
    explain,
)
from core.market.ranked_candidates import Accepts
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

# Live bids shown in a node's record; the auction's own record has up to `LISTED_MAX` bids.
SHOWN_MAX: Final = 10
# Bids of a round that its record has: the lowest. Live ones besides have rows.
LISTED_MAX: Final = 256

# Why a standing bid does not count, where that would tell its amount or its agent's stake.
SEALED: Final = (Exclusion.ABOVE_RESERVE, Exclusion.UNDER_STAKED)


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
        won: Award | None = None
        bids: list[Bid] = []
        unweighed = 0
        excluded: dict[str, str] = {}
        for counts_locked in (False, True):
            # What other work has locked of a stake may be free by now, if that is all there is.
            standing: list[Bid] = []
            if not action.is_frozen:
                standing, unweighed = self._standing_bids(
                    action,
                    at_ms,
                    live_dids,
                    accepts,
                    payer_did=payer_did,
                    counts_locked=counts_locked,
                )
            bids = merge_bids(standing, live)
            excluded = self._exclude_bidders(
                bids, action, at_ms, accepts, payer_did=payer_did, counts_locked=counts_locked
            )
            won = award_auction(
                [bid for bid in bids if bid.agent_did not in excluded],
                reserve_micro=action.reserve_micro,
            )
            if won is not None:
                break
        closed = _build_closed(action, won, bids, excluded, unweighed)
        if won is None:
            offers, made = self._offers(action), len(bids) + unweighed
            told = [
                excluded[bid.agent_did]
                for bid in bids
                if not (bid.is_standing and excluded[bid.agent_did] in SEALED)
            ]
            message = bids_text(made, made - len(told), told, len(offers))
            if not made and not offers:
                hint = self._hints.find(action.capability_id, self._by_capability, at_ms)
                message = explain(action.capability_id, 0, (), hint)
            is_passing = self._may_bidders_return(action, excluded, at_ms, accepts, payer_did)
            failure = Failure(
                NodeErrorCode.NO_CANDIDATE, message, Verdict.FINAL, is_passing=is_passing
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
        """Return the selection of a winner, whose stake at risk follows from its own bid."""
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
        if details is None and did not in self._offers(action):
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
            is_passing=details in PASSING and did in self._offers(action),
        )
        return AgentNotSelected(action.node, failure, at_ms)

    def _standing_bids(
        self,
        action: SelectBidder,
        at_ms: int,
        live_dids: Set[str],
        accepts: Accepts | None,
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
        key = (capability_id, action.stake_bps)
        rank = partial(self._rank_bidders, key, at_ms)
        ranking = self._standing_bidders.ranking(key, len(offers), rank, at_ms)
        # What leaves them out of this round alone does not say that the ranking is out of date.
        refused = self._find_refused(action, at_ms, payer_did)
        passed = set(find_payer_owners(self._entries, payer_did))
        lowest: list[Bid] = []
        changed = 0
        for bidder in ranking.walk(action.reserve_micro, passed, counts_locked=counts_locked):
            did = bidder.did
            if did in live_dids or did in refused:
                continue
            entry = offers.get(did)
            if entry is not None and accepts is not None and not accepts(did):
                continue
            if entry is not None and capability_id in entry.standing:
                bid = self._standing_bid(action, entry)
                reason = self._find_exclusion(
                    bid, action, at_ms, accepts, payer_did=payer_did, counts_locked=counts_locked
                )
                if reason == TOO_SLOW:
                    continue
                if reason is None:
                    lowest.append(bid)
                    passed.add(bidder.owner_did)
                    if len(lowest) == WEIGHED_MAX:
                        break
                    continue
            changed += 1
            if changed > WEIGHED_MAX and ranking.made_ms < at_ms:
                # Many have changed at once: passing them again for each node would take long.
                self._standing_bidders.drop(key)
                return self._standing_bids(
                    action,
                    at_ms,
                    live_dids,
                    accepts,
                    payer_did=payer_did,
                    counts_locked=counts_locked,
                )
        replaced = sum(did in offers and capability_id in offers[did].standing for did in live_dids)
        return lowest, max(0, ranking.bids - len(lowest) - replaced)

    def _may_bidders_return(
        self,
        action: SelectBidder,
        excluded: Mapping[str, str],
        at_ms: int,
        accepts: Accepts | None,
        payer_did: str,
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
            self._find_exclusion(
                bid, action, at_ms, accepts, payer_did=payer_did, counts_locked=True
            )
            in PASSING
            for bid in bids
        )

    def _rank_bidders(self, key: tuple[str, int], at_ms: int) -> tuple[list[RankedBidder], int]:
        """Return the standing bidders that can take work, and how many bidders there are.

        Args:
            key: the capability, and the stake required, basis points of a bid.
        """
        capability_id, stake_bps = key
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
            required_micro = stake_required_micro(
                offer.amount_micro, stake_bps=stake_bps, score=score
            )
            offered = offer.stake_micro
            if required_micro > self.stakes.staked_micro(did, counts_locked=True) or (
                offered is not None and required_micro > offered
            ):
                continue
            able.append(
                RankedBidder(
                    offer.amount_micro,
                    -score,
                    self._stored_ms.get(did, 0),
                    did,
                    entry.owner_did,
                    required_micro <= self.stakes.staked_micro(did, counts_locked=False),
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
            owner_did=entry.owner_did,
        )

    def _exclude_bidders(
        self,
        bids: list[Bid],
        action: SelectBidder,
        at_ms: int,
        accepts: Accepts | None,
        *,
        payer_did: str,
        counts_locked: bool,
    ) -> dict[str, str]:
        """Return the reason of each excluded bidder, by agent."""
        excluded: dict[str, str] = {}
        for bid in bids:
            reason = self._find_exclusion(
                bid, action, at_ms, accepts, payer_did=payer_did, counts_locked=counts_locked
            )
            if reason is not None:
                excluded[bid.agent_did] = reason
        eligible = [bid for bid in bids if bid.agent_did not in excluded]
        # An owner whose agent has won and failed, or declined, comes after all others.
        tried = find_owners(self._entries, action.exclude)
        best = best_of_owners([bid for bid in eligible if bid.owner_did not in tried] or eligible)
        counted = {bid.agent_did for bid in best}
        for bid in bids:
            if bid.agent_did not in counted:
                excluded.setdefault(bid.agent_did, str(Exclusion.SAME_OWNER))
        return excluded

    def _find_exclusion(
        self,
        bid: Bid,
        action: SelectBidder,
        at_ms: int,
        accepts: Accepts | None,
        *,
        payer_did: str,
        counts_locked: bool,
    ) -> str | None:
        """Return why a bid takes no part in a round, None when it is eligible.

        Args:
            accepts: `who_may_work` of the action, made once for all bids.
        """
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
        if unavailability is None and did not in self._offers(action):
            unavailability = "capability_not_offered"
        if unavailability is None and accepts is not None and not accepts(did):
            return VERIFIER_NOT_ACCEPTED
        return unavailability

    def _is_slow(self, bid: Bid, action: SelectBidder) -> bool:
        """Say whether a bid, or else the card, promises the result after the node's time-out."""
        promised_ms, entry = bid.eta_ms, self._entries.get(bid.agent_did)
        if promised_ms is None and entry is not None:
            promised_ms = entry.promised_ms.get(action.capability_id)
        if promised_ms is None or action.timeout_ms is None:
            return False
        return promised_ms > action.timeout_ms

    def _owner_of(self, did: str) -> str:
        entry = self._entries.get(did)
        return "" if entry is None else entry.owner_did

    def _offers(self, action: SelectBidder) -> Mapping[str, AgentEntry]:
        return self._by_capability.get(action.capability_id, {})

    def _score(self, did: str) -> float:
        return self.standings.of(did).score


def _build_closed(
    action: SelectBidder,
    won: Award | None,
    bids: Sequence[Bid],
    excluded: Mapping[str, str],
    unweighed: int,
) -> AuctionClosed:
    """Return a round's record, with the lowest bids first and excluded ones last."""
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
    """Return the lowest live bids of an awarded round, as a node's record shows them.

    Standing bids are counted: only their owners and administrators may read them.
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
