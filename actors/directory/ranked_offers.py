"""The agents that offer a capability in the order in which choices take them, kept up to date.

Theory of operation: a choice finds the ranking as it was and first moves the agents about which
something has changed since. Who changes something marks the agent; what time alone changes (a
heartbeat that expires, a circuit that is tried again) has its place in a heap. So a change takes
the same time however many agents there are, and none where no choice is made. When very many have
changed since, all are ranked anew, so no choice takes longer than the first one. Auctions have
rankings of their own, in which the standing bids are the prices.
A ranking is one for what selections have in common (`Terms`); what else a node may not take is
passed over at the choice. Reference: features.md (Targeted routing). Decision
reputation-and-ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from typing import Final, NamedTuple

from sortedcontainers import SortedSet

from actors.directory.agent_stakes import STAKE_LOCKED
from actors.directory.health.agent_health import PASSING, Condition
from actors.ports import AgentEntry
from core.market.no_candidates import (
    FULL,
    NOT_TRUSTED,
    VERIFIER_NOT_ACCEPTED,
)
from core.market.pricing import Price
from core.market.ranked_candidates import Node, RankedCandidates
from core.market.ranking import Candidate, RankingRules
from core.money import MICRO_MAX
from core.records.bounds import TRUSTED_VERIFIERS

# Rankings kept for one capability, and candidates in all of them: half a kilobyte each.
TERMS_MAX: Final = 4
CANDIDATES_MAX: Final = 250_000
# A ranking that has grown by more than this is made anew, so that it is counted as what it is.
GROWTH_MAX: Final = 2
# Beyond both, the agents of which something has changed are not moved one by one: all are ranked
# anew, which takes a fifth of the time for each.
MOVED_MAX: Final = 64
MOVED_DIVISOR: Final = 4


# Trusted agents, of which verifiers are chosen; and agents that accept other verifiers too.
TRUSTED_ONLY: Final = "trusted"
CHOOSY_ONLY: Final = "choosy"


class Terms(NamedTuple):
    """What selections have in common that share a ranking.

    `price`: of agents whose card has none. `is_by_token`: agents paid by tokens may be taken.
    `requires_stake`: only agents with enough stake may. `only`: which agents may, `TRUSTED_ONLY` or
    `CHOOSY_ONLY`; "" for all. `bid_stake_bps`: of auctions, whose prices are the standing bids: the
    stake that one requires, basis points. `scope`: private subnets whose agents may be taken too,
    with their versions.
    """

    price: Price | None
    is_by_token: bool
    requires_stake: bool
    only: str = ""
    bid_stake_bps: int | None = None
    scope: tuple[tuple[str, int], ...] = ()

    def find_bar(self, entry: AgentEntry) -> str | None:
        """Return why an agent is none of those that `only` names, None where it is."""
        if self.only == TRUSTED_ONLY:
            return None if entry.is_trusted else NOT_TRUSTED
        return VERIFIER_NOT_ACCEPTED if entry.accepted_verifiers == TRUSTED_VERIFIERS else None


class Weighed(NamedTuple):
    """An agent as a candidate at a time. Many are made at once.

    `if_unlocked`: the agent without other work's stake locks; None if it could not be chosen then,
    or if the locks make no difference. `if_back`: the agent if it were not away; None if it is not
    away or could not be chosen then. `is_able`: it can take work, whatever its price and stake.
    `until_ms`: when time alone may change this.
    """

    candidate: Candidate
    if_unlocked: Candidate | None
    if_back: Candidate | None
    is_able: bool
    until_ms: float

    @property
    def kinds(self) -> tuple[Candidate | None, ...]:
        """The agent among those that can take work, if unlocked, and if back."""
        free = self.candidate if self.candidate.excluded is None else None
        return free, self.if_unlocked, self.if_back


def build_weighed(candidate: Candidate, condition: Condition, barred: str | None) -> Weighed:
    """Return a candidate with what it would be otherwise.

    Args:
        candidate: `excluded`, by its condition, or else by what bars it.
        condition: its health.
        barred: why it may not be chosen if it can take work; None: it may.
    """
    locked = candidate if candidate.excluded == STAKE_LOCKED else None
    may_return = condition.excluded in PASSING and barred in (None, STAKE_LOCKED)
    away = candidate if may_return else None
    # Who has declined a dispatch may take the next.
    is_able = condition.excluded in (None, FULL)
    return Weighed(candidate, locked, away, is_able, condition.until_ms)


# Weighs an agent at a time.
_Weigh = Callable[[AgentEntry, int], Weighed]

_NONE: Final[dict[Terms, RankedOffers]] = {}


class RankedOffers:
    """The agents of one capability by one kind of selection.

    `free`: those that can take work. `locked`: those that could with the stake that other work has
    locked; one paid by tokens may be in both, since a node's limit says how much it needs. `away`:
    those that could if they came back.
    `made_of`: how many there were.

    Args:
        rules: how agents are ranked.
        weigh: makes a candidate of an entry.
        entries: all that offer the capability.
        at_ms: now, Unix milliseconds.
    """

    def __init__(
        self,
        rules: RankingRules,
        weigh: _Weigh,
        entries: Collection[AgentEntry],
        at_ms: int,
    ) -> None:
        self._weigh = weigh
        self._at_ms = at_ms
        self.made_of = len(entries)
        self._changed: set[str] = set()
        self._wakes: list[tuple[float, str]] = []
        self._wake_ms: dict[str, float] = {}
        self._known: dict[str, Weighed] = {}
        for entry in entries:
            self._weigh_now(entry, at_ms)
        all_kinds = zip(*(one.kinds for one in self._known.values()), strict=True)
        lists = [[one for one in kind if one is not None] for kind in all_kinds]
        self._kinds = [RankedCandidates(rules, kind) for kind in lists or [[], [], []]]
        self.free, self.locked, self.away = self._kinds
        # Those that can take work, in the order of registration.
        able = ((one.candidate.order, did) for did, one in self._known.items() if one.is_able)
        self._able = SortedSet(able)

    @property
    def able(self) -> Iterable[str]:
        """The agents that can take work, whatever their prices and stakes, as they registered."""
        return (did for _, did in self._able)

    def mark(self, did: str) -> None:
        """Note that something about an agent has changed."""
        self._changed.add(did)

    def update(self, entries: Mapping[str, AgentEntry], at_ms: int) -> bool:
        """Weigh the agents anew about which something has changed.

        Args:
            entries: all that offer the capability, by DID.
            at_ms: now, Unix milliseconds.

        Returns:
            False where all have to be ranked anew instead.
        """
        if at_ms < self._at_ms or len(entries) > GROWTH_MAX * self.made_of:
            return False
        self._at_ms = at_ms
        while self._wakes and self._wakes[0][0] <= at_ms:
            wake_ms, did = heappop(self._wakes)
            if self._wake_ms.get(did) == wake_ms:
                del self._wake_ms[did]
                self._changed.add(did)
        if len(self._changed) > max(MOVED_MAX, len(entries) // MOVED_DIVISOR):
            return False
        for did in self._changed:
            self._move(did, entries.get(did))
        self._changed.clear()
        return True

    def find(self, did: str) -> Candidate:
        """Return an agent as it was last weighed; `excluded`: why no node may take it."""
        return self._known[did].candidate

    def find_cheapest(self, node: Node) -> int | None:
        """Return what the cheapest agent asks that a node may take but for its limit."""
        # A verification, which has barred owners, locks no stake.
        kinds = (self.free,) if node.owners else (self.free, self.locked)
        prices = (one.find_cheapest(node._replace(price_max_micro=MICRO_MAX)) for one in kinds)
        return min((price for price in prices if price is not None), default=None)

    def _weigh_now(self, entry: AgentEntry, at_ms: int) -> Weighed:
        weighed = self._known[entry.did] = self._weigh(entry, at_ms)
        # If an earlier change is expected, the later one is found then.
        if weighed.until_ms < self._wake_ms.get(entry.did, math.inf):
            self._wake_ms[entry.did] = weighed.until_ms
            heappush(self._wakes, (weighed.until_ms, entry.did))
        return weighed

    def _move(self, did: str, entry: AgentEntry | None) -> None:
        if entry is None:
            gone = self._known.pop(did, None)
            if gone is not None:
                self._able.discard((gone.candidate.order, did))
                for kept in self._kinds:
                    kept.drop(did)
            return
        former = self._known.get(did)
        if former is not None and former.candidate.order != entry.order:  # it has left and is back
            self._able.discard((former.candidate.order, did))
        weighed = self._weigh_now(entry, self._at_ms)
        note_able = self._able.add if weighed.is_able else self._able.discard
        note_able((entry.order, did))
        for kept, one in zip(self._kinds, weighed.kinds, strict=True):
            if one is None:
                kept.drop(did)
            else:
                kept.put(one)


class OfferRankings:
    """The rankings of a directory, by capability and terms; made when a choice asks for one.

    Args:
        rules: how agents are ranked.
        weigh: weighs an entry for a capability by terms, at a time.
    """

    def __init__(
        self,
        rules: RankingRules,
        weigh: Callable[[str, Terms, AgentEntry, int], Weighed],
    ) -> None:
        self._rules = rules
        self._weigh = weigh
        self._rankings: dict[str, dict[Terms, RankedOffers]] = {}
        self._candidates = 0

    def find(
        self,
        capability_id: str,
        terms: Terms,
        entries: Mapping[str, AgentEntry],
        at_ms: int,
    ) -> RankedOffers:
        """Return the ranking of a capability's agents, up to date.

        Args:
            entries: all that offer the capability, by DID.
            at_ms: now, Unix milliseconds.
        """
        known = self._rankings.get(capability_id, _NONE).get(terms)
        if known is not None and known.update(entries, at_ms):
            return known
        weigh = partial(self._weigh, capability_id, terms)
        ranking = RankedOffers(self._rules, weigh, entries.values(), at_ms)
        if entries:  # nothing is kept of what no agent offers: there is no end of it
            self._keep(capability_id, terms, ranking)
        return ranking

    def _keep(self, capability_id: str, terms: Terms, ranking: RankedOffers) -> None:
        """Keep a ranking, without the capability's others, or any, where there are too many."""
        rankings = self._rankings.setdefault(capability_id, {})
        known = rankings.get(terms)
        if known is None and terms.scope and len(rankings) >= TERMS_MAX // 2:
            # Members of private subnets leave room for what all payers share.
            former = next((one for one in rankings if one.scope), None)
            if former is None:
                return
            self._candidates -= rankings.pop(former).made_of
        if known is not None:
            self._candidates -= known.made_of
        elif len(rankings) == TERMS_MAX:
            self.drop(capability_id)
        if self._candidates + ranking.made_of > CANDIDATES_MAX:
            self.clear()
        self._rankings.setdefault(capability_id, {})[terms] = ranking
        self._candidates += ranking.made_of

    def mark(self, did: str, capability_ids: Iterable[str]) -> None:
        """Note that something about an agent has changed which offers these capabilities."""
        for capability_id in capability_ids:
            for ranking in self._rankings.get(capability_id, _NONE).values():
                ranking.mark(did)

    def drop(self, capability_id: str) -> None:
        """Drop the rankings of a capability."""
        for ranking in self._rankings.pop(capability_id, _NONE).values():
            self._candidates -= ranking.made_of

    def clear(self) -> None:
        """Drop every ranking, since something about all agents has changed."""
        self._rankings.clear()
        self._candidates = 0
