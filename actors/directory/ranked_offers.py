"""The agents that offer a capability in the order in which choices take them, kept up to date.

Theory of operation: a choice finds the ranking as it was and first moves the agents about which
something has changed since. Who changes something marks the agent; what time alone changes (a
heartbeat that expires, a circuit that is tried again) has its place in a heap. So a change takes
the same time however many agents there are, and none where no choice is made.
A ranking is one for what selections have in common (`Terms`); what else a node may not take is
passed over at the choice. Spec: Targeted routing. Decision 0063.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from typing import Final, NamedTuple

from actors.directory.agent_stakes import STAKE_LOCKED
from actors.ports import AgentEntry
from core.market.pricing import Price
from core.market.ranked_candidates import POOL_MAX, RankedCandidates
from core.market.ranking import Candidate, RankingRules

# Rankings kept for one capability, and candidates in all of them: half a kilobyte each.
TERMS_MAX: Final = 4
CANDIDATES_MAX: Final = 250_000
# A ranking that has grown by more than this is made anew, so that it is counted as what it is.
GROWTH_MAX: Final = 2
# Rankings without the agents of one owner; no more owners can have a quarter of the agents each.
OWNERS_MAX: Final = 3
# For so long a ranking of all is used: to make it anew takes a twentieth of a process's time then.
KEPT_MS_PER_OFFER: Final = 0.1


class Terms(NamedTuple):
    """What selections have in common that share a ranking.

    `price`: of agents whose card has none. `is_by_token`: agents paid by tokens may be taken.
    `requires_stake`: only agents with enough stake may.
    """

    price: Price | None
    is_by_token: bool
    requires_stake: bool


# Returns of an agent at a time the candidate, and when time alone may change it.
_Weigh = Callable[[AgentEntry, int], tuple[Candidate, float]]

_NO_REASON: Final = (None, STAKE_LOCKED)
_NONE: Final[dict[Terms, RankedOffers]] = {}


class RankedOffers:
    """The agents of one capability by one kind of selection.

    `free`: those that can take work. `locked`: those that could with the stake that other work has
    locked. `made_of`: how many there were; `made_ms`: when. `token_limit_micro`: the price from
    which the stake follows that is required of those paid by tokens.

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
        entries: Iterable[AgentEntry],
        at_ms: int,
        token_limit_micro: int,
    ) -> None:
        self._rules = rules
        self._weigh = weigh
        self.made_ms = self._at_ms = at_ms
        self.token_limit_micro = token_limit_micro
        self._changed: set[str] = set()
        self._wakes: list[tuple[float, str]] = []
        self._wake_ms: dict[str, float] = {}
        weighed = [self._weigh_now(entry, at_ms) for entry in entries]
        self.made_of = len(weighed)
        self.free = RankedCandidates(rules)
        self.free.fill([one for one in weighed if one.excluded is None])
        self.locked = RankedCandidates(rules)
        self.locked.fill([one for one in weighed if one.excluded == STAKE_LOCKED])
        self._unable = {one.did: one for one in weighed if one.excluded not in _NO_REASON}
        self._without: dict[str, RankedCandidates] = {}

    def __repr__(self) -> str:
        return f"<RankedOffers free={len(self.free)} locked={len(self.locked)}>"

    @property
    def may_try(self) -> bool:
        """Whether there are new agents beside proven ones, so that one may get a trial."""
        return self.free.may_try or self.locked.may_try

    def mark(self, did: str) -> None:
        """Note that something about an agent has changed."""
        self._changed.add(did)

    def update(self, entries: Mapping[str, AgentEntry], at_ms: int) -> None:
        """Weigh the agents anew about which something has changed.

        Args:
            entries: all that offer the capability, by DID.
            at_ms: now, Unix milliseconds.
        """
        if at_ms < self._at_ms:
            # The clock was set back, so what it has changed is as it was before.
            self._changed.update(entries)
        self._at_ms = at_ms
        while self._wakes and self._wakes[0][0] <= at_ms:
            wake_ms, did = heappop(self._wakes)
            if self._wake_ms.get(did) == wake_ms:
                del self._wake_ms[did]
                self._changed.add(did)
        for did in self._changed:
            entry = entries.get(did)
            if entry is None:
                self._drop(did)
            else:
                self._put(self._weigh_now(entry, at_ms), entry.owner_did)
        self._changed.clear()

    def without(self, owner_did: str, entries: Mapping[str, AgentEntry]) -> RankedCandidates:
        """Return those that can take work and are another's than an owner of many.

        Args:
            entries: all that offer the capability, by DID.
        """
        known = self._without.get(owner_did)
        if known is None:
            if len(self._without) == OWNERS_MAX:
                del self._without[next(iter(self._without))]
            known = self._without[owner_did] = RankedCandidates(self._rules)
            known.fill([one for one in self.free if entries[one.did].owner_did != owner_did])
        return known

    def find(self, did: str) -> Candidate | None:
        """Return an agent as it was last weighed; `excluded`: why no node may take it."""
        return self.free.find(did) or self.locked.find(did) or self._unable.get(did)

    def _weigh_now(self, entry: AgentEntry, at_ms: int) -> Candidate:
        candidate, changes_ms = self._weigh(entry, at_ms)
        # If an earlier change is expected, the later one is found then.
        if changes_ms < self._wake_ms.get(entry.did, math.inf):
            self._wake_ms[entry.did] = changes_ms
            heappush(self._wakes, (changes_ms, entry.did))
        return candidate

    def _put(self, candidate: Candidate, owner_did: str) -> None:
        if candidate.excluded is None:
            self.free.put(candidate)
        else:
            self.free.drop(candidate.did)
        for other_did, ranked in self._without.items():
            if candidate.excluded is None and owner_did != other_did:
                ranked.put(candidate)
            else:
                ranked.drop(candidate.did)
        if candidate.excluded == STAKE_LOCKED:
            self.locked.put(candidate)
        else:
            self.locked.drop(candidate.did)
        if candidate.excluded in _NO_REASON:
            self._unable.pop(candidate.did, None)
        else:
            self._unable[candidate.did] = candidate

    def _drop(self, did: str) -> None:
        self.free.drop(did)
        self.locked.drop(did)
        self._unable.pop(did, None)
        for ranked in self._without.values():
            ranked.drop(did)


