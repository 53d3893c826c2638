"""One unfinished workflow as its owner's process holds it, and what a runner counts.

Values only. design.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.ports import DispatchOrder, Timer
from core.workflow.machine import WorkflowMachine


@dataclass(slots=True)
class RunningWorkflow:
    """One unfinished workflow in this process."""

    task_id: str
    machine: WorkflowMachine
    orders: dict[tuple[str, bool], DispatchOrder] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)
    watchers: set[str] = field(default_factory=set)

    @property
    def workflow_id(self) -> str:
        """Return the workflow's id."""
        return self.machine.workflow_id


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """Counters since the runner was made."""

    running: int
    published: int
    finished: int
    commands: int
