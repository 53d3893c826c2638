"""Detects frozen processes of Ray by the kernel's counters of context switches.

A frozen process does not end by itself. Timers wake the main threads of Ray's GCS and raylet, even
in an idle cluster. A process is frozen if its main thread has not run for several checks, is not
ready to run, and does not wait for a disk. Then a signal has stopped the thread, or the thread
waits for a mutex. Checks are counted instead of seconds. So if the supervisor and Ray are frozen
together and both continue, the next check finds that Ray runs. A process in an endless loop is
busy, not frozen. Decision process-liveness-and-standby.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from serve_app.supervisor.processes import told_of

CHECK_S: Final = 2.0
# A process is frozen if its main thread has not run between so many checks in a row. They take 8 to
# 10 s. The main thread of an idle process was observed to sleep at most 0.5 s.
CHECKS_MAX: Final = 5
# R: running or ready to run. D: waiting for a disk, which no signal interrupts.
_BUSY_STATES: Final = ("R", "D")
_SWITCHES: Final = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


class FrozenProcesses:
    """Counts, for each process, the checks in a row between which its main thread has not run."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}

    def frozen(self, pids: Iterable[int]) -> list[int]:
        """Check once; return the processes that have not run for the last `CHECKS_MAX` checks.

        Args:
            pids: all watched processes; the counts of all other processes are dropped. A process
                that has ended is not frozen.
        """
        seen: dict[int, tuple[int, int]] = {}
        for pid in pids:
            state, switches = _main_thread(pid)
            known, misses = self._seen.get(pid, (-1, 0))
            is_still = switches == known and state not in _BUSY_STATES
            seen[pid] = (switches, misses + 1 if is_still else 0)
        self._seen = seen
        return [pid for pid, (_, misses) in seen.items() if misses >= CHECKS_MAX]


def _main_thread(pid: int) -> tuple[str, int]:
    """Return the state of a process's main thread, and its number of context switches."""
    lines = told_of(pid, "status").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if not fields:
        return _BUSY_STATES[0], 0  # the process has ended, which other code detects
    return fields["State"].split()[0], sum(int(fields[name]) for name in _SWITCHES)
