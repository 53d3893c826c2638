"""Circuit breakers: an agent that is unreachable three times in a row gets no work for a while.

Each owner keeps its own circuits in memory. Theory of operation: a closed circuit counts
consecutive failures; the third opens it for 30 s. Then it is half open: one trial attempt may be
sent, and no other until that one has ended. A failure opens the circuit again for twice as long, up
to 5 min; a success closes it. Failures of attempts that were open when it opened are not counted.
Pure; the caller passes the time. contract.md section 6 (Heartbeat).
"""

from __future__ import annotations

from dataclasses import dataclass

CIRCUIT_FAILURES_MAX = 3
CIRCUIT_OPEN_MS_MIN = 30_000
CIRCUIT_OPEN_MS_MAX = 300_000
# A trial without an outcome (its workflow was cancelled before the dispatch) blocks this long.
TRIAL_MS_MAX = 30_000


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    open_until_ms: int | None = None
    open_ms: int = CIRCUIT_OPEN_MS_MIN
    trial_until_ms: int = 0


class Circuits:
    """The circuits by agent; an agent without failures has none."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}

    def __repr__(self) -> str:
        return f"<Circuits {len(self._circuits)}>"

    def __contains__(self, did: str) -> bool:
        return did in self._circuits

    def is_open(self, did: str, at_ms: int) -> bool:
        """Whether the agent gets no work: open, or half open with its trial under way."""
        circuit = self._circuits.get(did)
        if circuit is None or circuit.open_until_ms is None:
            return False
        return at_ms < circuit.open_until_ms or at_ms < circuit.trial_until_ms

    def note_chosen(self, did: str, at_ms: int) -> None:
        """Note that the agent was chosen; with a half-open circuit this is the trial."""
        circuit = self._circuits.get(did)
        if circuit is not None and circuit.open_until_ms is not None:
            circuit.trial_until_ms = at_ms + TRIAL_MS_MAX

    def note_outcome(self, did: str, *, is_reachable: bool | None, at_ms: int) -> bool:
        """Note how an attempt ended; return whether that opened the circuit.

        Args:
            is_reachable: None when unknown, because the attempt was given up.
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

    def open_agents(self) -> list[str]:
        """Return the agents whose circuit is open or half open, the oldest circuit first."""
        return [did for did, item in self._circuits.items() if item.open_until_ms is not None]
