"""Says whether an agent can take work now; if not, why, and whether the reason is temporary.

This part of the directory judges each agent alone. The directory keeps the last card of an agent
for `DEPARTED_MS` after its deregistration. During this time the agent counts as away, because it
may be restarting. Reference: features.md (Targeted routing). Decision agent-health-and-waiting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Final, NamedTuple

from actors.directory.health.circuits import Circuits, Opened
from actors.directory.health.declines import Declines
from actors.directory.health.revoked_agents import Revocations
from actors.directory.subnets import Subnets
from actors.ports import AgentEntry, Contact
from core.market.agent_liveness import (
    NO_SIGNALS,
    Availability,
    Liveness,
    availability,
    drop_older_signals,
    next_change_ms,
    reported_load,
)
from core.market.no_candidates import FULL, UNHEALTHY

# The temporary reasons. An agent that is excluded for such a reason is away: it may come back.
PASSING: Final = frozenset({UNHEALTHY, FULL, "agent_offline", "agent_inactive"})
# For this time after a deregistration, nodes may wait for the agent to come back.
DEPARTED_MS: Final = 60_000


class Condition(NamedTuple):
    """The health of an agent for all payers, valid from `from_ms` until `until_ms`.

    `excluded`: why no node may take the agent; None: nodes may take it. `load`: the load that the
    agent reports, 0 to 1.
    """

    excluded: str | None
    load: float
    from_ms: int
    until_ms: float


_USUAL: Final = Condition(None, 0.0, 0, math.inf)


def find_payer_owners(entries: Mapping[str, AgentEntry], payer_did: str) -> tuple[str, ...]:
    """Return the owners whose agents count as the payer's own.

    These are the payer, and, if the payer is an agent, the owner of that agent.
    """
    payer = entries.get(payer_did)
    if payer is None:
        return (payer_did,) if payer_did else ()
    return payer_did, payer.owner_did


def find_owners(entries: Mapping[str, AgentEntry], dids: Iterable[str]) -> Set[str]:
    """Return the owners of these agents; unknown agents are skipped."""
    return {entries[did].owner_did for did in dids if did in entries}


class AgentHealth:
    """The base class of the directory: the cards and the health of agents.

    `note_refusal` lowers the rank of an agent that has refused work.
    """

    note_refusal: Callable[[str], None]
    subnets: Subnets

    def __init__(self) -> None:
        self._entries: dict[str, AgentEntry] = {}
        self._by_capability: dict[str, dict[str, AgentEntry]] = {}
        self._inactive: set[str] = set()
        # Agents of `_entries` that were deregistered, each with the time of the deregistration.
        self._left_ms: dict[str, int] = {}
        self._live: dict[str, Liveness] = {}
        self._silent_from_ms = 0
        self._stored_ms: dict[str, int] = {}
        self._conditions: dict[str, Condition] = {}
        self.revocations = Revocations(self._note_changed)
        self._circuits = Circuits()
        self._declines = Declines()
        self._in_flight: Counter[str] = Counter()
        # Receives the DID and the capabilities of an agent that may take work again, or that will
        # never take work again. In both cases `may_end_wait` tells whether waiting nodes retry.
        self.on_changed: Callable[[str, Collection[str]], None] = lambda did, offered: None

    def entry(self, did: str) -> AgentEntry | None:
        """Return the entry of an active agent; None if it is unknown or deregistered."""
        return None if did in self._left_ms else self._entries.get(did)

    def valid_keys(self, did: str, at_ms: int) -> tuple[str, ...]:
        """Return the public keys of an agent that are valid at a time; empty if it is unknown."""
        entry = self.entry(did)
        return () if entry is None else entry.valid_keys(at_ms)

    def is_revoked(self, did: str, at_ms: int) -> bool:
        """Say whether this cache has a revocation of an agent that is valid at a time."""
        return self.revocations.is_revoked(did, at_ms)

    def apply_liveness(self, heard: Mapping[str, Liveness]) -> None:
        """Store the latest heartbeats and probes by agent."""
        for did, live in heard.items():
            if self._live.get(did) != live:
                self._live[did] = live
                self._note_changed(did)

    def may_end_wait(self, did: str, capability_id: str, at_ms: int) -> bool:
        """Say whether the nodes that wait for a capability should retry their selection.

        They should if the changed agent can take work, or if all agents of the capability are
        revoked, so that waiting is useless.

        Args:
            did: the agent that has changed.
        """
        entry = self._entries.get(did)
        if entry is not None and self._find_condition(did, at_ms).excluded is None:
            return True
        offers = self._by_capability.get(capability_id, {})
        return all(self.is_revoked(one, at_ms) for one in offers)

    def _find_unavailability(
        self, did: str, at_ms: int, *, payer_did: str | None, is_excluded: bool = False
    ) -> str | None:
        """Return why an agent takes no work of a payer, or None.

        If there are several reasons, the first in the order of the reference is returned.

        Args:
            payer_did: the payer; None: only reasons that hold for all payers count.
        """
        entry = self._entries.get(did)
        if entry is None and did not in self._inactive:
            return "agent_not_found"
        if self.is_revoked(did, at_ms):
            return "agent_revoked"
        if entry is None or did in self._left_ms:
            return "agent_inactive"
        live = self._known_liveness(did)
        health = availability(live, at_ms, silent_from_ms=self._silent_from_ms)
        if is_excluded or health is Availability.UNHEALTHY:
            return UNHEALTHY
        if self._circuits.is_open(did, at_ms, payer_did=payer_did):
            return UNHEALTHY
        if health is not Availability.AVAILABLE or not entry.url:
            return "agent_offline"
        return None

    def _known_liveness(self, did: str) -> Liveness:
        live = self._live.get(did)
        return NO_SIGNALS if live is None else drop_older_signals(live, self._stored_ms[did])

    def _find_condition(self, did: str, at_ms: int) -> Condition:
        """Return an agent's health for all payers, and the load that it reports."""
        # Most agents have only a card, so this shortcut keeps choices among 1,000 agents cheap.
        if not (
            did in self._live
            or did in self._circuits
            or did in self._declines
            or did in self._left_ms
            or did in self.revocations
        ):
            return _USUAL
        known = self._conditions.get(did)
        if known is None or not known.from_ms <= at_ms < known.until_ms:
            live = self._known_liveness(did)
            until_ms = min(
                next_change_ms(live, at_ms, silent_from_ms=self._silent_from_ms),
                self._circuits.next_change_ms(did, at_ms),
                self._declines.next_change_ms(did, at_ms),
                self.revocations.next_change_ms(did, at_ms),
            )
            excluded = self._find_unavailability(did, at_ms, payer_did=None)
            if excluded is None and self._declines.is_full(did, at_ms):
                excluded = FULL  # a node that names the agent as its target still gets it
            known = self._conditions[did] = Condition(
                excluded,
                reported_load(live, at_ms),
                at_ms,
                until_ms,
            )
        return known

    def _note_changed(self, did: str) -> None:
        """Drop the cached condition of an agent; call `on_changed` if it may take work again."""
        was = self._conditions.pop(did, None)
        self._mark(did)
        entry = self._entries.get(did)
        if entry is not None and (was is None or was.excluded is not None):
            self.on_changed(did, entry.prices)

    def _mark(self, did: str) -> None:
        """Mark an agent as changed, so that the next choice weighs it again."""
        raise NotImplementedError

    def _note_chosen(self, did: str, at_ms: int) -> None:
        if did in self._circuits:
            self._circuits.note_chosen(did, at_ms)
            self._note_changed(did)

    def note_taken(self, did: str) -> None:
        """Note that an agent has accepted a dispatch, which ends its exclusion after declines."""
        if did in self._declines:
            self._declines.forget(did)
            self._note_changed(did)

    def note_back(self, did: str) -> None:
        """Note that the exclusion of an agent after a decline is over; notify waiting nodes."""
        self._note_changed(did)

    def is_missing(self, capability_id: str, target_agent_id: str | None, payer_did: str) -> bool:
        """Say whether this cache lacks the target or any agent of a capability for a payer.

        The ledger may have them, so the caller refreshes the directory.
        """
        if target_agent_id is not None:
            entry = self._entries.get(target_agent_id)
            if entry is None or self.subnets.is_hidden(entry, payer_did):
                return True
        return not self.subnets.find_offers(capability_id, payer_did)[1]

    def begin(self, did: str) -> None:
        """Count a dispatch as in flight at the agent, even while the dispatch is queued."""
        self._in_flight[did] += 1
        self._mark(did)

    def note_outcome(
        self, did: str, contact: Contact, at_ms: int, *, payer_did: str = ""
    ) -> Opened:
        """Count a dispatch as ended; return for which payers its end opened a circuit."""
        self._in_flight[did] -= 1
        if self._in_flight[did] <= 0:
            del self._in_flight[did]
        had_circuit = did in self._circuits
        opened = self._circuits.note_outcome(did, contact, at_ms, payer_did=payer_did)
        if had_circuit or did in self._circuits:
            self._note_changed(did)
        else:
            self._mark(did)
        return opened

    def note_declined(self, did: str, retry_after_ms: int, at_ms: int) -> int | None:
        """Leave out an agent that has declined a dispatch, and lower its rank.

        Args:
            retry_after_ms: the time for which the agent requests no dispatches; 0: no request.

        Returns: the end of the exclusion, Unix milliseconds; None if it did not change.
        """
        # Several declines of dispatches that were sent together lower the rank once.
        if not self._declines.is_full(did, at_ms):
            self.note_refusal(did)
        until_ms = self._declines.note_declined(did, retry_after_ms, at_ms)
        self._note_changed(did)
        return until_ms

    def open_circuits(self) -> list[str]:
        """Return the agents with an open or half-open circuit, which need a probe."""
        return self._circuits.open_agents()
