"""The agents that offer a capability in the order in which choices take them, kept up to date.

Theory of operation: a choice finds the ranking as it was and first moves the agents about which
something has changed since. Who changes something marks the agent; what time alone changes (a
heartbeat that expires, a circuit that is tried again) has its place in a heap. So a change takes
the same time however many agents there are, and none where no choice is made. When very many have
changed since, all are ranked anew, so no choice takes longer than the first one.
A ranking is one for what selections have in common (`Terms`); what else a node may not take is
passed over at the choice. Spec: Targeted routing. Decision reputation-and-ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from functools import partial
from heapq import heappop, heappush
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from actors.directory.agent_stakes import UNDER_STAKED
from actors.ports import AgentEntry
from core.market.no_candidates import (
    FAILED_BEFORE,
    NOT_ACCEPTED,
    NOT_TRUSTED,
    SAME_OWNER,
    TOO_SLOW,
    UNHEALTHY,
    VERIFIER_NOT_ACCEPTED,
)
from core.market.pricing import Price
from core.market.ranked_candidates import Accepts, RankedCandidates
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
    `CHOOSY_ONLY`; "" for all.
    """

    price: Price | None
    is_by_token: bool
    requires_stake: bool
    only: str = ""

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
        self._rules = rules
        self._weigh = weigh
        self._at_ms = at_ms
        self.made_of = len(entries)
        self._changed: set[str] = set()
        self._rank_all(entries, at_ms)

    def _rank_all(self, entries: Iterable[AgentEntry], at_ms: int) -> None:
        """Weigh all and rank them at once, whatever was known of them."""
        self._wakes: list[tuple[float, str]] = []
        self._wake_ms: dict[str, float] = {}
        self._excluded: dict[str, Candidate] = {}
        # Those that can take work, in the order of registration.
        able: dict[int, str] = {}
        free: list[Candidate] = []
        locked: list[Candidate] = []
        away: list[Candidate] = []
        for entry in entries:
            candidate, if_unlocked, if_back, is_able, _ = self._weigh_now(entry, at_ms)
            if candidate.excluded is None:
                free.append(candidate)
            elif if_unlocked is None:
                self._excluded[entry.did] = candidate
            if if_unlocked is not None:
                locked.append(if_unlocked)
            if if_back is not None:
                away.append(if_back)
            if is_able:
                able[entry.order] = entry.did
        self._able = SortedDict(able)
        self.free = RankedCandidates(self._rules)
        self.free.fill(free)
        self.locked = RankedCandidates(self._rules)
        self.locked.fill(locked)
        self.away = RankedCandidates(self._rules)
        self.away.fill(away)

    def __repr__(self) -> str:
        return f"<RankedOffers free={len(self.free)} locked={len(self.locked)}>"

    @property
    def able(self) -> Iterable[str]:
        """The agents that can take work, whatever their prices and stakes, as they registered."""
        return self._able.values()

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
        if len(self._changed) > max(MOVED_MAX, len(entries) // MOVED_DIVISOR):
            self._rank_all(entries.values(), at_ms)
            self._changed.clear()
        for did in self._changed:
            entry = entries.get(did)
            if entry is None:
                self._drop(did)
            else:
                self._put(self._weigh_now(entry, at_ms))
        self._changed.clear()

    def find(self, did: str) -> Candidate | None:
        """Return an agent as it was last weighed; `excluded`: why no node may take it."""
        return self.free.find(did) or self.locked.find(did) or self._excluded.get(did)

    def find_cheapest(
        self,
        limit_micro: int,
        refused: Set[str],
        owner_did: str | None,
        accepts: Accepts | None = None,
    ) -> int | None:
        """Return what the cheapest agent asks that a node may take but for its limit.

        Args:
            refused: whom the node may not take.
            owner_did: of a verification, whose agents it may not take; it locks no stake.
            accepts: which agents it may take; None: all.
        """
        prices = [
            one.find_cheapest(
                MICRO_MAX,
                limit_micro=limit_micro,
                refused=refused,
                owner_did=owner_did,
                accepts=accepts,
            )
            for one in ((self.free, self.locked) if owner_did is None else (self.free,))
        ]
        return min((price for price in prices if price is not None), default=None)

    def find_reasons(
        self,
        entries: Iterable[AgentEntry],
        tried: Collection[str],
        refused: Set[str],
        owner_did: str | None,
        accepts: Accepts | None = None,
        timely: Accepts | None = None,
    ) -> Iterator[str]:
        """Return why a node may not take each agent, where it may take none.

        Args:
            timely: which of them promise their results in time; None: all.
        """
        unaccepted = VERIFIER_NOT_ACCEPTED if owner_did is None else NOT_ACCEPTED
        for entry in entries:
            if entry.did in tried:
                yield FAILED_BEFORE
            elif entry.owner_did == owner_did:
                yield SAME_OWNER
            elif timely is not None and not timely(entry.did):
                yield TOO_SLOW
            elif accepts is not None and not accepts(entry.did):
                yield unaccepted
            elif entry.did in refused:
                yield UNHEALTHY
            else:
                one = self.find(entry.did)
                yield (one and one.excluded) or UNDER_STAKED

    def _weigh_now(self, entry: AgentEntry, at_ms: int) -> Weighed:
        weighed = self._weigh(entry, at_ms)
        # If an earlier change is expected, the later one is found then.
        if weighed.until_ms < self._wake_ms.get(entry.did, math.inf):
            self._wake_ms[entry.did] = weighed.until_ms
            heappush(self._wakes, (weighed.until_ms, entry.did))
        return weighed

    def _put(self, weighed: Weighed) -> None:
        candidate, if_unlocked, if_back, is_able, _ = weighed
        did = candidate.did
        if candidate.excluded is None:
            self.free.put(candidate)
        else:
            self.free.drop(did)
        for one, kept in ((if_unlocked, self.locked), (if_back, self.away)):
            if one is not None:
                kept.put(one)
            else:
                kept.drop(did)
        if candidate.excluded is not None and if_unlocked is None:
            self._excluded[did] = candidate
        else:
            self._excluded.pop(did, None)
        if is_able:
            self._able[candidate.order] = did
        else:
            self._able.pop(candidate.order, None)

    def _drop(self, did: str) -> None:
        known = self.find(did)
        if known is not None:
            self._able.pop(known.order, None)
        self.free.drop(did)
        self.locked.drop(did)
        self.away.drop(did)
        self._excluded.pop(did, None)


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

    def __repr__(self) -> str:
        return f"<OfferRankings capabilities={len(self._rankings)} candidates={self._candidates}>"

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
        rankings = self._rankings.get(capability_id, _NONE)
        ranking = rankings.get(terms)
        count = len(entries)
        if ranking is not None and count > GROWTH_MAX * ranking.made_of:
            self._forget(capability_id, terms)
            ranking = None
        if ranking is not None:
            ranking.update(entries, at_ms)
            return ranking
        weigh = partial(self._weigh, capability_id, terms)
        ranking = RankedOffers(self._rules, weigh, entries.values(), at_ms)
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
        while self._candidates + count > CANDIDATES_MAX:
            oldest = next((other for other in self._rankings if other != capability_id), None)
            if oldest is None:
                return
            self.drop(oldest)

    def _forget(self, capability_id: str, terms: Terms) -> None:
        self._candidates -= self._rankings[capability_id].pop(terms).made_of
