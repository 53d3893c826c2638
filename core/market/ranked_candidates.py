"""The candidates of one capability in the order of their scores, and the choice of one; pure.

Theory of operation: weighing a candidate costs about a microsecond, and a choice is made for every
dispatch, so the order is kept and a candidate is moved when something about it changes; the choice
takes the first. A score depends on the cheapest candidate's price, so the order is one for a given
cheapest price. When that has changed, the order is made anew as soon as that costs no more than the
choices have cost in the meantime; until then, and where a node's own restrictions leave out the
cheapest, a choice weighs some of the candidates anew: all of at most `POOL_MAX`, else the first by
the old order and the cheapest. Up to `POOL_MAX` candidates every choice is that of weighing all.
New agents get a fixed share of the choices, because otherwise they could never build a reputation.
What a node's price limit leaves out, and an owner of many, may be nearly all candidates, and each
node of a thousand may have a limit of its own. So a choice that has passed over `POOL_MAX` of those
takes the others from blocks of neighbouring limits, each in the same order (`_LimitBlocks`): it
costs what their number is, about the square root of the candidates'. They are made when the first
such choice is, and kept up to date from then on.
Spec: Targeted routing; Settlement rules 9. Decision 0063, with the figures.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import inf, isqrt
from typing import Final, NamedTuple, TypeVar

from core.market.ranking import SHOWN_MAX, Candidate, Place, RankingRules, find_place

BPS: Final = 10_000
# Candidates that a choice weighs anew at most, and that it passes over for a limit or an owner.
POOL_MAX: Final = 64
# New candidates that it passes over for a trial, and candidates of one owner in the blocks.
PASSES_MAX: Final = 512
# Candidates in a block when it is made; of very many the square root of their number.
BLOCK_MIN: Final = 128
# Owners without whom a block's candidates are remembered.
OWNERS_MAX: Final = 16

_Entry = TypeVar("_Entry", tuple[int, int, str], tuple[int, str])
_PriceEntry = tuple[int, int, str]
_LimitKey = tuple[float, int, str]
# Some candidates in the order of their places, and in the order of their prices.
_Part = tuple[list[Place], list[_PriceEntry]]
_Item = TypeVar("_Item", Place, _PriceEntry)
NONE: Final[Set[str]] = frozenset()
# Says of an agent whether a node may take it; asked of those alone that its limits leave.
Accepts = Callable[[str], bool]


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
        self._by_price: list[_PriceEntry] = []
        # New ones with room, in the order of registration.
        self._on_trial: list[tuple[int, str]] = []
        self._new = 0
        # Those paid by tokens, and those of them that a node's limit may leave out.
        self._unbounded = 0
        self._limited = 0
        self._owned: Counter[str] = Counter()
        self._blocks: tuple[_LimitBlocks, _LimitBlocks] | None = None

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
        self._limited = sum(map(_is_limited, candidates))
        self._owned = Counter(one.owner_did for one in candidates)
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
        if self._blocks is not None:
            self._move_in_blocks(known, place)
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
            if self._blocks is not None:
                self._move_in_blocks(known, None)
            self._follow(known[-1], None)

    def _follow(self, was: Candidate | None, now: Candidate | None) -> None:
        """Keep in step what is kept besides the order."""
        _move(self._by_price, was and _price_entry(was), now and _price_entry(now))
        _move(self._on_trial, was and self._trial_entry(was), now and self._trial_entry(now))
        if was is not None:
            self._new -= self._is_new(was)
            self._unbounded -= not was.is_bounded
            self._limited -= _is_limited(was)
            self._owned[was.owner_did] -= 1
            if not self._owned[was.owner_did]:
                del self._owned[was.owner_did]
        if now is not None:
            self._new += self._is_new(now)
            self._unbounded += not now.is_bounded
            self._limited += _is_limited(now)
            self._owned[now.owner_did] += 1

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
        self._blocks = None

    def _move_in_blocks(self, was: Place | None, now: Place | None) -> None:
        assert self._blocks is not None
        if was is not None:
            self._blocks[was[-1].is_bounded].drop(was)
        if now is not None:
            self._blocks[now[-1].is_bounded].put(now)

    # -- choice -----------------------------------------------------------------------------------

    def choose(
        self,
        price_max_micro: int,
        *,
        seed: int | None = None,
        refused: Set[str] = NONE,
        owner_did: str | None = None,
        accepts: Accepts | None = None,
    ) -> Best | None:
        """Choose the candidate of the best place (`find_place`), or a new one for a trial.

        Args:
            price_max_micro: the node's price limit; agents above it are not chosen, nor those paid
                by tokens whose stake is too small for it.
            seed: `trial_seed` of this attempt; None: no trials.
            refused: agents that are not chosen either; each of them may be passed over by itself,
                so there should be some hundred at most.
            owner_did: whose agents are not chosen.
            accepts: which agents may be chosen; None: all. One after another is asked for, until
                one is found.

        Returns:
            None when there is no candidate that the node may take.
        """
        if not self._ranked:
            return None
        if self._by_price[0][0] != self._ranked_by_micro:
            self._weighed_since += POOL_MAX
            if self._weighed_since >= len(self._ranked):
                self._rank([place[-1] for place in self._ranked], self._by_price[0][0])
        field = self._restrict(price_max_micro, price_max_micro, refused, owner_did, accepts)
        if field is None:
            cheapest_micro = self._by_price[0][0]
        else:
            cheapest = self._take_cheapest(1, field)
            if not cheapest:
                return None
            cheapest_micro = cheapest[0].price_micro
        best = self._take_first(SHOWN_MAX, field, cheapest_micro)
        trial = None if seed is None else self._pick_trial(seed, field)
        if trial is None:
            return Best(best, cheapest_micro, False)
        # The agent on trial is listed last, instead of the tenth if need be.
        others = [one for one in best if one.did != trial.did]
        return Best([*others[: SHOWN_MAX - 1], trial], cheapest_micro, True)

    def find_cheapest(
        self,
        price_max_micro: int,
        *,
        limit_micro: int,
        refused: Set[str] = NONE,
        owner_did: str | None = None,
        accepts: Accepts | None = None,
    ) -> int | None:
        """Return the lowest price of a candidate that a node may take, None without one.

        Args:
            price_max_micro, refused, owner_did, accepts: as for a choice.
            limit_micro: the price limit for which the stake of one paid by tokens has to suffice.
        """
        if not self._ranked:
            return None
        field = self._restrict(price_max_micro, limit_micro, refused, owner_did, accepts)
        cheapest = self._take_cheapest(1, field)
        return cheapest[0].price_micro if cheapest else None

    def find_lowest_prices(self) -> tuple[int, int | None]:
        """Return the lowest price of any candidate, and the lowest above 0, None without one."""
        first = bisect_left(self._by_price, (1,))
        positive_micro = self._by_price[first][0] if first < len(self._by_price) else None
        return self._by_price[0][0], positive_micro

    def _restrict(
        self,
        price_max_micro: int,
        limit_micro: int,
        refused: Set[str],
        owner_did: str | None,
        accepts: Accepts | None,
    ) -> _Field | None:
        """Return what a node may take, None where that is all."""
        if (
            not refused
            and accepts is None
            and (owner_did is None or owner_did not in self._owned)
            and not self._limited
            and self._by_price[-1][0] <= price_max_micro
        ):
            return None
        has_many = self._owned[owner_did] > PASSES_MAX if owner_did is not None else False
        return _Field(price_max_micro, limit_micro, refused, owner_did, has_many, accepts)

    def _take_first(
        self, count: int, field: _Field | None, cheapest_micro: int
    ) -> Sequence[Candidate]:
        """Return the best that a node may take, by the lowest price of any that it may."""
        if cheapest_micro == self._ranked_by_micro:
            return self._take_ranked(count, field)
        pool = {one.did: one for one in self._take_ranked(POOL_MAX // 2, field)}
        for one in self._take_cheapest(POOL_MAX, field):
            if len(pool) == POOL_MAX:
                break
            pool[one.did] = one
        weighed = sorted(find_place(one, cheapest_micro, self._rules) for one in pool.values())
        return [place[-1] for place in weighed[:count]]

    def _take_ranked(self, count: int, field: _Field | None) -> list[Candidate]:
        """Return the first by the order as it is that a node may take."""
        if field is None:
            return [place[-1] for place in self._ranked[:count]]
        taken = _take_near((place[-1] for place in self._ranked), count, field)
        if taken is not None:
            return taken
        places = _merge([places for places, _ in self._find_parts(field)])
        return list(islice((place[-1] for place in places if field.fits(place[-1])), count))

    def _take_cheapest(self, count: int, field: _Field | None) -> list[Candidate]:
        """Return the cheapest that a node may take."""
        if field is None:
            return [self._places[did][-1] for _, _, did in self._by_price[:count]]
        end = len(self._by_price)
        if not self._unbounded:
            end = bisect_left(self._by_price, (field.price_max_micro + 1,))
        near = (self._places[did][-1] for _, _, did in islice(self._by_price, end))
        taken = _take_near(near, count, field)
        if taken is not None:
            return taken
        entries = _merge([entries for _, entries in self._find_parts(field)])
        cheapest = (self._places[did][-1] for _, _, did in entries)
        return list(islice(filter(field.fits, cheapest), count))

    def _find_parts(self, field: _Field) -> list[_Part]:
        """Return all within a node's limits, by blocks; an owner of few may be among them."""
        if field.parts is None:
            if self._blocks is None:
                self._blocks = (
                    _LimitBlocks([place for place in self._ranked if not place[-1].is_bounded]),
                    _LimitBlocks([place for place in self._ranked if place[-1].is_bounded]),
                )
            by_token, fixed = self._blocks
            without_did = field.owner_did if field.has_many else None
            field.parts = [
                *by_token.find_within(-field.limit_micro, without_did),
                *fixed.find_within(field.price_max_micro, without_did),
            ]
        return field.parts

    def _pick_trial(self, seed: int, field: _Field | None) -> Candidate | None:
        """Return the new agent that gets a trial, None without a trial."""
        turn, lot = seed % BPS, seed // BPS
        if turn >= self._rules.trial_share_bps:
            return None
        on_trial = self._on_trial
        if field is not None and len(self._ranked) <= POOL_MAX:
            fitting = [place[-1] for place in self._ranked if field.fits(place[-1])]
            if all(map(self._is_new, fitting)):
                return None
            on_trial = [entry for entry in on_trial if field.fits(self._places[entry[1]][-1])]
            field = None
        elif self._new == len(self._ranked):
            return None
        # Of very many, the first that fits from the lot on.
        for step in range(min(len(on_trial), PASSES_MAX)):
            one = self._places[on_trial[(lot + step) % len(on_trial)][1]][-1]
            if field is None or field.fits(one):
                return one
        return None


