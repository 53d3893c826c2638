"""The state of unfinished workflows in their owner's process, and a runner's counts. No I/O."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from actors.ports import DispatchOrder, Timer
from core.market.sharing.fair_share import Held
from core.shards.shard import shard_of
from core.workflow.actions import DispatchNode
from core.workflow.events import AttemptFailed, AttemptSucceeded, Event, VerificationFinished
from core.workflow.machine import WorkflowMachine

# Receives whether an event with records was applied.
Done = Callable[[bool], None]
# The time for sending one workflow's orders in one turn of the event loop, microseconds. An order
# takes 20 microseconds, and 1 microsecond more for each parent of its node.
SENT_US_MAX: Final = 4_000
ORDER_US: Final = 20


@dataclass(slots=True)
class OrderEnds:
    """A cancellation's wait for the ends of orders at peers.

    `nodes`: the nodes whose orders have not ended. `then`: callbacks, called when all orders have
    ended, or after a timeout.
    """

    nodes: set[str]
    then: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class RunningWorkflow:
    """One unfinished workflow in this process.

    `orders`: the open orders by (node, whether the order is a verification).
    `watchers`: the gateways to notify of the workflow's end.
    `is_halted`: the run is stopped, for example because the ledger refused a step. Its machine may
    be ahead of the rows. Only a run that is restored from the rows continues the workflow.
    `is_stored`: the publish is known to be committed. Before that the workflow receives no event.
    `created_ms`: the time of the publish, Unix ms; None when the workflow was restored from rows.
    `halts`: how often the workflow was halted in this process, including earlier runs.
    `unsent`: the dispatches that later turns of the event loop send, in the order of sending.
    `traceparent`: the value that the publish contained, or None.
    `order_ends`: set while a cancellation waits for the ends of orders at peers.
    """

    task_id: str
    machine: WorkflowMachine
    orders: dict[tuple[str, bool], DispatchOrder] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)
    watchers: set[str] = field(default_factory=set)
    payer_did: str = ""
    is_halted: bool = False
    is_stored: bool = True
    created_ms: int | None = None
    halts: int = 0
    unsent: deque[DispatchNode] = field(default_factory=deque)
    traceparent: str | None = None
    order_ends: OrderEnds | None = None

    @property
    def workflow_id(self) -> str:
        """Return the workflow's id."""
        return self.machine.workflow_id

    def set_timer(self, name: str, timer: Timer) -> None:
        """Set the timer of this name; cancel the previous timer of this name."""
        before = self.timers.get(name)
        if before is not None:
            before.cancel()
        self.timers[name] = timer

    def cancel_timers(self) -> None:
        """Cancel every timer."""
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()

    def orders_at_peers(self) -> list[DispatchOrder]:
        """Return the open orders at peers."""
        return [order for order in self.orders.values() if order.peer is not None]

    def end_orders(self, ends: OrderEnds) -> None:
        """Continue the cancellations that wait for `ends`, unless they have continued already."""
        if self.order_ends is ends:
            self.order_ends = None
            for then in ends.then:
                then()

    def pop_orders(self, node: str) -> list[DispatchOrder]:
        """Remove and return the open orders of a node."""
        both = (self.orders.pop((node, False), None), self.orders.pop((node, True), None))
        return [order for order in both if order is not None]

    def take_unsent(self) -> list[DispatchNode]:
        """Remove and return the dispatches that one turn of the event loop sends."""
        taken, left_us = [], SENT_US_MAX
        while self.unsent and left_us > 0:
            taken.append(self.unsent.popleft())
            left_us -= ORDER_US + len(self.machine.compiled.nodes[taken[-1].node].depends_on)
        return taken

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


class DrivenWorkflows:
    """The unfinished workflows that one runner drives, including halted workflows.

    Args:
        unfinished: counts the workflows of each payer.
    """

    def __init__(self, unfinished: Held) -> None:
        self._unfinished = unfinished
        self._runs: dict[str, RunningWorkflow] = {}
        self._of_shard: defaultdict[int, set[str]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._runs

    def get(self, workflow_id: str) -> RunningWorkflow | None:
        """Return the run of a workflow, halted or not."""
        return self._runs.get(workflow_id)

    def has(self, run: RunningWorkflow) -> bool:
        """Say whether this run is the current run of its workflow, not an earlier run."""
        return self._runs.get(run.workflow_id) is run

    def stored(self) -> list[RunningWorkflow]:
        """Return the workflows whose publish is known to be committed."""
        return [run for run in self._runs.values() if run.is_stored]

    def of_shards(self, shards: Collection[int]) -> list[RunningWorkflow]:
        """Return the workflows of these shards."""
        return [self._runs[name] for one in shards for name in sorted(self._of_shard.get(one, ()))]

    def add(self, run: RunningWorkflow) -> None:
        """Add a workflow, or replace its earlier run."""
        if run.workflow_id not in self._runs:
            self._unfinished.add(run.payer_did)
            self._of_shard[shard_of(run.workflow_id)].add(run.workflow_id)
        self._runs[run.workflow_id] = run

    def remove(self, workflow_id: str) -> None:
        """Remove a workflow that is no longer driven."""
        self._unfinished.remove(self._runs.pop(workflow_id).payer_did)
        self._of_shard[shard_of(workflow_id)].discard(workflow_id)


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """A runner's counts.

    `running`, `quarantined`: the current numbers of driven and of quarantined workflows.
    `commands`: the number of submitted commands. `raised`: the number of exceptions that
    quarantined a workflow.
    """

    running: int
    commands: int
    quarantined: int = 0
    raised: int = 0
