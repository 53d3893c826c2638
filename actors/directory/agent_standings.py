"""What an owner's directory knows of agents' reputation: worked out where it is first weighed.

Counts change with each node that ends, choices weigh few of them. Beside them stand the refusals of
inputs that this owner has met, of agents without a schema for these: they count against nobody's
reputation and lower the rank by their share. Spec: Reputation; decisions 0293 and 0303.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from core.market.ranking import UNPROVEN, Standing, build_standing
from core.market.reputation import Tally

# Agents whose refusals are counted; the one that refused first is forgotten, and counts anew.
REFUSING_MAX: Final = 10_000


class Standings:
    """The standing of each agent that has one.

    Args:
        latency_ms_max: the average latency at which the speed score is 0, milliseconds.
        on_change: called with the DID of each agent whose counts have changed.
    """

    def __init__(self, latency_ms_max: int, on_change: Callable[[str], None]) -> None:
        self._latency_ms_max = latency_ms_max
        self._on_change = on_change
        # As they were counted, until they are first weighed.
        self._known: dict[str, Standing | Tally] = {}
        self._refusals: dict[str, int] = {}

    def apply_tallies(self, tallies: Mapping[str, Tally]) -> None:
        """Store the newest reputation tallies, by agent."""
        for did, tally in tallies.items():
            known = self._known.get(did)
            is_weighed = isinstance(known, Standing)
            if known != (self._build(tally) if is_weighed else tally):
                self._known[did] = tally
                self._on_change(did)

    def of(self, did: str) -> Standing:
        """Return an agent's reputation as choices weigh it."""
        known = self._known.get(did, UNPROVEN)
        if isinstance(known, Tally):
            known = self._known[did] = self._build(known)
        return known

    def ranked(self, did: str) -> Standing:
        """Return an agent's reputation as its rank has it, lowered by its share of refusals."""
        standing, refusals = self.of(did), self._refusals.get(did, 0)
        if not refusals:
            return standing
        total = standing.total + refusals
        share = standing.total / total
        return standing._replace(
            score=standing.score * share, success_rate=standing.success_rate * share, total=total
        )

    def note_refusal(self, did: str) -> None:
        """Count that an agent without a schema for its inputs refused some."""
        if did not in self._refusals and len(self._refusals) == REFUSING_MAX:
            forgotten = next(iter(self._refusals))
            del self._refusals[forgotten]
            self._on_change(forgotten)
        self._refusals[did] = self._refusals.get(did, 0) + 1
        self._on_change(did)

    def _build(self, tally: Tally) -> Standing:
        return build_standing(tally, latency_ms_max=self._latency_ms_max)
