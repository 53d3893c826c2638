"""Where a standby of the ledger runs: on another machine than the writer, if there is one.

On the writer's machine it would be lost with it and cost its memory, so none is made there, and one
that has been there for a minute is ended: a planned hand-over, which makes one, is over by then.
One on a machine that is to leave is ended too, and made elsewhere (decision 0214).
Pure: the caller measures the time and acts. shards.md (Ledger). Decision 0211.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

# Longer than a planned hand-over waits for its new process.
BESIDE_MS_MAX: Final = 120_000


@dataclass(frozen=True, slots=True)
class LedgerProcess:
    """What a process of the ledger tells of itself."""

    machine: str
    is_writer: bool


@dataclass(frozen=True, slots=True)
class StandbyMove:
    """A standby to make. `machine`: where; "": it is to be ended instead."""

    name: str
    machine: str


class StandbyPlace:
    """Decides when a standby is made or ended.

    Args:
        names: the two that ledger processes have.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self._names = names
        self._beside_since_ms: int | None = None

    def __repr__(self) -> str:
        return f"<StandbyPlace beside_since_ms={self._beside_since_ms}>"

    def move(
        self,
        processes: Mapping[str, LedgerProcess | None],
        machines: Collection[str],
        now_ms: int,
    ) -> StandbyMove | None:
        """Return what to change, None when all is as it should be or not known.

        Args:
            processes: those that exist, by name; None: it has not answered.
            machines: that live and are not to leave.
            now_ms: of a monotonic clock.
        """
        writers = [name for name, one in processes.items() if one is not None and one.is_writer]
        since_ms, self._beside_since_ms = self._beside_since_ms, None
        if len(writers) != 1:
            return None
        writer = processes[writers[0]]
        other = next(name for name in self._names if name != writers[0])
        assert writer is not None
        if other not in processes:
            elsewhere = sorted(set(machines) - {writer.machine})
            return StandbyMove(other, elsewhere[0]) if elsewhere else None
        standby = processes[other]
        if standby is not None and standby.machine not in {*machines, writer.machine}:
            return StandbyMove(other, "")
        if standby is None or standby.machine != writer.machine:
            return None
        self._beside_since_ms = now_ms if since_ms is None else since_ms
        if now_ms - self._beside_since_ms <= BESIDE_MS_MAX:
            return None
        self._beside_since_ms = None
        return StandbyMove(other, "")
