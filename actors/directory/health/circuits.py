"""Circuit breakers: an agent that is unreachable three times in a row gets no work for a while.

Each owner has its own circuits, in memory. Theory of operation: a closed circuit counts consecutive
failures, and the third failure opens it for 30 s. After that the circuit is half open: one attempt
is the trial, and no other attempt is sent until the trial has ended. If the trial fails, the
circuit opens again for twice as long, up to 5 min. If it succeeds, the circuit closes. Failures of
attempts that were open when the circuit opened are ignored. A registration of the agent makes an
open circuit half open at once, because the agent may have been restarted.

The circuit described so far applies to all payers. Only failures to connect count for it. Timeouts
and broken connections are different: a payer chooses the timeouts and inputs of its nodes, and one
person can be many payers. So these failures, called misses, count only for the payer of the
attempt. The third miss in a row, and each later miss, shuts the agent for this payer for 30 s. An
agent that is shut is probed too, and the result of a probe counts for all payers: so an agent that
hangs is found. A reply to any payer's attempt clears all failures and misses of the agent.

The functions read no clock; the caller passes times. Decision agent-health-and-waiting.
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
# A trial without an outcome blocks other attempts for this time. A trial has no outcome if, for
# example, its workflow is cancelled before the dispatch.
TRIAL_MS_MAX = 30_000
# Maximum number of payers with counted misses. Beyond it, the misses of the oldest payer are
# forgotten.
PAYERS_MAX = 256
# Maximum number of agents with counted misses per payer. Each selection for the payer examines all
# of them.
AGENTS_MAX = 256
_NONE: Final[Set[str]] = frozenset()


class Opened(Enum):
    """For which payers the end of an attempt opened a circuit: none, the attempt's payer, all."""

    NONE = auto()
    FOR_PAYER = auto()
    FOR_ALL = auto()


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    open_until_ms: int | None = None
    open_ms: int = CIRCUIT_OPEN_MS_MIN
    trial_until_ms: int = 0

    def is_open(self, at_ms: int) -> bool:
        """Say whether the agent gets no work: the circuit is open, or a trial is running."""
        if self.open_until_ms is None:
            return False
        return at_ms < self.open_until_ms or at_ms < self.trial_until_ms

    def counts(self, at_ms: int) -> bool:
        """Say whether a failure counts now; failures while the circuit is open are ignored."""
        return self.open_until_ms is None or at_ms >= self.open_until_ms

    def begin_trial(self, at_ms: int) -> None:
        if self.open_until_ms is not None:
            self.trial_until_ms = at_ms + TRIAL_MS_MAX

    def fail(self, at_ms: int) -> bool:
        """Count a failure; return whether it opened the circuit."""
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
    """One payer's consecutive misses at an agent; `until_ms`: the agent is shut until this time."""

    count: int = 0
    until_ms: int = 0


class Circuits:
    """The circuits by agent, and the misses by payer; an agent without failures has neither."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}
        # Misses by payer and agent, the oldest first.
        self._misses: dict[str, dict[str, _Misses]] = {}
        self._missed: set[str] = set()  # all agents in `_misses`, and some that were in it before

    def __contains__(self, did: str) -> bool:
        return did in self._circuits or did in self._missed

    def find_shut(self, payer_did: str, at_ms: int) -> Set[str]:
        """Return the agents that are shut for the payer, because of the payer's own misses."""
        own = self._misses.get(payer_did)
        return {did for did, one in own.items() if at_ms < one.until_ms} if own else _NONE

    def is_open(self, did: str, at_ms: int, *, payer_did: str | None) -> bool:
        """Say whether the agent gets no work of the payer now; True also while a trial is running.

        Args:
            payer_did: the payer; None: only the circuit for all payers counts.
        """
        known = self._circuits.get(did)
        own = None if payer_did is None else self._misses.get(payer_did, {}).get(did)
        is_shut = own is not None and at_ms < own.until_ms
        return is_shut or (known is not None and known.is_open(at_ms))

    def next_change_ms(self, did: str, at_ms: int) -> float:
        """Return when the circuit for all payers changes next without an event; or infinity."""
        known = self._circuits.get(did)
        if known is None or known.open_until_ms is None:
            return math.inf
        ends = (known.open_until_ms, known.trial_until_ms)
        return min((end_ms for end_ms in ends if end_ms > at_ms), default=math.inf)

    def note_chosen(self, did: str, at_ms: int) -> None:
        """Note that the agent was chosen, which begins the trial of a half-open circuit."""
        known = self._circuits.get(did)
        if known is not None:
            known.begin_trial(at_ms)

    def note_registered(self, did: str) -> None:
        """Make an open circuit half open and clear misses, because the agent has registered."""
        known = self._circuits.get(did)
        if known is not None and known.open_until_ms is not None:
            known.open_until_ms = known.trial_until_ms = 0
        self._forget_misses(did)

    def note_outcome(self, did: str, contact: Contact, at_ms: int, *, payer_did: str) -> Opened:
        """Note how an attempt ended; return for which payers that opened a circuit."""
        if contact is Contact.UNKNOWN:
            return Opened.NONE
        if contact is Contact.REACHED:
            self._circuits.pop(did, None)
            self._forget_misses(did)
            return Opened.NONE
        if contact is Contact.UNANSWERED:
            return self._miss(did, payer_did, at_ms)
        known = self._circuits.setdefault(did, _Circuit())
        return Opened.FOR_ALL if known.fail(at_ms) else Opened.NONE

    def open_agents(self) -> list[str]:
        """Return the agents whose circuit is open or half open, for all payers or for one."""
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
            return Opened.NONE  # the attempt was open when the agent was shut
        if did in self._circuits:
            # A miss does not decide a trial of the circuit for all payers. If this attempt was the
            # trial, the next attempt becomes the trial.
            self._circuits[did].trial_until_ms = 0
        missed.count += 1
        if missed.count < CIRCUIT_FAILURES_MAX:
            return Opened.NONE
        missed.until_ms = at_ms + CIRCUIT_OPEN_MS_MIN
        return Opened.FOR_PAYER
