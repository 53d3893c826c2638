"""Defects and disturbed clocks that a world plants in its own processes and its ledger.

They have a chance of their own: worlds without them run as if this file did not exist. What the
ledger cannot apply is refused alone and quarantines its workflow; an operator resumes or cancels
some of those, the others are left to their deadlines. issue 8, mechanisms 1, 3, 4 and 6.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from core.workflow.events import NodeChanged, WorkflowChanged
from core.workflow.transitions import is_terminal
from ledger.commands import Command
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from tests.simulation.loop import InjectedFault

if TYPE_CHECKING:
    from tests.simulation.world import World

SECONDS = 30
# How long the ledger cannot apply the steps of a workflow: over soon, late, or never.
BAD_MS = (2_000, 30_000, 10**9)
# How far a wall clock steps, milliseconds, and how far it is off from the start, at most.
STEPS_MS = (-4_000, -300, 300, 4_000)
OFFSET_MS_MAX = 4_000


class Faults:
    """What goes wrong inside of one world's processes, and with their clocks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"faults {world.seed}")
        self._bad_until_ms: dict[str, int] = {}
        self.raised: Counter[str] = Counter()
        self.refused = 0
        self.skew_ms = 0  # how far two clocks may be apart, at most

    @property
    def has_happened(self) -> bool:
        """Whether anything was refused or has raised."""
        return bool(self.refused or self.raised)

    def begin(self, machines: tuple[str, ...]) -> None:
        """Set every machine's clock, and the ledger's; let them step within the first seconds."""
        if not self._world.troubles.skewed:
            return
        steps = max(map(abs, STEPS_MS)) * SECONDS
        self.skew_ms = 2 * (OFFSET_MS_MAX + steps) if self._world.troubles.steps else OFFSET_MS_MAX
        for name in machines:
            self._world.offsets_ms[name] = self._offset_ms()
        self._world.ledger.offset_ms = self._offset_ms()
        for second in range(SECONDS):
            if self._chance.random() < self._world.troubles.steps:
                at_ms = 1_000 * second + self._chance.randint(0, 999)
                self._world.clock.call_in(at_ms, self._step, self._chance.choice(machines))

    def may_raise(self, where: str) -> None:
        """Raise, if the world's odds say so."""
        odds = self._world.troubles.raising
        if odds and self._chance.random() < odds:
            self.raised[where] += 1
            raise InjectedFault(where)

    def cannot_apply(self, command: Command) -> bool:
        """Say whether the ledger fails at this command, whatever batch it is in.

        The end of a workflow never fails: it is what remains when all else does.
        """
        odds = self._world.troubles.guilty
        if not odds or not isinstance(command, PublishWorkflow | AdvanceWorkflow):
            return False
        now_ms = self._world.clock.now_ms()
        if isinstance(command, PublishWorkflow):
            is_bad = self._chance.random() < odds
        elif ends_workflow(command) or not has_rows(command):
            return False
        else:
            is_bad = now_ms < self._bad_until_ms.get(command.workflow_id, 0)
            if not is_bad and command.workflow_id not in self._bad_until_ms:
                is_bad = self._chance.random() < odds
                if is_bad:
                    until_ms = now_ms + self._chance.choice(BAD_MS)
                    self._bad_until_ms[command.workflow_id] = until_ms
        self.refused += is_bad
        return is_bad

    def _step(self, machine: str) -> None:
        step_ms = self._chance.choice(STEPS_MS)
        if self._chance.random() < 0.3:
            self._world.ledger.offset_ms += step_ms
        else:
            self._world.offsets_ms[machine] += step_ms

    def _offset_ms(self) -> int:
        return self._chance.choice((0, self._chance.randint(-OFFSET_MS_MAX, OFFSET_MS_MAX)))


def ends_workflow(command: AdvanceWorkflow) -> bool:
    """Say whether a step is a workflow's end."""
    return any(isinstance(r, WorkflowChanged) and is_terminal(r.status) for r in command.records)


def has_rows(command: AdvanceWorkflow) -> bool:
    """Say whether a step changes any node."""
    return any(isinstance(record, NodeChanged) for record in command.records)