@dataclass(slots=True)
class _Field:
    """What one node may take of the candidates; its arguments are those of a choice.

    `has_many`: the owner has more than `PASSES_MAX` of them. `parts`: those within its limits, once
    they are found.
    """

    price_max_micro: int
    limit_micro: int
    refused: Set[str]
    owner_did: str | None
    has_many: bool
    accepts: Accepts | None = None
    parts: list[_Part] | None = None

    def is_within(self, one: Candidate) -> bool:
        """Whether a candidate is within the limits."""
        if one.is_bounded:
            return one.price_micro <= self.price_max_micro
        return one.limit_micro_max >= self.limit_micro

    def fits(self, one: Candidate) -> bool:
        """Whether the node may take a candidate."""
        is_open = one.did not in self.refused and one.owner_did != self.owner_did
        return is_open and self.is_within(one) and (self.accepts is None or self.accepts(one.did))


class _Block:
    """Candidates of neighbouring limits: their keys, and the same as a part; each in order."""

    __slots__ = ("_others", "keys", "part")

    def __init__(self, places: list[Place]) -> None:
        self.keys = sorted(_limit_key(place[-1]) for place in places)
        self.part = _build_part(places)
        self._others: dict[str, _Part] = {}

    def put(self, place: Place) -> None:
        """Add a candidate."""
        insort(self.keys, _limit_key(place[-1]))
        insort(self.part[0], place)
        insort(self.part[1], _price_entry(place[-1]))
        self._others.clear()

    def drop(self, place: Place) -> None:
        """Remove a candidate."""
        places, entries = self.part
        del self.keys[bisect_left(self.keys, _limit_key(place[-1]))]
        del places[bisect_left(places, place)]
        del entries[bisect_left(entries, _price_entry(place[-1]))]
        self._others.clear()

    def find_without(self, owner_did: str) -> _Part:
        """Return the candidates that are not an owner's; remembered while they are the same."""
        known = self._others.get(owner_did)
        if known is None:
            if len(self._others) == OWNERS_MAX:
                self._others.clear()
            others = [place for place in self.part[0] if place[-1].owner_did != owner_did]
            known = self._others[owner_did] = _build_part(others)
        return known


