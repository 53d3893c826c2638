"""The hand-over of a shard's open calls, on both sides, as a runner needs them.

Giving: each order that is open at an agent is passed on, and what was parked of it is told on.
Taking: the handed calls of a workflow are kept until its rows are read; its restore waits for those
attempts, and their orders are adopted. shards.md (Hand-over). Decision 0200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from actors.dispatch.handed_calls import HandedCall, HandedShard
from actors.ports import DispatchOrder
from actors.shards.parked_events import Parked, refuse
from actors.workflows.running_workflow import RunningWorkflow
from core.shards.shard import shard_of
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    VerificationFinished,
    WorkStarted,
)

# By node, attempt and verification attempt, which is 0 of the attempt itself.
Awaited = frozenset[tuple[str, int, int]]
_OF_CALLS = AttemptAccepted | AttemptFailed | AttemptSucceeded | VerificationFinished | WorkStarted


class GivenCalls(NamedTuple):
    """The open calls of a shard that was given, and events of them that were parked."""

    calls: tuple[HandedCall, ...]
    watchers: tuple[tuple[str, str], ...]
    parked: tuple[tuple[int, Event], ...]


def give_calls(
    runs: Iterable[RunningWorkflow],
    parked: Sequence[Parked],
    *,
    pass_on: Callable[[DispatchOrder], int | None],
    release: Callable[[DispatchOrder], None],
) -> GivenCalls:
    """Take the open orders out of these runs and pass them on.

    Args:
        runs: the workflows of a shard that was given.
        parked: what was heard of them since the shard was frozen.
        pass_on: lets what comes of an order go to the recipient; returns the number of its sending,
            None for an order that no agent knows of yet.
        release: frees the place of an order whose agent hands its result in later, when the
            recipient has had the time to hold it.
    """
    calls: list[HandedCall] = []
    watchers: list[tuple[str, str]] = []
    serials: dict[tuple[str, str, bool], int] = {}
    for run in runs:
        watchers += [(run.workflow_id, watcher) for watcher in sorted(run.watchers)]
        for (node, is_verification), order in run.orders.items():
            if run.machine.node(node).is_accepted:
                release(order)
                continue
            serial = pass_on(order)
            if serial is not None:
                serials[run.workflow_id, node, is_verification] = serial
                call = (run.workflow_id, node, order.attempt, order.verify_attempt)
                calls.append(HandedCall(serial, *call))
        run.orders.clear()
    told: list[tuple[int, Event]] = []
    refused: list[Parked] = []
    for one in parked:
        event, serial = one.event, None
        if isinstance(event, _OF_CALLS):
            is_verification = isinstance(event, VerificationFinished)
            serial = serials.get((one.workflow_id, event.node, is_verification))
        if serial is None:
            refused.append(one)  # a timer's, or a result that was handed in: asked for again
        else:
            told.append((serial, event))
    refuse(refused)
    return GivenCalls(tuple(calls), tuple(watchers), tuple(told))


class TakenCalls:
    """The handed calls of shards whose rows are not read yet, by workflow."""

    def __init__(self) -> None:
        self._calls: dict[str, list[HandedCall]] = {}
        self._watchers: dict[str, set[str]] = {}

    def __repr__(self) -> str:
        return f"<TakenCalls workflows={len(self._calls)}>"

    def keep(self, handed: HandedShard) -> None:
        """Keep what a member has handed over."""
        for call in handed.calls:
            self._calls.setdefault(call.workflow_id, []).append(call)
        for workflow_id, watcher in handed.watchers:
            self._watchers.setdefault(workflow_id, set()).add(watcher)

    def awaited(self, workflow_id: str) -> Awaited:
        """Return the attempts of a workflow that agents are known to work on."""
        calls = self._calls.get(workflow_id, ())
        return frozenset((call.node, call.attempt, call.verify_attempt) for call in calls)

    def take(self, workflow_id: str) -> tuple[list[HandedCall], set[str]]:
        """Remove and return a workflow's calls and watchers."""
        return self._calls.pop(workflow_id, []), self._watchers.pop(workflow_id, set())

    def forget(self, shard: int) -> list[HandedCall]:
        """Remove and return what is left of a shard whose rows have been read."""
        for name in [name for name in self._watchers if shard_of(name) == shard]:
            del self._watchers[name]
        names = [name for name in self._calls if shard_of(name) == shard]
        return [call for name in names for call in self._calls.pop(name)]
