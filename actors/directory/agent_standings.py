"""An owner's cache of agents' reputations, in the form that the ranking reads (`Standing`).

An agent's tally of outcomes changes with each node that ends, but few selections read it. So the
standing is computed from the tally only when a selection needs it. In addition, this owner counts
the refusals of each agent: declined dispatches, and refused inputs for which the agent has no
schema. Refusals do not change the reputation. They lower the agent's rank in proportion to their
share of all outcomes.
Reference: money.md (Reputation, Full agents); decisions agent-health-and-waiting and dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from core.market.ranking import UNPROVEN, Standing, build_standing
from core.market.reputation import Tally

# Maximum number of agents with counted refusals. Beyond it, the agent with the oldest first refusal
# is forgotten; its count starts again at 0.
REFUSING_MAX: Final = 10_000


class Standings:
    """The standings of agents that have a tally; other agents are `UNPROVEN`.

    Args:
        latency_ms_max: the average latency at which the speed score is 0, milliseconds.
        on_change: called with the DID of each agent whose counts have changed.
    """

    def __init__(self, latency_ms_max: int, on_change: Callable[[str], None]) -> None:
        self._latency_ms_max = latency_ms_max
        self._on_change = on_change
        self._tallies: dict[str, Tally] = {}
        # Computed standings, dropped when the agent's tally or `_asking` changes.
        self._weighed: dict[str, Standing] = {}
        self._asking: set[str] = set()
        self._refusals: dict[str, int] = {}

    def apply_tallies(self, tallies: Mapping[str, Tally]) -> None:
        """Store the current reputation tallies by agent."""
        for did, tally in tallies.items():
            if self._tallies.get(did) != tally:
                self._tallies[did] = tally
                self._note_changed(did)

    def note_asking(self, did: str, *, asks_price: bool) -> None:
        """Note whether an agent asks a price; if it does, only paid outcomes of its tally count."""
        if asks_price == (did in self._asking):
            return
        if asks_price:
            self._asking.add(did)
        else:
            self._asking.discard(did)
        self._note_changed(did)

    def of(self, did: str) -> Standing:
        """Return the standing of an agent, without its refusals."""
        known = self._weighed.get(did)
        if known is not None:
            return known
        tally = self._tallies.get(did)
        if tally is None:
            return UNPROVEN
        counted = tally.counted(asks_price=did in self._asking)
        standing = build_standing(counted, latency_ms_max=self._latency_ms_max)
        self._weighed[did] = standing
        return standing

    def ranked(self, did: str) -> Standing:
        """Return the standing of an agent for the ranking, lowered by its share of refusals."""
        standing, refusals = self.of(did), self._refusals.get(did, 0)
        if not refusals:
            return standing
        total = standing.total + refusals
        share = standing.total / total
        return standing._replace(
            score=standing.score * share, success_rate=standing.success_rate * share, total=total
        )

    def note_refusal(self, did: str) -> None:
        """Count a declined dispatch, or refused inputs for which the agent has no schema."""
        if did not in self._refusals and len(self._refusals) == REFUSING_MAX:
            forgotten = next(iter(self._refusals))
            del self._refusals[forgotten]
            self._on_change(forgotten)
        self._refusals[did] = self._refusals.get(did, 0) + 1
        self._on_change(did)

    def _note_changed(self, did: str) -> None:
        self._weighed.pop(did, None)
        self._on_change(did)
