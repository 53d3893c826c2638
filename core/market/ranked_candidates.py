"""The candidates of one capability in the order of their scores, and the choice of one; pure.

Theory of operation: a choice is made for every dispatch, so the candidates are kept sorted. A
score depends on the price of the cheapest candidate. After that price has changed, the candidates
are sorted again as soon as this costs no more than the choices have cost in the meantime.
A choice takes the first candidates that the node may take. It uses a pool instead where another
price is the lowest for this node, or where it may take none of the first `LOOKS_MAX`: the first
candidates by score, by price, by stake and of other owners, weighed again. Among `POOL_MAX`
candidates every choice is therefore that of weighing all of them.
New agents get a fixed share of the choices, because otherwise they could never build a reputation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import partial
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

from sortedcontainers import SortedList

from core.market.ranking import SHOWN_MAX, Candidate, Place, RankingRules, find_place
from core.money import MICRO_MAX

BPS: Final = 10_000
# Candidates that a pool takes of each order at most.
POOL_MAX: Final = 64
# Candidates of an order that a choice looks at before it uses a pool.
LOOKS_MAX: Final = 192
NONE: Final[Set[str]] = frozenset()

# Returns whether a node may take an agent.
Accepts = Callable[[str], bool]
# What orders a candidate among others; the last item is its DID.
_Entry = tuple[Any, ...]


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
        # By price: those with a fixed price, and those paid by tokens.
        self._fixed = SortedList[_Entry]()
        self._by_token = SortedList[_Entry]()
        # Those paid by tokens, the largest stake first; all by owner; new ones with room by order.
        self._by_stake = SortedList[_Entry]()
        self._by_owner = SortedList[_Entry]()
        self._on_trial = SortedList[_Entry]()
        self._orders = (
            self._fixed, self._by_token, self._by_stake, self._by_owner, self._on_trial
        )  # fmt: skip
        self._sort((), 0)

    def __repr__(self) -> str:
        return f"<RankedCandidates {len(self._places)}>"

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Candidate]:
        return (place[-1] for place in self._ranked)

    @property
    def may_try(self) -> bool:
        """Whether a new agent may get a trial."""
        return bool(self._on_trial)

    def find(self, did: str) -> Candidate | None:
        """Return a candidate, if it is known."""
        known = self._places.get(did)
        return None if known is None else known[-1]

    # -- contents ---------------------------------------------------------------------------------

    def fill(self, candidates: Sequence[Candidate]) -> None:
        """Add the first candidates, which takes less than to add them one by one."""
        assert not self._places, self
        added: list[list[_Entry]] = [[] for _ in self._orders]
        for one in candidates:
            for number, entry in self._entries(one):
                added[number].append(entry)
        for order, entries in zip(self._orders, added, strict=True):
            order.update(entries)
        self._sort(candidates, self._lowest_micro())

    def put(self, candidate: Candidate) -> None:
        """Add a candidate, or replace what was known of it."""
        known = self._places.get(candidate.did)
        was = None
        if known is not None:
            was = known[-1]
            if was == candidate:
                return
            self._ranked.remove(known)
        elif not self._places:
            self._ranked_by_micro = candidate.price_micro
        place = find_place(candidate, self._ranked_by_micro, self._rules)
        self._places[candidate.did] = place
        self._ranked.add(place)
        # Mostly another dispatch to it is open, which moves it in no other order unless it is new.
        is_same = was is not None and was[:2] == candidate[:2] and was[3:] == candidate[3:]
        if not is_same or self._is_new(candidate):
            self._move(was, candidate)

    def drop(self, did: str) -> None:
        """Remove a candidate, if it is known."""
        known = self._places.pop(did, None)
        if known is not None:
            self._ranked.remove(known)
            self._move(known[-1], None)

    def _move(self, was: Candidate | None, now: Candidate | None) -> None:
        before = set() if was is None else self._entries(was)
        after = set() if now is None else self._entries(now)
        for number, entry in before - after:
            self._orders[number].remove(entry)
        for number, entry in after - before:
            self._orders[number].add(entry)

    def _entries(self, one: Candidate) -> set[tuple[int, _Entry]]:
        """Return a candidate's entry in each of the orders that have one."""
        identity = (one.order, one.did)
        entries: set[tuple[int, _Entry]] = {(3, (one.owner_did, *identity))}
        if one.is_bounded:
            entries.add((0, (one.price_micro, *identity)))
        else:
            entries.add((1, (one.price_micro, *identity)))
            entries.add((2, (-one.limit_micro_max, *identity)))
        # Only with room: a trial that waits in a queue does not measure the agent.
        if self._is_new(one) and one.taken_share < 1.0:
            entries.add((4, identity))
        return entries

    def _is_new(self, candidate: Candidate) -> bool:
        return candidate.standing.total < self._rules.trial_tasks

    def _lowest_micro(self) -> int:
        return min((order[0][0] for order in (self._fixed, self._by_token) if order), default=0)

    def _sort(self, candidates: Iterable[Candidate], cheapest_micro: int) -> None:
        """Sort the candidates by their scores at this cheapest price."""
        places = [find_place(one, cheapest_micro, self._rules) for one in candidates]
        self._places = {place[-1].did: place for place in places}
        self._ranked = SortedList(places)
        self._ranked_by_micro = cheapest_micro
        self._weighed_since = 0

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
            refused: agents that are not chosen either, some hundred at most.
            owner_did: the owner whose agents are not chosen.
            accepts: which agents may be chosen; None: all.

        Returns:
            None when there is no candidate that the node may take.
        """
        if not self._places:
            return None
        lowest_micro = self._lowest_micro()
        if lowest_micro != self._ranked_by_micro:
            self._weighed_since += POOL_MAX
            if self._weighed_since >= len(self._places):
                self._sort(list(self), lowest_micro)
        node = self._build_node(price_max_micro, price_max_micro, refused, owner_did, accepts)
        best = node.take(self, SHOWN_MAX)
        cheapest_micro = lowest_micro if node.is_open else self._find_cheapest(node)
        if cheapest_micro is None or not best or cheapest_micro != self._ranked_by_micro:
            pool = self._build_pool(node, is_hidden=not best)
            if not pool:
                return None
            cheapest_micro = min(one.price_micro for one in pool)
            place = partial(find_place, cheapest_micro=cheapest_micro, rules=self._rules)
            best = nsmallest(SHOWN_MAX, pool, key=place)
        trial = None if seed is None else self._pick_trial(seed, node, best)
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
        node = self._build_node(price_max_micro, limit_micro, refused, owner_did, accepts)
        cheapest_micro = self._find_cheapest(node)
        if cheapest_micro is None:
            pool = self._build_pool(node, is_hidden=False)
            cheapest_micro = min((one.price_micro for one in pool), default=None)
        return cheapest_micro

    def find_lowest_prices(self, accepts: Accepts | None = None) -> list[int]:
        """Return the lowest fixed price, and the lowest above 0 if there is one.

        Args:
            accepts: which of the cheapest agents count; None: all.
        """
        node = self._build_node(MICRO_MAX, 0, NONE, None, accepts)
        first = (node.take(self._of(self._fixed.irange((lowest,))), 1) for lowest in (0, 1))
        return [one.price_micro for found in first for one in found]

    def _build_node(
        self,
        price_max_micro: int,
        limit_micro: int,
        refused: Set[str],
        owner_did: str | None,
        accepts: Accepts | None,
    ) -> _Node:
        is_open = (
            not refused
            and accepts is None
            and owner_did is None
            and (not self._fixed or self._fixed[-1][0] <= price_max_micro)
            and (not self._by_stake or -self._by_stake[-1][0] >= limit_micro)
        )
        return _Node(price_max_micro, limit_micro, refused, owner_did, accepts, is_open)

    def _find_cheapest(self, node: _Node) -> int | None:
        orders = (self._fixed.irange(None, node.dearest), self._by_token)
        first = [one for order in orders for one in node.take(self._of(order), 1)]
        return min((one.price_micro for one in first), default=None)

    def _build_pool(self, node: _Node, *, is_hidden: bool) -> Collection[Candidate]:
        """Return candidates that a node may take, none only if there are none.

        Args:
            is_hidden: none of the first by score is among them.
        """
        orders: list[Iterable[_Entry]] = [
            self._fixed.irange(None, node.dearest),
            self._by_token,
            self._by_stake.irange(None, node.shortest),
        ]
        open_to = self._fixed.bisect(node.dearest) + self._by_stake.bisect(node.shortest)
        if node.owner_did is not None:
            first, end = (node.owner_did,), (node.owner_did, inf)
            orders.append(self._by_owner.irange(None, first))
            orders.append(self._by_owner.irange(end, None))
            owned = self._by_owner.bisect(end) - self._by_owner.bisect(first)
            open_to = min(open_to, len(self._places) - owned)
        sources = [() if is_hidden else self, *map(self._of, orders)]
        pool = {one.did: one for source in sources for one in node.take(source, POOL_MAX)}
        if not pool and open_to > LOOKS_MAX:
            # Several restrictions together may hide the only one that the node may take.
            return list(islice(filter(node.may_take, self), SHOWN_MAX))
        return pool.values()

    def _of(self, entries: Iterable[_Entry]) -> Iterator[Candidate]:
        return (self._places[entry[-1]][-1] for entry in entries)

    def _pick_trial(self, seed: int, node: _Node, best: Iterable[Candidate]) -> Candidate | None:
        """Return the new agent that gets a trial, None without a trial."""
        turn, lot = seed % BPS, seed // BPS
        on_trial = self._on_trial
        if turn >= self._rules.trial_share_bps or not on_trial:
            return None
        # A trial is in place of a proven agent.
        if all(map(self._is_new, best)) and all(map(self._is_new, node.take(self, POOL_MAX))):
            return None
        if node.is_open:
            return self._places[on_trial[lot % len(on_trial)][-1]][-1]
        start = 0 if len(on_trial) <= LOOKS_MAX else lot % len(on_trial)
        fitting = node.take(self._of(on_trial.islice(start)), LOOKS_MAX)
        return fitting[lot % len(fitting)] if fitting else None


class _Node(NamedTuple):
    """What one node may take of the candidates: the arguments of a choice.

    `is_open`: it may take every candidate.
    """

    price_max_micro: int
    limit_micro: int
    refused: Set[str]
    owner_did: str | None
    accepts: Accepts | None
    is_open: bool

    @property
    def dearest(self) -> _Entry:
        """The end of what the node may take in the order of fixed prices."""
        return self.price_max_micro, inf

    @property
    def shortest(self) -> _Entry:
        """The end of what the node may take in the order of stakes."""
        return -self.limit_micro, inf

    def may_take(self, one: Candidate) -> bool:
        """Say whether the node may take a candidate."""
        if one.owner_did == self.owner_did or one.did in self.refused:
            return False
        if one.is_bounded and one.price_micro > self.price_max_micro:
            return False
        if not one.is_bounded and one.limit_micro_max < self.limit_micro:
            return False
        return self.accepts is None or self.accepts(one.did)

    def take(self, candidates: Iterable[Candidate], count: int) -> list[Candidate]:
        """Return those of the first `LOOKS_MAX` candidates that the node may take."""
        if self.is_open:
            return list(islice(candidates, count))
        return list(islice(filter(self.may_take, islice(candidates, LOOKS_MAX)), count))
