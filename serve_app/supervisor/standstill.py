"""Whether processes still run, as the kernel tells: for those that end by no signal of their own.

The main threads of Ray's GCS and raylet wake by their own timers, whatever the cluster does. One
that has not run since several looks, wants no core and waits for no disk is frozen: stopped by a
signal, or stuck in a lock. Looks are counted, not seconds: who was frozen together with what it
watches finds it running at its second look. A process that computes for ever is busy, not frozen.
Decision process-liveness-and-standby.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from serve_app.supervisor.processes import told_of

LOOK_S: Final = 2.0
# Of looks in a row without a run: 8 to 10 s. An idle main thread was seen to sleep 0.5 s at most.
LOOKS_MAX: Final = 5
# Running or ready to run, or waiting for a disk, from which no signal takes it.
_BUSY_STATES: Final = ("R", "D")
_SWITCHES: Final = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


class Standstill:
    """Counts for how many looks the main thread of each process has not run."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}

    def frozen(self, pids: Iterable[int]) -> list[int]:
        """Look once and return the processes that have not run in the last `LOOKS_MAX` looks.

        Args:
            pids: all that are watched; others are forgotten. One that has ended is not frozen.
        """
        seen: dict[int, tuple[int, int]] = {}
        for pid in pids:
            state, switches = _main_thread(pid)
            known, misses = self._seen.get(pid, (-1, 0))
            is_still = switches == known and state not in _BUSY_STATES
            seen[pid] = (switches, misses + 1 if is_still else 0)
        self._seen = seen
        return [pid for pid, (_, misses) in seen.items() if misses >= LOOKS_MAX]


def _main_thread(pid: int) -> tuple[str, int]:
    """Return the state of a process's main thread and how often it has given up its core."""
    lines = told_of(pid, "status").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if not fields:
        return _BUSY_STATES[0], 0  # it has ended: others see that
    return fields["State"].split()[0], sum(int(fields[name]) for name in _SWITCHES)
