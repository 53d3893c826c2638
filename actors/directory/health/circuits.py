"""Circuit breakers: an agent that is unreachable three times in a row gets no work for a while.

Each owner's own experience, kept in memory. Theory of operation: closed, it counts consecutive
failures; the third opens it for 30 s. Then it is half open: one attempt may try, and all others
still stay away until that one has ended. A failure opens it again for twice as long, up to 5 min;
a success closes it. Failures of attempts that were under way when it opened say nothing new. A
registration of the agent, which may have started anew, makes an open circuit half open at once.
An agent has one circuit for all payers. A payer chooses its nodes' time-outs and inputs, and
anybody can be many payers, so a time-out, or a connection that breaks over a request, counts for
its payer alone: the third in a row, and each later one, keeps that payer's work from the agent for
30 s. What hangs or breaks is noticed for all by the probe that an open circuit asks for, and the
dead refuse connections. A reply to any payer's attempt forgets every failure of the agent.
Pure; times come in. Decision agent-health-and-waiting.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from actors.ports import Contact

CIRCUIT_FAILURES_MAX = 3
CIRCUIT_OPEN_MS_MIN = 30_000
CIRCUIT_OPEN_MS_MAX = 300_000
# A trial without an outcome (its workflow was cancelled before the dispatch) blocks this long.
TRIAL_MS_MAX = 30_000
# Payers whose own failures are counted; the oldest is forgotten, and counts anew.
PAYERS_MAX = 256
# Agents with failures of one payer's own, as the choices for that payer pass them over.
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
class _Misses:
    """One payer's attempts at an agent without an answer; the agent is shut until `until_ms`."""

    count: int = 0
    until_ms: int = 0


class Circuits:
    """The circuits by agent; an agent without failures has none."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}
        # By payer and agent, the longest known first.
        self._misses: dict[str, dict[str, _Misses]] = {}
        self._missed: set[str] = set()  # every agent in `_misses`, and some that were

    def __contains__(self, did: str) -> bool:
        return did in self._circuits or did in self._missed

    def find_shut(self, payer_did: str, at_ms: int) -> Set[str]:
        """Return the agents from which the payer's own failures keep its work."""
        own = self._misses.get(payer_did)
        return {did for did, one in own.items() if at_ms < one.until_ms} if own else _NONE

    def is_open(self, did: str, at_ms: int, *, payer_did: str | None) -> bool:
        """Whether the payer's work is to be kept from the agent, on trial included.

        Args:
            payer_did: None: for all payers.
        """
        known = self._circuits.get(did)
        own = None if payer_did is None else self._misses.get(payer_did, {}).get(did)
        is_shut = own is not None and at_ms < own.until_ms
        return is_shut or (known is not None and known.is_open(at_ms))

    def next_change_ms(self, did: str, at_ms: int) -> float:
        """Return when time alone changes the circuit of all payers, infinity if it does not."""
        known = self._circuits.get(did)
        if known is None or known.open_until_ms is None:
            return math.inf
        ends = (known.open_until_ms, known.trial_until_ms)
        return min((end_ms for end_ms in ends if end_ms > at_ms), default=math.inf)

    def note_chosen(self, did: str, at_ms: int) -> None:
        """Note that the agent was chosen, which is the trial of a circuit that is half open."""
        known = self._circuits.get(did)
        if known is not None:
            known.begin_trial(at_ms)

    def note_registered(self, did: str) -> None:
        """Note that the agent was registered: it may have started anew, so one attempt may try."""
        known = self._circuits.get(did)
        if known is not None and known.open_until_ms is not None:
            known.open_until_ms = known.trial_until_ms = 0
        self._forget_misses(did)

    def note_outcome(self, did: str, contact: Contact, at_ms: int, *, payer_did: str) -> Opened:
        """Note how an attempt ended; returns for whom that opened a circuit."""
        if contact is Contact.UNKNOWN:
            return Opened.NOT
        if contact is Contact.REACHED:
            self._circuits.pop(did, None)
            self._forget_misses(did)
            return Opened.NOT
        if contact is Contact.UNANSWERED:
            return self._miss(did, payer_did, at_ms)
        known = self._circuits.setdefault(did, _Circuit())
        return Opened.FOR_ALL if known.fail(at_ms) else Opened.NOT

    def open_agents(self) -> list[str]:
        """Return the agents with a circuit that is open or half open for a payer or for all."""
        found = [did for did, known in self._circuits.items() if known.open_until_ms is not None]
        for own in self._misses.values():
            found += [did for did, one in own.items() if one.until_ms]
        return list(dict.fromkeys(found))

    def _forget_misses(self, did: str) -> None:
        if did in self._missed:
            self._missed.remove(did)
            for own in self._misses.values():
                own.pop(did, None)

    def _miss(self, did: str, payer_did: str, at_ms: int) -> Opened:
        own = self._misses.setdefault(payer_did, {})
        missed = own.setdefault(did, _Misses())
        self._missed.add(did)
        if len(self._misses) > PAYERS_MAX:
            del self._misses[next(iter(self._misses))]
        if len(own) > AGENTS_MAX:
            del own[next(iter(own))]
        if at_ms < missed.until_ms:
            return Opened.NOT  # it was under way when the agent was shut
        if did in self._circuits:
            # If it was the trial for all payers, it has told nothing: the next attempt may try.
            self._circuits[did].trial_until_ms = 0
        missed.count += 1
        if missed.count < CIRCUIT_FAILURES_MAX:
            return Opened.NOT
        missed.until_ms = at_ms + CIRCUIT_OPEN_MS_MIN
        return Opened.FOR_PAYER