class _LimitBlocks:
    """Candidates of one kind of price in blocks, by the price limit that lets a node take them.

    Args:
        places: in order.
    """

    def __init__(self, places: list[Place]) -> None:
        self._size = max(BLOCK_MIN, isqrt(len(places)))
        keyed = sorted((_limit_key(place[-1]), place) for place in places)
        self._blocks = [
            _Block(sorted(place for _, place in keyed[start : start + self._size]))
            for start in range(0, len(keyed), self._size)
        ] or [_Block([])]
        # The largest key that belongs to each block but the last.
        self._ends = [block.keys[-1] for block in self._blocks[:-1]]

    def put(self, place: Place) -> None:
        """Add a candidate."""
        index = bisect_left(self._ends, _limit_key(place[-1]))
        block = self._blocks[index]
        block.put(place)
        if len(block.keys) > 2 * self._size:
            end = block.keys[self._size]
            places = block.part[0]
            self._blocks[index : index + 1] = [
                _Block([place for place in places if _limit_key(place[-1]) <= end]),
                _Block([place for place in places if _limit_key(place[-1]) > end]),
            ]
            self._ends.insert(index, end)

    def drop(self, place: Place) -> None:
        """Remove a candidate."""
        index = bisect_left(self._ends, _limit_key(place[-1]))
        block = self._blocks[index]
        block.drop(place)
        if not block.keys and self._ends:
            del self._blocks[index]
            del self._ends[min(index, len(self._ends) - 1)]

    def find_within(self, most: float, without_did: str | None) -> Iterator[_Part]:
        """Yield the candidates whose limit is at most this, by blocks.

        Args:
            without_did: the owner whose agents are left out; None: no owner's.
        """
        for block in self._blocks:
            if not block.keys or block.keys[0][0] > most:
                return
            part = block.part if without_did is None else block.find_without(without_did)
            if block.keys[-1][0] > most:
                part = _build_part([place for place in part[0] if _limit_key(place[-1])[0] <= most])
            if part[0]:
                yield part


