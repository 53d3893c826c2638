"""Of many agents with a standing bid for one capability, those that an auction weighs.

Theory of operation: an auction among few weighs and lists every standing bid. Beyond `WEIGHED_MAX`
offers all bidders are ranked once in a while: each owner's bidders in the order in which an auction
would award them, the owners in the order of their best ones. An auction then goes through that
ranking from its start and weighs the best eligible bid of each of the first `WEIGHED_MAX` owners.
They are the lowest, so winner and price are those of an auction that weighs all, and the thousands
of one owner hide none of another. How long a ranking is kept follows from the number of offers.
Spec: Settlement rules 7; money.md (Auctions). Decision auctions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

WEIGHED_MAX: Final = 16
# For so long a ranking of all is used: to make it anew takes a twentieth of a process's time then.
KEPT_MS_PER_OFFER: Final = 0.1
KEPT_MS_MIN: Final = 50


class RankedBidder(NamedTuple):
    """An agent that could take work when all were ranked; the order is that of awards.

    `is_free`: its free stake covers its bid; else its free and locked stake together do.
    """

    amount_micro: int
    reputation_negated: float
    stored_ms: int
    did: str
    owner_did: str
    is_free: bool


# The bidders of each owner, the owners in the order of their best bidders.
Groups = tuple[tuple[RankedBidder, ...], ...]


@dataclass(frozen=True, slots=True)
class BidderRanking:
    """The bidders of one capability by owner.

    `bids`: how many agents have a standing bid, able or not.
    """

    groups: Groups
    bids: int
    offers: int
    made_ms: int

    def is_fresh(self, at_ms: int) -> bool:
        """Whether it may still be used."""
        kept_ms = max(KEPT_MS_MIN, KEPT_MS_PER_OFFER * self.offers)
        return 0 <= at_ms - self.made_ms < kept_ms

    def walk(
        self, reserve_micro: int, passed: Set[str], *, counts_locked: bool
    ) -> Iterator[RankedBidder]:
        """Yield the bidders within a reserve in the order of awards.

        Args:
            passed: owners whose bidders are passed over; the caller adds an owner whose bid counts.
            counts_locked: whether locked stakes count too.
        """
        groups = self.groups
        begun = 0  # so many owners
        later: list[tuple[RankedBidder, int, int]] = []  # next bidders of owners that were begun
        while later or begun < len(groups):
            if begun < len(groups) and not (later and later[0][0] < groups[begun][0]):
                group, place = begun, 0
                begun += 1
            else:
                _, group, place = heappop(later)
            bidder = groups[group][place]
            if bidder.amount_micro > reserve_micro:
                return
            if bidder.owner_did not in passed and (counts_locked or bidder.is_free):
                yield bidder
            if bidder.owner_did not in passed and place + 1 < len(groups[group]):
                heappush(later, (groups[group][place + 1], group, place + 1))


class StandingBidders:
    """The rankings of a directory, by capability and required stake."""

    def __init__(self) -> None:
        self._rankings: dict[tuple[str, int], BidderRanking] = {}

    def __repr__(self) -> str:
        return f"<StandingBidders capabilities={len(self._rankings)}>"

    def ranking(
        self,
        key: tuple[str, int],
        offers: int,
        rank: Callable[[], tuple[Iterable[RankedBidder], int]],
        at_ms: int,
    ) -> BidderRanking:
        """Return the capability's ranking, a new one when the last is no longer fresh.

        Args:
            key: the capability, and the stake required, basis points of a bid.
            offers: how many agents offer the capability.
            rank: returns its able bidders in any order, and how many have a standing bid.
            at_ms: now, Unix milliseconds.
        """
        known = self._rankings.get(key)
        if known is not None and known.is_fresh(at_ms):
            return known
        able, bids = rank()
        made = BidderRanking(_group_by_owner(sorted(able)), bids, offers, at_ms)
        # Only what is in use is kept: there may be as many rankings as capabilities.
        self._rankings = {key: one for key, one in self._rankings.items() if one.is_fresh(at_ms)}
        self._rankings[key] = made
        return made

    def drop(self, key: tuple[str, int]) -> None:
        """Drop a ranking that has turned out to be out of date."""
        self._rankings.pop(key, None)


def _group_by_owner(bidders: Iterable[RankedBidder]) -> Groups:
    """Return the bidders, which are in the order of awards, by owner."""
    groups: dict[str, list[RankedBidder]] = {}
    for bidder in bidders:
        groups.setdefault(bidder.owner_did, []).append(bidder)
    return tuple(tuple(group) for group in groups.values())
