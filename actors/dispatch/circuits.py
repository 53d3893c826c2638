"""Circuit breakers: an agent that cannot be reached three times in a row is left alone for a while.

Each owner's own experience, kept in memory. Theory of operation: closed, it counts consecutive
failures; the third opens it for 30 s. Then it is half open: one attempt may try, and everybody else
still stays away until that one has ended. A failure opens it again for twice as long, up to 5 min;
a success closes it. Failures of attempts that were under way when it opened say nothing new.
Pure; times come in. contract.md section 6 (Heartbeat).
"""

from __future__ import annotations

from dataclasses import dataclass

CIRCUIT_FAILURES_MAX = 3
CIRCUIT_OPEN_MS_MIN = 30_000
CIRCUIT_OPEN_MS_MAX = 300_000
# A trial that never reports (its workflow was cancelled before the dispatch) blocks this long.
TRIAL_MS_MAX = 30_000


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    open_until_ms: int | None = None
    open_ms: int = CIRCUIT_OPEN_MS_MIN
    trial_until_ms: int = 0


class Circuits:
    """The circuits that are not closed and untouched, by agent."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}

    def __repr__(self) -> str:
        return f"<Circuits {len(self._circuits)}>"

    def __contains__(self, did: str) -> bool:
        return did in self._circuits

    def is_open(self, did: str, at_ms: int) -> bool:
        """Whether the agent is to be left alone: open, or half open with its trial under way."""
        circuit = self._circuits.get(did)
        if circuit is None or circuit.open_until_ms is None:
            return False
        return at_ms < circuit.open_until_ms or at_ms < circuit.trial_until_ms

    def taken(self, did: str, at_ms: int) -> None:
        """Note that the agent was chosen, which is the trial when its circuit is half open."""
        circuit = self._circuits.get(did)
        if circuit is not None and circuit.open_until_ms is not None:
            circuit.trial_until_ms = at_ms + TRIAL_MS_MAX

    def note(self, did: str, *, is_reachable: bool | None, at_ms: int) -> bool:
        """Note how an attempt ended; returns whether that opened the circuit.

        Args:
            is_reachable: None when nobody can tell, because the attempt was given up.
        """
        if is_reachable is None:
            return False
        if is_reachable:
            self._circuits.pop(did, None)
            return False
        circuit = self._circuits.setdefault(did, _Circuit())
        if circuit.open_until_ms is not None and at_ms < circuit.open_until_ms:
            return False
        circuit.failures += 1
        if circuit.open_until_ms is None and circuit.failures < CIRCUIT_FAILURES_MAX:
            return False
        if circuit.open_until_ms is not None:
            circuit.open_ms = min(circuit.open_ms * 2, CIRCUIT_OPEN_MS_MAX)
        circuit.open_until_ms = at_ms + circuit.open_ms
        circuit.trial_until_ms = 0
        return True

    def opened(self) -> list[str]:
        """Return the agents whose circuit is open or half open, the longest known first."""
        return [did for did, item in self._circuits.items() if item.open_until_ms is not None]
