"""One unfinished workflow in its owner's process, and a runner's counters.

Values only. design.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.ports import DispatchOrder, Timer
from core.workflow.events import AttemptFailed, AttemptSucceeded, Event, VerificationFinished
from core.workflow.machine import WorkflowMachine


@dataclass(slots=True)
class RunningWorkflow:
    """One unfinished workflow in this process.

    `is_halted`: the ledger refused a step, so the machine is ahead of the rows and is replaced.
    `is_stored`: its publish is known to be committed; before that it receives no event.
    `halts`: how often it was halted in this process, earlier runs included.
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
        """Set the timer of this name; cancel the one before it."""
        before = self.timers.get(name)
        if before is not None:
            before.cancel()
        self.timers[name] = timer

    def cancel_timers(self) -> None:
        """Cancel every timer."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()

    def pop_orders(self, node: str) -> list[DispatchOrder]:
        """Remove and return the open orders of a node."""
        both = (self.orders.pop((node, False), None), self.orders.pop((node, True), None))
        return [order for order in both if order is not None]

    def close_order(self, event: Event) -> DispatchOrder | None:
        """Remove and return the order that this event ends; None for a late event."""
        if not isinstance(event, (AttemptSucceeded, AttemptFailed, VerificationFinished)):
            return None
        is_verification = isinstance(event, VerificationFinished)
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

    `quarantined`: quarantined workflows now. `raised`: callbacks that raised an exception, each of
    which quarantined its workflow.
    """

    running: int
    published: int
    finished: int
    commands: int
    quarantined: int = 0
    raised: int = 0
