"""Of many agents that offer one capability, those a choice looks at: the best of a moment ago.

Theory of operation: weighing an agent costs a few microseconds, and one step of a workflow may
choose for a thousand nodes. Up to `ALL_MAX` offers every choice looks at all of them. Beyond that
all are weighed once in a while and `LENGTH` of them are kept for the choices until the next time:
the best, not more than half of them of one owner if others can be had, some new ones, which have
their share of the choices, and the cheapest, for nodes that may cost little. A choice weighs those
anew, so load and health are always the present ones. How long a shortlist is kept follows from the
number of offers: weighing all takes a twentieth of a process's time however many there are.
Spec: Targeted routing. Decision 0063.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from actors.ports import AgentEntry
from core.market.ranking import Candidate, RankingRules, rank

ALL_MAX: Final = 32
LENGTH: Final = 32
NEW_MAX: Final = 6
CHEAPEST_MAX: Final = 6
OF_ONE_OWNER_MAX: Final = LENGTH // 2
# For each offer, so many milliseconds: weighing one takes about five microseconds.
KEPT_MS_PER_OFFER: Final = 0.1
KEPT_MS_MIN: Final = 50

_Key = tuple[str, bool]


def kept_ms(offers: int) -> float:
    """Return how long what was made of so many offers is kept, milliseconds."""
    return max(KEPT_MS_MIN, KEPT_MS_PER_OFFER * offers)


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Agents that were able when all were weighed. `offers`: how many there were of all."""

    entries: Sequence[AgentEntry]
    offers: int
    made_ms: int

    def is_fresh(self, offers: int, at_ms: int) -> bool:
        """Whether it may still be used, beside so many offers."""
        return 0 <= at_ms - self.made_ms < kept_ms(offers)


class Shortlists:
    """The shortlists of a directory, by capability.

    Args:
        rules: how agents are weighed.
    """

    def __init__(self, rules: RankingRules) -> None:
        self._rules = rules
        self._lists: dict[_Key, Shortlist] = {}

    def offers(
        self,
        key: _Key,
        entries: Mapping[str, AgentEntry],
        weigh: Callable[[AgentEntry], Candidate],
        at_ms: int,
    ) -> Sequence[AgentEntry]:
        """Return the agents that a choice looks at.

        Args:
            key: the capability, and what else decides who is able.
            entries: all that offer the capability, by DID.
            weigh: makes a candidate of an entry.
            at_ms: now, Unix milliseconds.
        """
        if len(entries) <= ALL_MAX:
            self._lists.pop(key, None)
            return list(entries.values())
        shortlist = self._lists.get(key)
        if shortlist is None or not shortlist.is_fresh(len(entries), at_ms):
            chosen = self._shorten(entries, weigh, at_ms)
            shortlist = self._lists[key] = Shortlist(chosen, len(entries), at_ms)
        # One that was registered anew, or has gone, is not what it was.
        return [entries[one.did] for one in shortlist.entries if one.did in entries]

    def _shorten(
        self,
        entries: Mapping[str, AgentEntry],
        weigh: Callable[[AgentEntry], Candidate],
        at_ms: int,
    ) -> list[AgentEntry]:
        weighed = [weigh(entry) for entry in entries.values()]
        able = [candidate for candidate in weighed if candidate.excluded is None]
        if not able:
            return list(entries.values())[:LENGTH]
        ranked = rank(able, self._rules)
        new = [one for one in able if one.standing.total < self._rules.trial_tasks]
        # Other ones each time, so that each new agent has its turn.
        first = at_ms % len(new) if new else 0
        tried = [new[(first + step) % len(new)] for step in range(min(NEW_MAX, len(new)))]
        cheapest = nsmallest(CHEAPEST_MAX, able, key=lambda one: (one.price_micro, one.order))
        owners: Counter[str] = Counter()
        kept = {one.did: entries[one.did] for one in (*tried, *cheapest)}
        spare: list[AgentEntry] = []
        for candidate in ranked:
            if len(kept) == LENGTH:
                break
            entry = entries[candidate.did]
            owners[entry.owner_did] += 1
            if owners[entry.owner_did] <= OF_ONE_OWNER_MAX:
                kept.setdefault(entry.did, entry)
            else:
                spare.append(entry)
        for entry in spare:
            kept.setdefault(entry.did, entry)
        return list(kept.values())[:LENGTH]
