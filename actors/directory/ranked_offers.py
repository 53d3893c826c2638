"""Keeps the agents of each capability ranked, so that a selection need not weigh all agents.

Theory of operation: changes to agents are applied lazily. Code that changes an agent marks the
agent in the rankings. Changes that only time causes (a heartbeat expires, a circuit permits a
trial) are in a heap, sorted by time. Before a selection, the ranking weighs the changed agents
again and moves them. So the cost of a change does not depend on the number of agents. If very many
agents have changed, all agents are ranked anew, so no selection takes longer than the first one.

Selections with the same `Terms` share a ranking. Conditions of a single node are not part of the
ranking; the choice skips agents that the node may not take. Auctions have rankings of their own, in
which the prices are standing bids. Reference: features.md (Targeted routing). Decision
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

# Maximum number of rankings of one capability, and of candidates in all rankings. A candidate takes
# half a kilobyte.
TERMS_MAX: Final = 4
CANDIDATES_MAX: Final = 250_000
# A ranking that has grown by more than this factor is built anew, because `CANDIDATES_MAX` counts
# its size at the time when it was built.
GROWTH_MAX: Final = 2
# If more than `MOVED_MAX` agents and more than 1/`MOVED_DIVISOR` of all agents have changed, all
# agents are ranked anew. Ranking an agent anew takes a fifth of the time of moving it.
MOVED_MAX: Final = 64
MOVED_DIVISOR: Final = 4


# Values of `Terms.only`: trusted verifiers, and agents that accept verifiers that are not trusted.
TRUSTED_ONLY: Final = "trusted"
CHOOSY_ONLY: Final = "choosy"


class Terms(NamedTuple):
    """The conditions that all selections of one ranking share.

    `price`: the price of agents whose card has none. `is_by_token`: agents paid by tokens may be
    taken. `requires_stake`: only agents with enough stake may be taken. `only`: restricts the
    agents to `TRUSTED_ONLY` or `CHOOSY_ONLY`; "" for all. `bid_stake_bps`: only for auctions, where
    standing bids are the prices: the stake that a bid requires, basis points of the bid. `scope`:
    private subnets whose agents may be taken too, with the versions of these subnets.
    """

    price: Price | None
    is_by_token: bool
    requires_stake: bool
    only: str = ""
    bid_stake_bps: int | None = None
    scope: tuple[tuple[str, int], ...] = ()

    def find_bar(self, entry: AgentEntry) -> str | None:
        """Return why an agent does not meet a non-empty `only`; None if it does."""
        if self.only == TRUSTED_ONLY:
            return None if entry.is_trusted else NOT_TRUSTED
        return VERIFIER_NOT_ACCEPTED if entry.accepted_verifiers == TRUSTED_VERIFIERS else None


class Weighed(NamedTuple):
    """An agent as a candidate at a time.

    `if_unlocked`: the candidate if other work had locked none of the agent's stake; None if the
    locks make no difference, or if the agent could not be chosen even without them. `if_back`: the
    candidate if the agent were not away; None if it is not away, or could not be chosen even if it
    came back. `is_able`: the agent can take work, apart from price and stake. `until_ms`: until
    when all this holds, unless the agent changes earlier.
    """

    candidate: Candidate
    if_unlocked: Candidate | None
    if_back: Candidate | None
    is_able: bool
    until_ms: float

    @property
    def kinds(self) -> tuple[Candidate | None, ...]:
        """Return the candidates for the lists `free`, `locked` and `away` of `RankedOffers`."""
        free = self.candidate if self.candidate.excluded is None else None
        return free, self.if_unlocked, self.if_back


def build_weighed(candidate: Candidate, condition: Condition, barred: str | None) -> Weighed:
    """Return a candidate, with the candidates that it would be without stake locks or absence.

    Args:
        candidate: `excluded` is the reason from its condition, or else `barred`.
        condition: the health of the agent.
        barred: why the agent may not be chosen although it is healthy; None: it may be chosen.
    """
    locked = candidate if candidate.excluded == STAKE_LOCKED else None
    may_return = condition.excluded in PASSING and barred in (None, STAKE_LOCKED)
    away = candidate if may_return else None
    # An agent that has declined a dispatch may accept the next dispatch.
    is_able = condition.excluded in (None, FULL)
    return Weighed(candidate, locked, away, is_able, condition.until_ms)


# Returns an agent as a candidate at a time, Unix milliseconds.
_Weigh = Callable[[AgentEntry, int], Weighed]

_NONE: Final[dict[Terms, RankedOffers]] = {}


class RankedOffers:
    """The ranking of the agents of one capability for selections with the same terms.

    `free`: the agents that can take work. `locked`: the agents that could take work if other work
    had not locked their stake. An agent paid by tokens may be in both lists, because its required
    stake depends on the node's limit. `away`: the agents that could take work if they came back.
    `made_of`: the number of agents when the ranking was built.

    Args:
        rules: how agents are ranked.
        weigh: returns an entry as a candidate.
        entries: all agents that offer the capability.
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
        # The agents that can take work, in the order of registration.
        able = ((one.candidate.order, did) for did, one in self._known.items() if one.is_able)
        self._able = SortedSet(able)

    @property
    def able(self) -> Iterable[str]:
        """Return the agents that can take work, apart from prices and stakes, oldest first."""
        return (did for _, did in self._able)

    def mark(self, did: str) -> None:
        """Mark an agent as changed; `update` weighs it again."""
        self._changed.add(did)

    def update(self, entries: Mapping[str, AgentEntry], at_ms: int) -> bool:
        """Weigh and move the agents that have changed.

        Args:
            entries: all agents that offer the capability, by DID.
            at_ms: now, Unix milliseconds.

        Returns:
            False if the caller must build a new ranking instead.
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
        """Return an agent as it was last weighed; its `excluded` says why no node may take it."""
        return self._known[did].candidate

    def find_cheapest(self, node: Node) -> int | None:
        """Return the lowest price of the agents that a node may take, ignoring its price limit."""
        # Only verifications have `owners` here, and verifications lock no stake.
        kinds = (self.free,) if node.owners else (self.free, self.locked)
        prices = (one.find_cheapest(node._replace(price_max_micro=MICRO_MAX)) for one in kinds)
        return min((price for price in prices if price is not None), default=None)

    def _weigh_now(self, entry: AgentEntry, at_ms: int) -> Weighed:
        weighed = self._known[entry.did] = self._weigh(entry, at_ms)
        # An agent has at most one wake-up. An earlier wake-up weighs the agent again, and then sets
        # the later wake-up.
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
        # The order differs if the agent was deregistered and registered again.
        if former is not None and former.candidate.order != entry.order:
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
    """The rankings of a directory by capability and terms; each is built when a choice needs it.

    Args:
        rules: how agents are ranked.
        weigh: returns an entry as a candidate, by capability, terms, entry and time.
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
        """Return the current ranking of a capability's agents.

        Args:
            entries: all agents that offer the capability, by DID.
            at_ms: now, Unix milliseconds.
        """
        known = self._rankings.get(capability_id, _NONE).get(terms)
        if known is not None and known.update(entries, at_ms):
            return known
        weigh = partial(self._weigh, capability_id, terms)
        ranking = RankedOffers(self._rules, weigh, entries.values(), at_ms)
        if entries:  # no cache for capabilities without agents: nodes may name any number of them
            self._keep(capability_id, terms, ranking)
        return ranking

    def _keep(self, capability_id: str, terms: Terms, ranking: RankedOffers) -> None:
        """Cache a ranking; at a limit, first drop other rankings of the capability, or all."""
        rankings = self._rankings.setdefault(capability_id, {})
        known = rankings.get(terms)
        if known is None and terms.scope and len(rankings) >= TERMS_MAX // 2:
            # Rankings with private subnets take at most half of the places, so that rankings which
            # all payers share stay cached.
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
        """Mark an agent that offers these capabilities as changed in their rankings."""
        for capability_id in capability_ids:
            for ranking in self._rankings.get(capability_id, _NONE).values():
                ranking.mark(did)

    def drop(self, capability_id: str) -> None:
        """Drop the rankings of a capability."""
        for ranking in self._rankings.pop(capability_id, _NONE).values():
            self._candidates -= ranking.made_of

    def clear(self) -> None:
        """Drop every ranking."""
        self._rankings.clear()
        self._candidates = 0
