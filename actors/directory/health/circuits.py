"""Circuit breakers: an agent that is unreachable three times in a row gets no work for a while.

Each owner's own experience, kept in memory. Theory of operation: closed, it counts consecutive
failures; the third opens it for 30 s. Then it is half open: one attempt may try, and all others
still stay away until that one has ended. A failure opens it again for twice as long, up to 5 min;
a success closes it. Failures of attempts that were under way when it opened say nothing new. A
registration of the agent, which may have started anew, makes an open circuit half open at once.
An agent has one circuit for all payers, and one for each payer whose attempts had no answer: a
payer chooses its nodes' time-outs and inputs, and anybody can be many payers, so a time-out, or a
connection that breaks over a request, counts for its payer alone. What hangs or breaks is noticed
for all by the probe that an open circuit asks for, and the dead refuse connections. A reply to any
payer's attempt closes every circuit of the agent.
Pure; times come in. Decision agent-health-and-waiting.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from actors.ports import Contact

CIRCUIT_FAILURES_MAX = 3
CIRCUIT_OPEN_MS_MIN = 30_000
CIRCUIT_OPEN_MS_MAX = 300_000
# A trial without an outcome (its workflow was cancelled before the dispatch) blocks this long.
TRIAL_MS_MAX = 30_000
# Payers with a circuit of their own, per agent; the oldest is forgotten, and counts anew.
PAYERS_MAX = 64
# Agents with a circuit of one payer's own, as the choices for that payer pass them over.
AGENTS_MAX = 256
_NONE: Final[Set[str]] = frozenset()


class Opened(Enum):
    """For whom the end of an attempt opened a circuit: no payer, the attempt's, or all."""

    NOT = auto()
    FOR_PAYER = auto()
    FOR_ALL = auto()


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    open_until_ms: int | None = None
    open_ms: int = CIRCUIT_OPEN_MS_MIN
    trial_until_ms: int = 0

    def is_open(self, at_ms: int) -> bool:
        """Whether the agent is to be left alone: open, or half open with its trial under way."""
        if self.open_until_ms is None:
            return False
        return at_ms < self.open_until_ms or at_ms < self.trial_until_ms

    def counts(self, at_ms: int) -> bool:
        """Whether a failure now says something new: it does not while the circuit is open."""
        return self.open_until_ms is None or at_ms >= self.open_until_ms

    def begin_trial(self, at_ms: int) -> None:
        if self.open_until_ms is not None:
            self.trial_until_ms = at_ms + TRIAL_MS_MAX

    def fail(self, at_ms: int) -> bool:
        """Count a failure; returns whether it opened the circuit."""
        if not self.counts(at_ms):
            return False
        self.failures += 1
        if self.open_until_ms is None and self.failures < CIRCUIT_FAILURES_MAX:
            return False
        if self.open_until_ms is not None:
            self.open_ms = min(self.open_ms * 2, CIRCUIT_OPEN_MS_MAX)
        self.open_until_ms = at_ms + self.open_ms
        self.trial_until_ms = 0
        return True


@dataclass(slots=True)
class _AgentCircuits:
    """The circuit of all payers, and those of the payers whose attempts had no answer."""

    common: _Circuit = field(default_factory=_Circuit)
    by_payer: dict[str, _Circuit] = field(default_factory=dict)

    def of(self, payer_did: str | None) -> list[_Circuit]:
        own = None if payer_did is None else self.by_payer.get(payer_did)
        return [self.common] if own is None else [self.common, own]

    def miss(self, payer_did: str, at_ms: int) -> Opened:
        own = self.by_payer[payer_did]
        if not own.counts(at_ms):
            return Opened.NOT
        # If it was the trial for all payers, it has told nothing: the next attempt may try.
        self.common.trial_until_ms = 0
        return Opened.FOR_PAYER if own.fail(at_ms) else Opened.NOT


