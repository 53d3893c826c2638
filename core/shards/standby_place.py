"""Where the standby of the ledger should run: on another machine than the writer, if possible.

If both ran on one machine, the loss of this machine would end both. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerProcess:
    """The state that a ledger process reports: its machine, and whether it is the writer."""

    machine: str
    is_writer: bool


@dataclass(frozen=True, slots=True)
class StandbyMove:
    """A change of the standby.

    `machine`: the machine on which to start the process with this name; "": end the process.
    """

    name: str
    machine: str


def standby_move(
    names: tuple[str, str],
    processes: Mapping[str, LedgerProcess | None],
    machines: Collection[str],
) -> StandbyMove | None:
    """Return the change that the standby needs.

    A standby on the writer's machine, or on a machine that is not listed, is ended. A later call
    returns the machine on which to start the standby again.

    Args:
        names: the two names of ledger processes.
        processes: the existing processes, by name; None if a process has not answered.
        machines: the running machines, without those that will leave.

    Returns:
        The change; None if none is needed, if there is no other machine, or if the writer or the
        state of the standby is unknown.
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
