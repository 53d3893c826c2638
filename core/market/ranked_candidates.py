"""The candidates of one capability in the order of their scores, and the choice of one; pure.

Theory of operation: weighing a candidate costs about a microsecond, and a choice is made for every
dispatch, so the order is kept and a candidate is moved when something about it changes; the choice
takes the first. A score depends on the cheapest candidate's price, so the order is one for a given
cheapest price. When that has changed, the order is made anew as soon as that costs no more than the
choices have cost in the meantime; until then, and where a node's own restrictions leave out the
cheapest, a choice weighs some of the candidates anew: all of at most `POOL_MAX`, else the first by
the old order and the cheapest. Up to `POOL_MAX` candidates every choice is that of weighing all.
New agents get a fixed share of the choices, because otherwise they could never build a reputation.
Spec: Targeted routing; Settlement rules 9. Decision 0063, with the figures.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from core.market.ranking import SHOWN_MAX, Candidate, Place, RankingRules, find_place

BPS: Final = 10_000
# Candidates that a choice weighs anew at most.
POOL_MAX: Final = 64
# Candidates that it passes over in their order, before it looks among the cheapest.
PASSES_MAX: Final = 512

_Entry = TypeVar("_Entry", tuple[int, int, str], tuple[int, str])
_Admits = Callable[[Candidate], bool]


class Best(NamedTuple):
    """The best candidates in order, at most ten, and the lowest price among all that were open.

    `is_trial`: the last is chosen, for a trial; else the first.
    """

    candidates: Sequence[Candidate]
    cheapest_micro: int
    is_trial: bool

    @property
    def did(self) -> str:
        """The chosen agent."""
        return self.candidates[-1 if self.is_trial else 0].did


class RankedCandidates:
    """Candidates that may be chosen, one for each DID.

    Args:
        rules: the weights and the trials.
    """

    def __init__(self, rules: RankingRules) -> None:
        self._rules = rules
        self._places: dict[str, Place] = {}
        self._ranked: list[Place] = []
        # The price by which the order was made, and what choices without the right one have cost.
        self._ranked_by_micro = 0
        self._weighed_since = 0
        self._by_price: list[tuple[int, int, str]] = []
        # New ones with room, in the order of registration.
        self._on_trial: list[tuple[int, str]] = []
        self._new = 0
        self._unbounded = 0

    def __repr__(self) -> str:
        return f"<RankedCandidates {len(self._ranked)}>"

    def __len__(self) -> int:
        return len(self._ranked)

    @property
    def may_try(self) -> bool:
        """Whether there are new agents beside proven ones, so that one may get a trial."""
        return 0 < self._new < len(self._ranked)

    def __iter__(self) -> Iterator[Candidate]:
        return (place[-1] for place in self._ranked)

    def find(self, did: str) -> Candidate | None:
        """Return a candidate, if it is known."""
        known = self._places.get(did)
        return None if known is None else known[-1]

    # -- contents ---------------------------------------------------------------------------------

    def fill(self, candidates: Sequence[Candidate]) -> None:
        """Add the first candidates, which takes less than to add them one by one."""
        assert not self._ranked, self
        if not candidates:
            return
        self._by_price = sorted(map(_price_entry, candidates))
        self._on_trial = sorted(entry for one in candidates if (entry := self._trial_entry(one)))
        self._new = sum(map(self._is_new, candidates))
        self._unbounded = sum(not one.is_bounded for one in candidates)
        self._rank(candidates, self._by_price[0][0])

    def put(self, candidate: Candidate) -> None:
        """Add a candidate, or replace what was known of it."""
        known = self._places.get(candidate.did)
        was = None
        if known is not None:
            was = known[-1]
            if was == candidate:
                return
            del self._ranked[bisect_left(self._ranked, known)]
        elif not self._ranked:
            self._ranked_by_micro = candidate.price_micro
        place = find_place(candidate, self._ranked_by_micro, self._rules)
        self._places[candidate.did] = place
        insort(self._ranked, place)
        # Mostly another order of it is open, which concerns nothing else unless it is new.
        if (
            was is None
            or was.price_micro != candidate.price_micro
            or was[3:] != candidate[3:]
            or self._is_new(candidate)
        ):
            self._follow(was, candidate)

    def drop(self, did: str) -> None:
        """Remove a candidate, if it is known."""
        known = self._places.pop(did, None)
        if known is not None:
            del self._ranked[bisect_left(self._ranked, known)]
            self._follow(known[-1], None)

    def _follow(self, was: Candidate | None, now: Candidate | None) -> None:
        """Keep in step what is kept besides the order."""
        _move(self._by_price, was and _price_entry(was), now and _price_entry(now))
        _move(self._on_trial, was and self._trial_entry(was), now and self._trial_entry(now))
        if was is not None:
            self._new -= self._is_new(was)
            self._unbounded -= not was.is_bounded
        if now is not None:
            self._new += self._is_new(now)
            self._unbounded += not now.is_bounded

    def _is_new(self, candidate: Candidate) -> bool:
        return candidate.standing.total < self._rules.trial_tasks

    def _trial_entry(self, candidate: Candidate) -> tuple[int, str] | None:
        # Only with room: a trial that waits in a queue does not measure the agent.
        is_ready = self._is_new(candidate) and candidate.taken_share < 1.0
        return (candidate.order, candidate.did) if is_ready else None

    def _rank(self, candidates: Iterable[Candidate], cheapest_micro: int) -> None:
        self._ranked = sorted(find_place(one, cheapest_micro, self._rules) for one in candidates)
        self._places = {place[-1].did: place for place in self._ranked}
        self._ranked_by_micro = cheapest_micro
        self._weighed_since = 0

    # -- choice -----------------------------------------------------------------------------------

    def choose(
        self, price_max_micro: int, *, seed: int | None = None, admits: _Admits | None = None
    ) -> Best | None:
        """Choose the candidate of the best place (`find_place`), or a new one for a trial.

        Args:
            price_max_micro: the node's price limit; agents above it are not chosen.
            seed: `trial_seed` of this attempt; None: no trials.
            admits: whether this node may take a candidate; None: it may take any.

        Returns:
            None when there is no candidate that the node may take.
        """
        if not self._ranked:
            return None
        fits = self._restrict(price_max_micro, admits)
        cheapest_micro = self.find_cheapest(price_max_micro, fits)
        if cheapest_micro is None:
            return None
        if self._by_price[0][0] != self._ranked_by_micro:
            self._weighed_since += POOL_MAX
            if self._weighed_since >= len(self._ranked):
                self._rank([place[-1] for place in self._ranked], self._by_price[0][0])
        best = None
        are_few = self._count_within(price_max_micro) <= POOL_MAX
        if cheapest_micro == self._ranked_by_micro and not (are_few and fits is not None):
            best = self._take_first(fits)
        if best is None:
            pool = self._draw_pool(price_max_micro, fits, are_few=are_few)
            weighed = sorted(find_place(one, cheapest_micro, self._rules) for one in pool)
            best = [place[-1] for place in weighed[:SHOWN_MAX]]
        trial = None if seed is None else self._pick_trial(seed, fits)
        if trial is None:
            return Best(best, cheapest_micro, False)
        # The agent on trial is listed last, instead of the tenth if need be.
        others = [one for one in best if one.did != trial.did]
        return Best([*others[: SHOWN_MAX - 1], trial], cheapest_micro, True)

    def find_cheapest(self, price_max_micro: int, admits: _Admits | None) -> int | None:
        """Return the lowest price of a candidate that a node may take, None without one."""
        for price_micro, _, did in self._by_price:
            if price_micro > price_max_micro and not self._unbounded:
                return None
            if admits is None or admits(self._places[did][-1]):
                return price_micro
        return None

    def _restrict(self, price_max_micro: int, admits: _Admits | None) -> _Admits | None:
        """Return whether a candidate is admitted and within the limit; None: all of them are."""
        if self._by_price[-1][0] <= price_max_micro:
            return admits

        def fits(one: Candidate) -> bool:
            is_within = one.price_micro <= price_max_micro or not one.is_bounded
            return is_within and (admits is None or admits(one))

        return fits

    def _take_first(self, fits: _Admits | None) -> list[Candidate] | None:
        """Return the first that fit, None where too many do not."""
        if fits is None:
            return [place[-1] for place in self._ranked[:SHOWN_MAX]]
        found: list[Candidate] = []
        for passed, place in enumerate(self._ranked):
            if fits(place[-1]):
                found.append(place[-1])
                if len(found) == SHOWN_MAX:
                    break
            elif passed - len(found) >= PASSES_MAX:
                return None
        return found

    def _count_within(self, price_max_micro: int) -> int:
        """Return how many are within a price limit, or more."""
        if self._unbounded:
            return len(self._ranked)
        return bisect_left(self._by_price, (price_max_micro + 1,))

    def _draw_pool(
        self, price_max_micro: int, fits: _Admits | None, *, are_few: bool
    ) -> Iterable[Candidate]:
        """Return some that fit: the first by the order as it is, and the cheapest.

        Args:
            are_few: all within the limit are drawn.
        """
        pool: dict[str, Candidate] = {}
        for place in () if are_few else self._ranked[:PASSES_MAX]:
            if fits is None or fits(place[-1]):
                pool[place[-1].did] = place[-1]
                if len(pool) == POOL_MAX // 2:
                    break
        for price_micro, _, did in self._by_price:
            if len(pool) == POOL_MAX or (price_micro > price_max_micro and not self._unbounded):
                break
            one = self._places[did][-1]
            if fits is None or fits(one):
                pool[did] = one
        return pool.values()

    def _pick_trial(self, seed: int, fits: _Admits | None) -> Candidate | None:
        """Return the new agent that gets a trial, None without a trial."""
        turn, lot = seed % BPS, seed // BPS
        if turn >= self._rules.trial_share_bps:
            return None
        on_trial = self._on_trial
        if fits is not None and len(self._ranked) <= POOL_MAX:
            fitting = [place[-1] for place in self._ranked if fits(place[-1])]
            if all(map(self._is_new, fitting)):
                return None
            on_trial = [entry for entry in on_trial if fits(self._places[entry[1]][-1])]
            fits = None
        elif self._new == len(self._ranked):
            return None
        # Of very many, the first that fits from the lot on.
        for step in range(min(len(on_trial), PASSES_MAX)):
            one = self._places[on_trial[(lot + step) % len(on_trial)][1]][-1]
            if fits is None or fits(one):
                return one
        return None


def _price_entry(candidate: Candidate) -> tuple[int, int, str]:
    return candidate.price_micro, candidate.order, candidate.did


def _move(entries: list[_Entry], before: _Entry | None, after: _Entry | None) -> None:
    if before == after:
        return
    if before is not None:
        del entries[bisect_left(entries, before)]
    if after is not None:
        insort(entries, after)