class OfferRankings:
    """The rankings of a directory, by capability and terms; made when a choice asks for one.

    Args:
        rules: how agents are ranked.
        weigh: makes a candidate of an entry for a capability by terms and limit, at a time.
    """

    def __init__(
        self,
        rules: RankingRules,
        weigh: Callable[[str, Terms, int, AgentEntry, int], tuple[Candidate, float]],
    ) -> None:
        self._rules = rules
        self._weigh = weigh
        self._rankings: dict[str, dict[Terms, RankedOffers]] = {}
        self._candidates = 0

    def __repr__(self) -> str:
        return f"<OfferRankings capabilities={len(self._rankings)} candidates={self._candidates}>"

    def find(
        self,
        capability_id: str,
        terms: Terms,
        token_limit_micro: int,
        entries: Mapping[str, AgentEntry],
        at_ms: int,
    ) -> RankedOffers:
        """Return the ranking of a capability's agents, up to date.

        Args:
            token_limit_micro: as in the ranking, which may be of another limit where there are many
                agents: nodes have limits of their own.
            entries: all that offer the capability, by DID.
            at_ms: now, Unix milliseconds.
        """
        rankings = self._rankings.get(capability_id, _NONE)
        ranking = rankings.get(terms)
        count = len(entries)
        if ranking is not None and (
            count > GROWTH_MAX * ranking.made_of
            or (
                ranking.token_limit_micro != token_limit_micro
                and not 0 <= at_ms - ranking.made_ms < KEPT_MS_PER_OFFER * (count - POOL_MAX)
            )
        ):
            self._forget(capability_id, terms)
            ranking = None
        if ranking is not None:
            ranking.update(entries, at_ms)
            return ranking
        weigh = partial(self._weigh, capability_id, terms, token_limit_micro)
        ranking = RankedOffers(self._rules, weigh, entries.values(), at_ms, token_limit_micro)
        if entries:  # nothing is kept of what no agent offers: there is no end of it
            self._make_room(count, capability_id)
            self._rankings.setdefault(capability_id, {})[terms] = ranking
            self._candidates += count
        return ranking

    def mark(self, did: str, capability_ids: Iterable[str]) -> None:
        """Note that something about an agent has changed which offers these capabilities."""
        for capability_id in capability_ids:
            for ranking in self._rankings.get(capability_id, _NONE).values():
                ranking.mark(did)

    def drop(self, capability_id: str) -> None:
        """Drop the rankings of a capability."""
        for terms in list(self._rankings.get(capability_id, _NONE)):
            self._forget(capability_id, terms)
        self._rankings.pop(capability_id, None)

    def clear(self) -> None:
        """Drop every ranking, since something about all agents has changed."""
        self._rankings.clear()
        self._candidates = 0

    def _make_room(self, count: int, capability_id: str) -> None:
        """Drop the oldest of a capability's many rankings, and those of the oldest capabilities."""
        rankings = self._rankings.get(capability_id, _NONE)
        if len(rankings) == TERMS_MAX:
            self._forget(capability_id, next(iter(rankings)))
        for other in list(self._rankings):
            if self._candidates + count <= CANDIDATES_MAX:
                return
            if other != capability_id:
                self.drop(other)

    def _forget(self, capability_id: str, terms: Terms) -> None:
        self._candidates -= self._rankings[capability_id].pop(terms).made_of
