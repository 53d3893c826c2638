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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

WEIGHED_MAX: Final = 16
# Bidders whose largest reaches are kept together, so that those of too small a stake are skipped.
REACHES_OF: Final = 64
# For so long a ranking of all is used: to make it anew takes a twentieth of a process's time then.
KEPT_MS_PER_OFFER: Final = 0.1
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
    """The bidders of one capability in the order of awards.

    `reaches`: the largest of each `REACHES_OF` bidders, free and whole. `bids`: of all, able or
    not.
    """

    bidders: tuple[RankedBidder, ...]
    reaches: tuple[tuple[int, int], ...]
    bids: int
    offers: int
    made_ms: int

    def is_fresh(self, at_ms: int) -> bool:
        """Whether it may still be used."""
        kept_ms = max(KEPT_MS_MIN, KEPT_MS_PER_OFFER * self.offers)
        return 0 <= at_ms - self.made_ms < kept_ms

    def find_within(
        self, reserve_micro: int, reach: int, *, counts_locked: bool
    ) -> Iterator[RankedBidder]:
        """Yield those whose bid and stake suffice for a reserve, in the order of awards.

        Args:
            reach: the reserve x basis points.
            counts_locked: whether locked stakes count too.
        """
        for place, (free, whole) in enumerate(self.reaches):
            if self.bidders[place * REACHES_OF].amount_micro > reserve_micro:
                return
            if reach > (whole if counts_locked else free):
                continue
            for bidder in self.bidders[place * REACHES_OF : (place + 1) * REACHES_OF]:
                if bidder.amount_micro > reserve_micro:
                    return
                if reach <= (bidder.reach_whole if counts_locked else bidder.reach_free):
                    yield bidder


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
        able, bids = rank()
        bidders = tuple(sorted(able))
        reaches = tuple(
            _find_reaches(bidders[start : start + REACHES_OF])
            for start in range(0, len(bidders), REACHES_OF)
        )
        made = BidderRanking(bidders, reaches, bids, offers, at_ms)
        # Only what is in use is kept: there may be as many rankings as capabilities.
        self._rankings = {key: one for key, one in self._rankings.items() if one.is_fresh(at_ms)}
        self._rankings[capability_id] = made
        return made

    def drop(self, capability_id: str) -> None:
        """Drop a ranking that has turned out to be out of date."""
        self._rankings.pop(capability_id, None)


def _find_reaches(bidders: Sequence[RankedBidder]) -> tuple[int, int]:
    return max(one.reach_free for one in bidders), max(one.reach_whole for one in bidders)