class Circuits:
    """The circuits by agent; an agent without failures has none."""

    def __init__(self) -> None:
        self._circuits: dict[str, _AgentCircuits] = {}
        # By payer, the agents with a circuit of its own, the longest known first.
        self._of_payers: dict[str, dict[str, None]] = {}
        # The last answer of `find_shut`: the nodes of a publish ask for the same.
        self._shut: tuple[str, int, Set[str]] | None = None

    def __repr__(self) -> str:
        return f"<Circuits {len(self._circuits)}>"

    def __contains__(self, did: str) -> bool:
        return did in self._circuits

    def find_shut(self, payer_did: str, at_ms: int) -> Set[str]:
        """Return the agents from which circuits of the payer's own keep its work, on trial too."""
        agents = self._of_payers.get(payer_did)
        if agents is None:
            return _NONE
        known = self._shut
        if known is None or known[:2] != (payer_did, at_ms):
            shut = {did for did in agents if self.is_open(did, at_ms, payer_did=payer_did)}
            self._shut = known = (payer_did, at_ms, shut)
        return known[2]

    def is_open(self, did: str, at_ms: int, *, payer_did: str | None) -> bool:
        """Whether the payer's work is to be kept from the agent, on trial included.

        Args:
            payer_did: None: for all payers.
        """
        known = self._circuits.get(did)
        return known is not None and any(one.is_open(at_ms) for one in known.of(payer_did))

    def next_change_ms(self, did: str, at_ms: int) -> float:
        """Return when time alone changes the circuit of all payers, infinity if it does not."""
        known = self._circuits.get(did)
        if known is None or known.common.open_until_ms is None:
            return math.inf
        ends = (known.common.open_until_ms, known.common.trial_until_ms)
        return min((end_ms for end_ms in ends if end_ms > at_ms), default=math.inf)

    def note_chosen(self, did: str, at_ms: int, *, payer_did: str) -> None:
        """Note that the agent was chosen, which is the trial of each circuit that is half open."""
        known = self._circuits.get(did)
        if known is None:
            return
        self._shut = None
        for circuit in known.of(payer_did):
            circuit.begin_trial(at_ms)

    def note_registered(self, did: str) -> None:
        """Note that the agent was registered: it may have started anew, so one attempt may try."""
        known = self._circuits.get(did)
        if known is None:
            return
        self._shut = None
        for circuit in (known.common, *known.by_payer.values()):
            if circuit.open_until_ms is not None:
                circuit.open_until_ms = circuit.trial_until_ms = 0

    def note_outcome(self, did: str, contact: Contact, at_ms: int, *, payer_did: str) -> Opened:
        """Note how an attempt ended; returns for whom that opened a circuit."""
        if contact is Contact.UNKNOWN:
            return Opened.NOT
        self._shut = None
        if contact is Contact.REACHED:
            reached = self._circuits.pop(did, None)
            for payer in reached.by_payer if reached is not None else ():
                self._forget_agent(payer, did)
            return Opened.NOT
        known = self._circuits.setdefault(did, _AgentCircuits())
        if contact is Contact.UNANSWERED:
            if payer_did not in known.by_payer:
                self._add_own(known, did, payer_did)
            return known.miss(payer_did, at_ms)
        return Opened.FOR_ALL if known.common.fail(at_ms) else Opened.NOT

    def open_agents(self) -> list[str]:
        """Return the agents with a circuit that is open or half open, the longest known first."""
        return [
            did
            for did, known in self._circuits.items()
            if any(
                one.open_until_ms is not None for one in (known.common, *known.by_payer.values())
            )
        ]

    def _add_own(self, known: _AgentCircuits, did: str, payer_did: str) -> None:
        """Add a payer's own circuit of an agent; the oldest of too many are forgotten."""
        if len(known.by_payer) == PAYERS_MAX:
            oldest = next(iter(known.by_payer))
            del known.by_payer[oldest]
            self._forget_agent(oldest, did)
        known.by_payer[payer_did] = _Circuit()
        agents = self._of_payers.setdefault(payer_did, {})
        agents[did] = None
        if len(agents) > AGENTS_MAX:
            other = next(iter(agents))
            del self._circuits[other].by_payer[payer_did]
            self._forget_agent(payer_did, other)

    def _forget_agent(self, payer_did: str, did: str) -> None:
        agents = self._of_payers[payer_did]
        del agents[did]
        if not agents:
            del self._of_payers[payer_did]
