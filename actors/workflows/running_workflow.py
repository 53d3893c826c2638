"""Unfinished workflows in their owner's process, and a runner's counters.

Values only. design.md section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from actors.ports import DispatchOrder, Timer
from actors.workflows.door import Door
from core.canonical import hash_bytes
from core.shards.shard import shard_of
from core.workflow.actions import Action, DispatchNode, DispatchVerification
from core.workflow.blob_ref import BlobRef
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    VerificationFinished,
    WorkStarted,
)
from core.workflow.machine import WorkflowMachine

# Receives whether an event with records was applied.
Done = Callable[[bool], None]
# By node, calls that repeat what was heard of it.
Early = dict[str, list[Callable[[], None]]]
# What one turn of the loop sends of a workflow: an order costs 20 us, each of its parents 1.
SENT_US_MAX: Final = 4_000
ORDER_US: Final = 20
_OF_ATTEMPTS: Final = (WorkStarted, AttemptAccepted, AttemptSucceeded, AttemptFailed)


@dataclass(slots=True)
class RunningWorkflow:
    """One unfinished workflow in this process.

    `is_halted`: the ledger refused a step, so the machine is ahead of the rows and is replaced.
    `is_stored`: its publish is known to be committed; before that it receives no event.
    `created_ms`: when it was published here; None when it was restored.
    `halts`: how often it was halted in this process, earlier runs included.
    `unsent`: dispatches that later turns of the loop send, in order.
    `early`: the nodes that are dispatched while the commit of their step is under way, and calls
    that repeat what was heard of each since, for when that commit's outcome is known.
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
    unsent: deque[DispatchNode | DispatchVerification] = field(default_factory=deque)
    early: Early = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)

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

    def hold_back(self, event: Event, again: Callable[[], None]) -> bool:
        """Hold back an event that comes of an early dispatch; return whether it does.

        Args:
            again: repeats it.
        """
        held = self.early.get(event.node) if isinstance(event, _OF_ATTEMPTS) else None
        if held is not None:
            held.append(again)
        return held is not None

    def pop_early(self, actions: Iterable[Action]) -> Early:
        """Remove and return what is held back of the dispatches among these actions."""
        nodes = [action.node for action in actions if isinstance(action, DispatchNode)]
        return {node: self.early.pop(node) for node in nodes if node in self.early}

    def digest_for_children(self, name: str) -> None:
        """Hash a node's result when it is there, once, if a child's dispatch is bound to it."""
        nodes, result = self.machine.compiled.nodes, self.machine.result_of(name)
        is_bound = any(not nodes[child].has_side_effects for child in nodes[name].children)
        if is_bound and result is not None:
            self.digests_of({name: result})

    def digests_of(self, results: Mapping[str, str | BlobRef]) -> dict[str, str]:
        """Return the hashes of results of this workflow, by name; a result never changes."""
        for name, item in results.items():
            if name in self._digests:
                continue
            self._digests[name] = (
                item.hash if isinstance(item, BlobRef) else hash_bytes(item.encode())
            )
        return {name: self._digests[name] for name in results}

    def take_unsent(self) -> list[DispatchNode | DispatchVerification]:
        """Remove and return what one turn of the loop sends."""
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
    """The unfinished workflows that one runner drives, halted ones included.

    Args:
        door: counts them by payer.
    """

    def __init__(self, door: Door) -> None:
        self._door = door
        self._runs: dict[str, RunningWorkflow] = {}

    def __repr__(self) -> str:
        return f"<DrivenWorkflows {len(self)}>"

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._runs

    def get(self, workflow_id: str) -> RunningWorkflow | None:
        """Return the run of a workflow, halted or not."""
        return self._runs.get(workflow_id)

    def has(self, run: RunningWorkflow) -> bool:
        """Say whether this run is the one that is driven, no other of its workflow."""
        return self._runs.get(run.workflow_id) is run

    def ids(self) -> set[str]:
        """Return the ids of those that are not halted."""
        return {name for name, run in self._runs.items() if not run.is_halted}

    def stored(self) -> list[RunningWorkflow]:
        """Return those whose publish is known to be committed."""
        return [run for run in self._runs.values() if run.is_stored]

    def of_shards(self, shards: Collection[int]) -> list[RunningWorkflow]:
        """Return those of these shards."""
        return [run for name, run in self._runs.items() if shard_of(name) in shards]

    def add(self, run: RunningWorkflow) -> None:
        """Know a workflow as driven, instead of another run of it."""
        if run.workflow_id not in self._runs:
            self._door.enter(run.payer_did)
        self._runs[run.workflow_id] = run

    def remove(self, workflow_id: str) -> None:
        """Know a workflow as driven no longer."""
        self._door.leave(self._runs.pop(workflow_id).payer_did)


def hear_again(early: Early) -> None:
    """Repeat what was heard of early dispatches before the outcome of their commit was known."""
    held = [again for heard in early.values() for again in heard]
    early.clear()
    for again in held:
        again()


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
