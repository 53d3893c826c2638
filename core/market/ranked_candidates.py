"""The candidates of one capability, sorted by score, and the choice of one for a node; pure.

Theory of operation. Every dispatch needs a choice, so the candidates stay sorted by score.

- A score depends on the lowest price of all candidates. When this price has changed, the order is
  out of date. Sorting again costs more than one choice. It is postponed until the choices since the
  change have together cost as much.
- A choice takes the first candidates in this order that the node may take.
- A choice uses a pool in two cases: the lowest price for this node is not the price on which the
  order is based, or the node may take none of the first `LOOKS_MAX` candidates. The pool has the
  first candidates by score, by price and by stake. Their scores are computed again for this node.
  With at most `POOL_MAX` candidates, the choice is therefore exact.
- The order by price has a group for each owner. So a walk skips all agents of an owner at once.
- New agents get a fixed share of the choices, because otherwise they could not build a reputation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import partial
from heapq import heappop, heappush, nsmallest
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

from sortedcontainers import SortedList

from core.market.ranking import SHOWN_MAX, Candidate, RankingRules, sort_key
from core.money import MICRO_MAX

BPS: Final = 10_000
# The most candidates that a pool takes from each order.
POOL_MAX: Final = 64
# The most candidates of an order that are examined for a node.
LOOKS_MAX: Final = 192
NONE: Final[Set[str]] = frozenset()

# Returns whether a node may take the agent with a DID.
Accepts = Callable[[str], bool]
# The sort key of a candidate in one order; the last item is the candidate's DID.
_Entry = tuple[Any, ...]


class Node(NamedTuple):
    """The restrictions of one node on its candidates.

    `price_max_micro`: the highest allowed fixed price. `limit_micro`: the price for which the stake
    of an agent that is paid by tokens must suffice. `refused`: DIDs of agents that must not be
    chosen, at most some hundred. `owners`: the owners whose agents must not be chosen. `accepts`:
    whether an agent may be chosen; None: every agent may.
    """

    price_max_micro: int
    limit_micro: int
    refused: Set[str] = NONE
    owners: Collection[str] = ()
    accepts: Accepts | None = None

    def admits(self, did: str) -> bool:
        """Return whether `refused` and `accepts` permit an agent; ignores price, stake, owner."""
        return did not in self.refused and (self.accepts is None or self.accepts(did))

    def may_take(self, one: Candidate) -> bool:
        """Return whether all restrictions of the node permit a candidate."""
        price_max_micro, limit_micro, refused, owners, accepts = self
        did, asked_micro, _, _, _, _, _, _, is_bounded, owner_did, limit_micro_max = one
        if did in refused or owner_did in owners:
            return False
        if is_bounded and asked_micro > price_max_micro:
            return False
        if not is_bounded and limit_micro_max < limit_micro:
            return False
        return accepts is None or accepts(did)

    def take(self, candidates: Iterable[Candidate], count: int) -> list[Candidate]:
        """Return the first candidates that the node may take.

        Args:
            candidates: only the first `LOOKS_MAX` of them are examined.
            count: the most candidates to return.
        """
        return list(islice(filter(self.may_take, islice(candidates, LOOKS_MAX)), count))


class Best(NamedTuple):
    """The result of a choice.

    `candidates`: at most ten, the best first. `cheapest_micro`: the lowest price of a candidate
    that the node may take. `is_trial`: the choice is a trial, and the last candidate is chosen.
    Without a trial, the first candidate is chosen.
    """

    candidates: Sequence[Candidate]
    cheapest_micro: int
    is_trial: bool

    @property
    def did(self) -> str:
        """The DID of the chosen agent."""
        return self.candidates[-1 if self.is_trial else 0].did


class _ByPrice:
    """Entries `(owner, price, order, did)`, grouped by owner and sorted by price and order."""

    def __init__(self) -> None:
        # The entries without their owner, grouped by (owner, whether the price is above 0). Entries
        # with a price of 0 have separate groups, so that a walk can begin at the first price above
        # 0.
        self._groups: dict[tuple[str, bool], list[_Entry]] = {}
        # The first entry of each group, with the key of the group.
        self._firsts = SortedList[tuple[_Entry, tuple[str, bool]]]()

    def update(self, entries: Iterable[_Entry]) -> None:
        """Add entries to an empty object; this is faster than `add` for each entry."""
        for owner_did, *rest in entries:
            self._groups.setdefault((owner_did, rest[0] > 0), []).append(tuple(rest))
        for group in self._groups.values():
            group.sort()
        self._firsts.update((group[0], key) for key, group in self._groups.items())

    def add(self, entry: _Entry) -> None:
        """Add an entry."""
        key, one = (entry[0], entry[1] > 0), entry[1:]
        group = self._groups.setdefault(key, [])
        if group and one < group[0]:
            self._firsts.remove((group[0], key))
        insort(group, one)
        if group[0] is one:
            self._firsts.add((one, key))

    def remove(self, entry: _Entry) -> None:
        """Remove an entry."""
        key, one = (entry[0], entry[1] > 0), entry[1:]
        group = self._groups[key]
        place = bisect_left(group, one)
        del group[place]
        if place == 0:
            self._firsts.remove((one, key))
            if group:
                self._firsts.add((group[0], key))
            else:
                del self._groups[key]

    def __len__(self) -> int:
        return len(self._groups)

    def find_lowest(self) -> float:
        """Return the lowest price, infinity without entries."""
        return self._firsts[0][0][0] if self._firsts else inf

    def walk(
        self, most_micro: float, passed: Collection[str], lowest_micro: int = 0
    ) -> Iterator[str]:
        """Yield the DIDs of the agents whose price is between two bounds, the lowest price first.

        Args:
            most_micro: the highest price.
            passed: owners whose agents are skipped. The caller may add owners during the walk.
            lowest_micro: the lowest price, 0 or 1.
        """
        firsts = self._firsts.irange(((lowest_micro,), ("", False)))
        first = next(firsts, None)
        # The next entry of each group that the walk has entered, with its place in the group.
        later: list[tuple[_Entry, tuple[str, bool], int]] = []
        while first is not None or later:
            if first is not None and not (later and later[0][0] < first[0]):
                (one, key), place = first, 0
                first = next(firsts, None)
            else:
                one, key, place = heappop(later)
            if one[0] > most_micro:
                return
            if key[0] in passed:
                continue
            yield one[-1]
            group = self._groups[key]
            if place + 1 < len(group):
                heappush(later, (group[place + 1], key, place + 1))


class RankedCandidates:
    """The candidates of one capability that may be chosen, one for each DID.

    Args:
        rules: the weights of the scores, and the share of trials.
        candidates: the initial candidates.
    """

    def __init__(self, rules: RankingRules, candidates: Sequence[Candidate] = ()) -> None:
        self._rules = rules
        # Agents with a fixed price by price, and agents paid by tokens by price.
        self._fixed, self._by_token = _ByPrice(), _ByPrice()
        # Agents paid by tokens, the largest stake first.
        self._by_stake = SortedList[_Entry]()
        # New agents with free capacity, in the order of registration.
        self._on_trial = SortedList[_Entry]()
        self._orders: tuple[_ByPrice | SortedList[_Entry], ...] = (
            self._fixed, self._by_token, self._by_stake, self._on_trial
        )  # fmt: skip
        added: list[list[_Entry]] = [[] for _ in self._orders]
        for one in candidates:
            for number, entry in self._entries(one):
                added[number].append(entry)
        for number, entries in enumerate(added):
            self._orders[number].update(entries)
        self._ranked_by_micro = self._find_lowest()
        self._sort(candidates, self._ranked_by_micro)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Candidate]:
        return (place[-1] for place in self._ranked)

    # -- contents ---------------------------------------------------------------------------------

    def put(self, candidate: Candidate) -> None:
        """Add a candidate, or replace the known candidate with the same DID."""
        known = self._places.get(candidate.did)
        was = None
        if known is not None:
            was = known[-1]
            if was == candidate:
                return
            self._ranked.remove(known)
        elif not self._places:
            self._ranked_by_micro = candidate.price_micro
        place = sort_key(candidate, self._ranked_by_micro, self._rules)
        self._places[candidate.did] = place
        self._ranked.add(place)
        # Usually only `in_flight` has changed. This changes the agent's place in the other orders
        # only if the agent is new.
        is_same = was is not None and was[:2] == candidate[:2] and was[3:] == candidate[3:]
        if not is_same or self._is_new(candidate):
            self._move(was, candidate)

    def drop(self, did: str) -> None:
        """Remove a candidate; does nothing if the DID is unknown."""
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
        """Return a candidate's entries, each with the index of its order in `_orders`."""
        by_price = (one.owner_did, one.price_micro, one.order, one.did)
        entries: set[tuple[int, _Entry]] = {(0 if one.is_bounded else 1, by_price)}
        if not one.is_bounded:
            entries.add((2, (-one.limit_micro_max, one.order, one.did)))
        # An agent without free capacity gets no trial, because a trial in a queue does not measure
        # it.
        if self._is_new(one) and one.taken_share < 1.0:
            entries.add((3, (one.order, one.did)))
        return entries

    def _is_new(self, candidate: Candidate) -> bool:
        return candidate.standing.total < self._rules.trial_tasks

    def _find_lowest(self) -> float:
        return min(self._fixed.find_lowest(), self._by_token.find_lowest())

    def _sort(self, candidates: Iterable[Candidate], cheapest_micro: float) -> None:
        """Replace the candidates, and sort them by their scores at this lowest price."""
        places = [sort_key(one, cheapest_micro, self._rules) for one in candidates]
        self._places = {place[-1].did: place for place in places}
        self._ranked = SortedList(places)
        self._ranked_by_micro = cheapest_micro
        self._weighed_since = 0

    # -- choice -----------------------------------------------------------------------------------

    def choose(self, node: Node, seed: int | None = None) -> Best | None:
        """Choose the best candidate for a node (`sort_key`), or a new agent for a trial.

        Args:
            node: the restrictions of the node.
            seed: `trial_seed` of this attempt; None: no trials.

        Returns:
            The choice; None if the node may take no candidate.
        """
        if not self._places:
            return None
        lowest_micro = self._find_lowest()
        if lowest_micro != self._ranked_by_micro:
            self._weighed_since += POOL_MAX
            if self._weighed_since >= len(self._places):
                self._sort(list(self), lowest_micro)
        best = node.take(self, SHOWN_MAX)
        cheapest_micro = self._find_first(node)
        if cheapest_micro is None or not best or cheapest_micro != self._ranked_by_micro:
            pool = self._build_pool(node, is_hidden=not best)
            if not pool:
                return None
            cheapest_micro = min(one.price_micro for one in pool)
            place = partial(sort_key, cheapest_micro=cheapest_micro, rules=self._rules)
            best = nsmallest(SHOWN_MAX, pool, key=place)
        trial = None if seed is None else self._pick_trial(seed, node, best)
        if trial is None:
            return Best(best, cheapest_micro, False)
        # The agent on trial is last. If the list is full, it replaces the tenth candidate.
        others = [one for one in best if one.did != trial.did]
        return Best([*others[: SHOWN_MAX - 1], trial], cheapest_micro, True)

    def find_cheapest(self, node: Node) -> int | None:
        """Return the lowest price of a candidate that a node may take; None if it may take none."""
        cheapest_micro = self._find_first(node)
        if cheapest_micro is None:
            pool = self._build_pool(node, is_hidden=False)
            cheapest_micro = min((one.price_micro for one in pool), default=None)
        return cheapest_micro

    def find_lowest_prices(self, accepts: Accepts | None = None) -> list[int]:
        """Return the lowest fixed price and the lowest fixed price above 0, if there are such
        prices.

        Args:
            accepts: whether an agent counts; None: every agent does. Only the first `LOOKS_MAX`
                agents by price are examined.
        """
        node = Node(MICRO_MAX, 0, accepts=accepts)
        first = (node.take(self._of(self._fixed.walk(inf, (), lowest)), 1) for lowest in (0, 1))
        return [one.price_micro for found in first for one in found]

    def walk(self, price_max_micro: int, passed: Collection[str]) -> Iterator[str]:
        """Yield the DIDs of the agents with a fixed price within a limit, the lowest price first.

        Args:
            price_max_micro: the limit, micro-credits.
            passed: owners whose agents are skipped. The caller may add owners during the walk.
        """
        return self._fixed.walk(price_max_micro, passed)

    def _find_first(self, node: Node) -> int | None:
        """Return the lowest price of a candidate that the node may take, from the orders by price.

        Only the first `LOOKS_MAX` candidates of each order are examined. None if the node may take
        none of them.
        """
        orders = ((self._fixed, node.price_max_micro), (self._by_token, inf))
        found = [
            one.price_micro
            for order, most_micro in orders
            if order
            for one in node.take(self._of(order.walk(most_micro, node.owners)), 1)
        ]
        return min(found, default=None)

    def _build_pool(self, node: Node, *, is_hidden: bool) -> Collection[Candidate]:
        """Return the first candidates of each order that a node may take.

        The result is empty only if the node may take no candidate.

        Args:
            is_hidden: whether the node may take none of the first `LOOKS_MAX` by score.
        """
        # Every candidate that the node may take is in `fixed` or in `by_stake`.
        fixed = self._of(self._fixed.walk(node.price_max_micro, node.owners))
        by_stake = self._of(
            entry[-1] for entry in self._by_stake.irange(None, (-node.limit_micro, inf))
        )
        by_token = self._of(self._by_token.walk(inf, node.owners))
        sources = (() if is_hidden else self, fixed, by_token, by_stake)
        pool = {one.did: one for source in sources for one in node.take(source, POOL_MAX)}
        if not pool and any(next(source, None) is not None for source in (fixed, by_stake)):
            # The node may take none of the first candidates of any order. Examine all candidates.
            return list(islice(filter(node.may_take, self), SHOWN_MAX))
        return pool.values()

    def _of(self, dids: Iterable[str]) -> Iterator[Candidate]:
        return (self._places[did][-1] for did in dids)

    def _pick_trial(self, seed: int, node: Node, best: Iterable[Candidate]) -> Candidate | None:
        """Return the new agent that gets a trial, None if this attempt is no trial."""
        turn, lot = seed % BPS, seed // BPS
        on_trial = self._on_trial
        if turn >= self._rules.trial_share_bps or not on_trial:
            return None
        # Without a proven agent among the candidates, every choice is a new agent anyway.
        if all(map(self._is_new, best)) and all(map(self._is_new, node.take(self, POOL_MAX))):
            return None
        are_few = len(on_trial) <= LOOKS_MAX
        dids = (entry[-1] for entry in on_trial.islice(0 if are_few else lot % len(on_trial)))
        fitting = node.take(self._of(dids), LOOKS_MAX if are_few else 1)
        return fitting[lot % len(fitting)] if fitting else None
