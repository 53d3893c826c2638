"""Of many agents with a standing bid for one capability, those that an auction weighs.

Theory of operation: an auction among few weighs and lists every standing bid. Beyond `WEIGHED_MAX`
offers all bidders are ranked once in a while, in the order in which an auction would award them,
and each with the largest reserve that its stake covers. An auction then goes through that ranking
from its start and weighs the first `WEIGHED_MAX` that are eligible in it. They are the lowest, so
winner and price are those of an auction that weighs all. How long a ranking is kept follows from
the number of offers.
Spec: Settlement rules 7. Decision 0150.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from actors.directory.ranked_offers import KEPT_MS_PER_OFFER

WEIGHED_MAX: Final = 16
KEPT_MS_MIN: Final = 50


class RankedBidder(NamedTuple):
    """An agent that could take work when all were ranked; the order is that of awards.

    `reach_free`, `reach_whole`: the largest reserve x basis points that its free stake covers, and
    its free and locked stake together (`stake_reach`).
    """

    amount_micro: int
    reputation_negated: float
    stored_ms: int
    did: str
    reach_free: int
    reach_whole: int


@dataclass(frozen=True, slots=True)
class BidderRanking:
    """The bidders of one capability in the order of awards. `bids`: of all, able or not."""

    bidders: tuple[RankedBidder, ...]
    bids: int
    offers: int
    made_ms: int

    def is_fresh(self, at_ms: int) -> bool:
        """Whether it may still be used."""
        kept_ms = max(KEPT_MS_MIN, KEPT_MS_PER_OFFER * self.offers)
        return 0 <= at_ms - self.made_ms < kept_ms


class StandingBidders:
    """The rankings of a directory, by capability."""

    def __init__(self) -> None:
        self._rankings: dict[str, BidderRanking] = {}

    def __repr__(self) -> str:
        return f"<StandingBidders capabilities={len(self._rankings)}>"

    def ranking(
        self,
        capability_id: str,
        offers: int,
        rank: Callable[[], tuple[Iterable[RankedBidder], int]],
        at_ms: int,
    ) -> BidderRanking:
        """Return the capability's ranking, a new one when the last is no longer fresh.

        Args:
            offers: how many agents offer the capability.
            rank: returns its able bidders in any order, and how many have a standing bid.
            at_ms: now, Unix milliseconds.
        """
        known = self._rankings.get(capability_id)
        if known is not None and known.is_fresh(at_ms):
            return known
        bidders, bids = rank()
        made = BidderRanking(tuple(sorted(bidders)), bids, offers, at_ms)
        # Only what is in use is kept: there may be as many rankings as capabilities.
        self._rankings = {key: one for key, one in self._rankings.items() if one.is_fresh(at_ms)}
        self._rankings[capability_id] = made
        return made

    def drop(self, capability_id: str) -> None:
        """Drop a ranking that has turned out to be out of date."""
        self._rankings.pop(capability_id, None)