def _take_near(
    candidates: Iterable[Candidate], count: int, field: _Field
) -> list[Candidate] | None:
    """Return the first that a node may take, None where it passes over too many before."""
    if field.parts is not None:
        return None
    refused, owner_did = field.refused, field.owner_did
    taken: list[Candidate] = []
    passed = 0
    for one in candidates:
        if one.did in refused:
            continue
        if one.owner_did == owner_did:
            passed += field.has_many
        elif not field.is_within(one):
            passed += 1
        elif field.accepts is None or field.accepts(one.did):
            taken.append(one)
            if len(taken) == count:
                break
        if passed > POOL_MAX:
            return None
    return taken


def _build_part(places: list[Place]) -> _Part:
    return places, sorted(_price_entry(place[-1]) for place in places)


def _merge(parts: Sequence[list[_Item]]) -> Iterator[_Item]:
    """Yield the items of ordered lists in order; the first cost little, unlike with `sorted`.

    The first ten of a hundred lists cost 45 us, by `heapq.merge` of iterators 79.
    """
    heads = [(part[0], index, 0) for index, part in enumerate(parts)]
    heapify(heads)
    while heads:
        item, index, at = heads[0]
        yield item
        if at + 1 < len(parts[index]):
            heapreplace(heads, (parts[index][at + 1], index, at + 1))
        else:
            heappop(heads)


def _is_limited(candidate: Candidate) -> bool:
    return candidate.limit_micro_max != inf


def _limit_key(candidate: Candidate) -> _LimitKey:
    """Return what orders candidates of one kind of price by the limit that lets them be taken."""
    limit = candidate.price_micro if candidate.is_bounded else -candidate.limit_micro_max
    return limit, candidate.order, candidate.did


def _price_entry(candidate: Candidate) -> _PriceEntry:
    return candidate.price_micro, candidate.order, candidate.did


def _move(entries: list[_Entry], before: _Entry | None, after: _Entry | None) -> None:
    if before == after:
        return
    if before is not None:
        del entries[bisect_left(entries, before)]
    if after is not None:
        insort(entries, after)
