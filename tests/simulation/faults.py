"""Defects that a world plants in its own processes, with a chance of their own.

Worlds without them run as if this file did not exist. issue 8, mechanisms 1 and 4.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.loop import InjectedFault

if TYPE_CHECKING:
    from tests.simulation.world import World


class Faults:
    """What raises where no code expects it to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"faults {world.seed}")
        self.raised = 0

    def may_raise(self, where: str) -> None:
        """Raise, if the world's odds say so."""
        odds = self._world.troubles.raising
        if odds and self._chance.random() < odds:
            self.raised += 1
            raise InjectedFault(where)
