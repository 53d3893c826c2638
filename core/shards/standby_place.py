"""Where a standby of the ledger runs: on another machine than the writer, if there is one.

On the writer's machine it would be lost with it. Pure: the caller acts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


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


def standby_move(
    names: tuple[str, str],
    processes: Mapping[str, LedgerProcess | None],
    machines: Collection[str],
) -> StandbyMove | None:
    """Return what to change, None when all is as it should be or not known.

    Args:
        names: the two that ledger processes have.
        processes: those that exist, by name; None: it has not answered.
        machines: that live and are not to leave.
    """
    writers = [name for name, one in processes.items() if one is not None and one.is_writer]
    if len(writers) != 1:
        return None
    writer = processes[writers[0]]
    other = next(name for name in names if name != writers[0])
    assert writer is not None
    elsewhere = sorted(set(machines) - {writer.machine})
    if not elsewhere:
        return None
    if other not in processes:
        return StandbyMove(other, elsewhere[0])
    standby = processes[other]
    if standby is None or standby.machine in elsewhere:
        return None
    return StandbyMove(other, "")
