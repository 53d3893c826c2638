"""What an owner's directory knows of agents' reputation: worked out where it is first weighed.

Counts change with each node that ends, choices weigh few of them. Spec: Reputation; decision 0293.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from core.market.ranking import UNPROVEN, Standing, build_standing
from core.market.reputation import Tally


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

    def _build(self, tally: Tally) -> Standing:
        return build_standing(tally, latency_ms_max=self._latency_ms_max)
