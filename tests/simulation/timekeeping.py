"""The timekeeper of a simulated world: the real `Silence` of each owner, asked twice a second.

A real timekeeper asks it half as often.
Processes are frozen for a while, the timekeeper is started anew and remembers nothing. What must
hold: it kills none that works, however busy, and replaces what is frozen.
`actors/cluster/timekeeper.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.cluster.process_watch import START_MS_MAX, Silence
from tests.simulation.violation import require

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

ROUND_MS = 500
ANSWER_MS_MAX = 2_000  # a ping that takes longer counts for nothing
SECONDS = 30
FROZEN_MS = (1_000, 20_000, 200_000)
# A timekeeper that is started anew, the last time after `SECONDS`, waits so long for the first
# answer of an owner.
REPLACED_MS_MAX = START_MS_MAX + 1_000 * SECONDS + 10_000


@dataclass(slots=True)
class _Ping:
    """A question to a process, by the timekeeper of this number."""

    process: Process
    number: int
    is_over: bool = False


class Timekeeping:
    """Watches the owners of one world, if its troubles say so."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"timekeeping {world.seed}")
        self._silences: dict[str, Silence] = {}
        self._number = 0
        self.killed = 0
        self.late = 0  # answers of owners that were only busy

    def begin(self) -> None:
        """Start the rounds, and draw what is frozen when."""
        world = self._world
        if not world.troubles.watched:
            return
        self._start()
        for second in range(SECONDS):
            at_ms = 1_000 * second + self._chance.randint(0, 999)
            if self._chance.random() < world.troubles.frozen:
                world.clock.call_in(at_ms, self._freeze)
            if self._chance.random() < world.troubles.forgetful:
                world.clock.call_in(at_ms, self._start)

    def _start(self) -> None:
        """Begin as a new timekeeper, to whom every owner is new."""
        self._number += 1
        silence_ms, now_ms = self._world.settings.owner_silence_ms, self._world.clock.now_ms()
        self._silences = {
            name: Silence(silence_ms, now_ms=now_ms) for name in self._world.processes
        }
        self._round(self._number)

    def _round(self, number: int) -> None:
        world = self._world
        if number != self._number or world.is_over():
            return
        for process in world.processes.values():
            if process.is_alive:
                ping = _Ping(process, number)
                process.loop.call_soon(self._answered, ping)
                world.clock.call_in(ANSWER_MS_MAX, self._not_answered, ping)
        world.clock.call_in(ROUND_MS, self._round, number)

    def _answered(self, ping: _Ping) -> None:
        process, now_ms = ping.process, self._world.clock.now_ms()
        if ping.is_over or ping.number != self._number:
            return
        ping.is_over = True
        self._silences[process.name].note_answer(now_ms, process.progress)

    def _not_answered(self, ping: _Ping) -> None:
        """Ask another thread of a process that is late for its count of progress."""
        process = ping.process
        if ping.is_over or ping.number != self._number or not process.is_alive:
            return
        ping.is_over = True
        now_ms = self._world.clock.now_ms()
        silence, is_frozen = self._silences[process.name], process.loop.is_frozen
        if not is_frozen and silence.note_progress(process.progress, now_ms):
            self.late += 1
        elif silence.note_miss(now_ms):
            self._kill(process, now_ms)

    def _kill(self, process: Process, now_ms: int) -> None:
        self._silences[process.name].note_replaced(now_ms)
        self.killed += 1
        # One that goes on, or was started, just now is not heard before the next answer.
        since_ms = max(process.thawed_ms, process.began_ms)
        is_silent = process.loop.is_frozen or now_ms - since_ms <= ROUND_MS
        require(is_silent, "killed for working:", process, process.loop)
        process.kill()
        self._world.restart_later(process)

    def _freeze(self) -> None:
        world = self._world
        process = world.processes[self._chance.choice(list(world.processes))]
        if not process.is_alive or process.loop.is_frozen:
            return
        process.loop.freeze()
        process.was_frozen = True
        for_ms = self._chance.choice(FROZEN_MS)
        world.clock.call_in(for_ms, self._thaw, process)
        world.clock.call_in(REPLACED_MS_MAX, self._is_replaced, process)

    def _thaw(self, process: Process) -> None:
        if process.is_alive:
            process.loop.thaw()
            process.thawed_ms = self._world.clock.now_ms()

    def _is_replaced(self, process: Process) -> None:
        is_current = self._world.processes[process.name] is process
        is_gone = not (process.is_alive and process.loop.is_frozen and is_current)
        require(is_gone or self._world.is_over(), "frozen and never replaced:", process)
