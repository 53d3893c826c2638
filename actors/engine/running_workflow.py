"""One unfinished workflow as its owner's process holds it, and what a runner counts.

Values only. design.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.engine.ports import DispatchOrder, Timer
from core.workflow.events import AttemptFailed, AttemptSucceeded, Event, VerificationFinished
from core.workflow.machine import WorkflowMachine


@dataclass(slots=True)
class RunningWorkflow:
    """One unfinished workflow in this process.

    `is_halted`: a step was refused, so the machine is ahead of the rows: another takes its place.
    `is_stored`: its publish is known to be committed; before that, nothing happens to it.
    `halts`: how often it was halted in this process, the runs before this one included.
    """

    task_id: str
    machine: WorkflowMachine
    orders: dict[tuple[str, bool], DispatchOrder] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)
    watchers: set[str] = field(default_factory=set)
    payer_did: str = ""
    is_halted: bool = False
    is_stored: bool = True
    halts: int = 0

    @property
    def workflow_id(self) -> str:
        """Return the workflow's id."""
        return self.machine.workflow_id

    def set_timer(self, name: str, timer: Timer) -> None:
        """Keep a timer under this name, in the place of the one before it."""
        before = self.timers.get(name)
        if before is not None:
            before.cancel()
        self.timers[name] = timer

    def cancel_timers(self) -> None:
        """Let nothing be due any more."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()

    def take_orders(self, node: str) -> list[DispatchOrder]:
        """Forget and return the open orders of a node."""
        both = (self.orders.pop((node, False), None), self.orders.pop((node, True), None))
        return [order for order in both if order is not None]

    def close_order(self, event: Event) -> DispatchOrder | None:
        """Forget and return the order that this event ends; a late one to an earlier ends none."""
        is_verification = isinstance(event, VerificationFinished)
        if not isinstance(event, AttemptSucceeded | AttemptFailed | VerificationFinished):
            return None
        order = self.orders.get((event.node, is_verification))
        if order is None or order.attempt != event.attempt:
            return None
        if isinstance(event, VerificationFinished) and event.verify_attempt not in (
            None,
            order.verify_attempt,
        ):
            return None
        return self.orders.pop((event.node, is_verification))


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """Counters since the runner was made.

    `quarantined`: workflows that are kept without being driven. `raised`: callbacks of workflows
    that raised an exception, each of which quarantined its workflow.
    """

    running: int
    published: int
    finished: int
    commands: int
    quarantined: int = 0
    raised: int = 0
