"""Measures the turns of a process's event loop and counts its ticks as a sign of life.

A tick is due every `TICK_MS`; its delay is the length of the turns before it. Other threads can
read the count of ticks while the loop is blocked: a growing count means that the loop works, a
constant count that the process is frozen or stuck.

A turn that lasts too long, or a fatal error of the interpreter, has its stack written to a file, by
a signal handler of C: it needs no interpreter lock, which a call that never returns may hold. The
next process of this name finds the trace; a process that is ended from outside in a usual turn
leaves none. Decisions fairness-and-long-work, process-liveness-and-standby and
state-machine-and-recovery.
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
# Shorter turns are counted only: on a busy machine the scheduler alone causes them.
LOGGED_TURN_MS: Final = 250
# No turn lasts so long, on a busy machine either.
STUCK_S: Final = 2.0


class TurnTrace:
    """The trace of a process's turn; one of a process, which has one alarm.

    The alarm is the kernel's interval timer, which costs a system call to set. SIGALRM reaches the
    process in whichever thread, and the loop of an actor need not be in its main thread.

    Args:
        path: the trace's file.
        stuck_s: how long a turn may last.
    """

    def __init__(self, path: Path, *, stuck_s: float = STUCK_S) -> None:
        self._stuck_s = stuck_s
        self.former = path.read_text(errors="replace") if path.exists() else ""
        self._file = path.open("wb", buffering=0)

    def start(self) -> None:
        """Trace fatal errors, and the turn that goes on."""
        faulthandler.enable(self._file, all_threads=False)
        faulthandler.register(signal.SIGALRM, self._file, all_threads=True, chain=False)
        self.note_turn()

    def note_turn(self) -> None:
        """Note that a turn has ended: what was written of it is of no account."""
        signal.setitimer(signal.ITIMER_REAL, self._stuck_s)
        if self._file.tell():
            self._file.seek(0)
            self._file.truncate()


class TurnWatchdog:
    """Measures the turns of the running loop; must be created on that loop.

    Args:
        name: the process's name, for the log.
        now_s: a clock, seconds; None: the loop's own.
        on_long: receives the seconds of each long turn.
        trace: is told of each tick; None: none is left.
    """

    def __init__(
        self,
        name: str,
        now_s: Callable[[], float] | None = None,
        *,
        on_long: Callable[[float], object] = lambda _: None,
        trace: TurnTrace | None = None,
    ) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time if now_s is None else now_s
        self._on_long = on_long
        self._trace = trace
        self.turns = 0  # the count of ticks; any thread may read it
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Schedule the next tick."""
        due_s = self._now_s() + TICK_MS / 1000
        self._timer = self._loop.call_later(TICK_MS / 1000, self.tick, due_s)

    def stop(self) -> None:
        """Cancel the next tick."""
        if self._timer is not None:
            self._timer.cancel()

    def tick(self, due_s: float) -> None:
        """Count a tick that was due at this time, and schedule the next."""
        late_ms = int((self._now_s() - due_s) * 1000)
        self.turns += 1
        if self._trace is not None:
            self._trace.note_turn()
        if late_ms > LONG_TURN_MS:
            self._on_long(late_ms / 1000)
            if late_ms > LOGGED_TURN_MS:
                log.warning("long turn of the loop process=%s ms=%d", self._name, late_ms)
        self.start()
