"""Messages between the processes of a simulated cluster: late, lost, repeated, cut off.

Two messages of one sender may overtake each other, and a message may arrive when its sender has
ended. What arrives at a process that has ended is answered as a refused connection; what arrives at
a machine that is suspended is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.loop import VirtualLoop
from tests.simulation.skewed_clock import VirtualClock

USUAL_US_MIN = 100
LATE_US = (50_000, 4_000_000)


@dataclass(slots=True)
class Weather:
    """The odds of each message, all zero: none is lost. `usual_us_max`: how long most take."""

    usual_us_max: int = 4_000
    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0


class ClusterNetwork:
    """Carries calls from loop to loop.

    Args:
        clock: the true time.
        chance: draws what becomes of each message.
    """

    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self.weather = Weather()
        self.cut: set[frozenset[str]] = set()
        self.newest_late_us = 0  # when the last message arrives that is not in time

    def post(
        self,
        ends: tuple[str, str],
        loop: VirtualLoop,
        call: Callable[..., Any],
        *arguments: Any,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Call something on another process's loop, sooner or later, never or twice.

        Args:
            ends: the machines, as `cut` names them.
            refused: called on no loop when the process has ended by then.
        """
        if frozenset(ends) in self.cut or self._chance.random() < self.weather.lost:
            return
        for _ in range(1 + (self._chance.random() < self.weather.repeated)):
            delay_us = self._chance.randint(USUAL_US_MIN, self.weather.usual_us_max)
            if self._chance.random() < self.weather.late:
                delay_us = self._chance.randint(*LATE_US)
                self.newest_late_us = max(self.newest_late_us, self._clock.now_us + delay_us)
            at_us = self._clock.now_us + delay_us
            self._clock.call_at_us(at_us, self._arrive, loop, call, arguments, refused)

    def _arrive(
        self,
        loop: VirtualLoop,
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        refused: Callable[[], None],
    ) -> None:
        if not loop.is_alive:
            refused()
        elif not loop.is_suspended:
            loop.call_soon(call, *arguments)
