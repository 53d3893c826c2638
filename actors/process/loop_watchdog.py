"""Measures the turns of a process's event loop, and counts its ticks as the progress counter.

A tick is due every `TICK_MS`. The delay of a late tick is the length of the turn that delayed it.
Other threads can read the count of ticks while the loop is blocked. If the count grows, the loop
works; if the count stays constant, the process is frozen or stuck.

If a turn lasts too long, or the interpreter has a fatal error, a trace (the stack) is written to a
file. A signal handler in C writes the trace without the interpreter lock, because a call that never
returns may hold this lock. The next process with the same name finds the trace. A process that is
ended from outside during a normal turn leaves no trace.
Decisions fairness-and-long-work, process-liveness-and-standby and state-machine-and-recovery.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger("callboard.turns")

TICK_MS: Final = 50
LONG_TURN_MS: Final = 10
# Shorter turns are counted but not logged, because on a busy machine the scheduler causes them.
LOGGED_TURN_MS: Final = 250
# A turn that lasts this long is stuck; even on a busy machine normal turns are shorter.
STUCK_S: Final = 2.0


class TurnTrace:
    """The trace of a process's current turn. A process has at most one: it has only one alarm.

    The alarm is the kernel's interval timer; setting it takes one system call. Any thread of the
    process may receive SIGALRM, and the event loop of an actor may run outside the main thread.
    Therefore the alarm writes the stacks of all threads.

    `former`: the trace that the previous process with the same name has left, or "".

    Args:
        path: the file of the trace.
        stuck_s: how long a turn may last, seconds.
    """

    def __init__(self, path: Path, *, stuck_s: float = STUCK_S) -> None:
        self._stuck_s = stuck_s
        self.former = path.read_text(errors="replace") if path.exists() else ""
        self._file = path.open("wb", buffering=0)

    def start(self) -> None:
        """Start to trace fatal errors and the current turn."""
        faulthandler.enable(self._file, all_threads=False)
        faulthandler.register(signal.SIGALRM, self._file, all_threads=True, chain=False)
        self.note_turn()

    def note_turn(self) -> None:
        """Note that a turn has ended: restart the alarm and delete the turn's trace, if any."""
        signal.setitimer(signal.ITIMER_REAL, self._stuck_s)
        if self._file.tell():
            self._file.seek(0)
            self._file.truncate()


class TurnWatchdog:
    """Measures the turns of the running loop; must be created on that loop.

    Args:
        name: the process's name, for the log.
        on_long: receives the length of each long turn, seconds.
        trace: notified of each tick; None: no trace is written.
    """

    def __init__(
        self,
        name: str,
        *,
        on_long: Callable[[float], object] = lambda _: None,
        trace: TurnTrace | None = None,
    ) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._on_long = on_long
        self._trace = trace
        self.turns = 0  # the count of ticks; any thread may read it
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Schedule the next tick."""
        due_s = self._loop.time() + TICK_MS / 1000
        self._timer = self._loop.call_later(TICK_MS / 1000, self.tick, due_s)

    def stop(self) -> None:
        """Cancel the next tick."""
        if self._timer is not None:
            self._timer.cancel()

    def tick(self, due_s: float) -> None:
        """Count a tick that was due at `due_s`, and schedule the next tick."""
        late_ms = int((self._loop.time() - due_s) * 1000)
        self.turns += 1
        if self._trace is not None:
            self._trace.note_turn()
        if late_ms > LONG_TURN_MS:
            self._on_long(late_ms / 1000)
            if late_ms > LOGGED_TURN_MS:
                log.warning("long turn of the loop process=%s ms=%d", self._name, late_ms)
        self.start()
