"""The hand-over of a shard's open calls, on both sides, as a runner needs them.

Giving: each order that is open at an agent is passed on, and what was parked of it is told on.
Receiving: the hint is kept until the shard's rows are read; the restore of a workflow waits for its
handed calls, and their orders are adopted. shards.md (Hand-over). Decision 0200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from actors.dispatch.handed_calls import HandedCall, HandedShard
from actors.ports import DispatchOrder
from actors.shards.held_shards import HeldShards
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
    """The open calls of a shard that was given; `heard`: what has come of them, by serial."""

    calls: tuple[HandedCall, ...]
    watchers: tuple[tuple[str, str], ...]
    heard: tuple[tuple[int, Event], ...]


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
    told: list[tuple[int, Event]] = []
    for run in runs:
        watchers += [(run.workflow_id, watcher) for watcher in sorted(run.watchers)]
        for (node, is_verification), order in run.orders.items():
            is_accepted = run.machine.node(node).is_accepted
            if is_accepted and not is_verification:  # which the recipient finds in the rows
                release(order)
                continue
            serial = pass_on(order)
            if serial is not None:
                serials[run.workflow_id, node, is_verification] = serial
                call = (run.workflow_id, node, order.attempt, order.verify_attempt)
                calls.append(HandedCall(serial, *call))
                if is_accepted:
                    told.append((serial, _accepted_event(run, order)))
        run.orders.clear()
    refused: list[Parked] = []
    for one in parked:
        event, serial = one.event, None
        if isinstance(event, _OF_CALLS):
            serial = serials.get((one.workflow_id, event.node, _is_of_verification(event)))
        if serial is None:
            refused.append(one)  # a timer's, or a result that was handed in: asked for again
        else:
            told.append((serial, event))
    refuse(refused)
    return GivenCalls(tuple(calls), tuple(watchers), tuple(told))


def _is_of_verification(event: Event) -> bool:
    if isinstance(event, AttemptAccepted):
        return event.verify_attempt > 0
    return isinstance(event, VerificationFinished)


def _accepted_event(run: RunningWorkflow, order: DispatchOrder) -> AttemptAccepted:
    """Return the event that said that a verifier has accepted an order; its time goes on."""
    began_ms = run.machine.node(order.node).verify_dispatched_ms
    assert began_ms is not None, f"{order.node} was accepted at no time"
    return AttemptAccepted(order.node, order.attempt, began_ms, began_ms, order.verify_attempt)


@dataclass(slots=True)
class _Hint:
    """What one hint tells, by workflow. `epoch`: under which its recipient holds the shard."""

    epoch: int
    calls: dict[str, list[HandedCall]] = field(default_factory=dict)
    watchers: dict[str, set[str]] = field(default_factory=dict)

    def left(self) -> list[HandedCall]:
        """Return the calls that no restored workflow has taken."""
        return [call for calls in self.calls.values() for call in calls]


class ReceivedHints:
    """The hints of shards that were given to this member: of each the newest, until it is restored.

    A hint tells of one epoch. It may come before the map does, or when the shard has been given on
    already, or was given a second time while the first restore is under way; so it counts only
    while its shard is held under that epoch.

    Args:
        held: the shards of this member.
    """

    def __init__(self, held: HeldShards) -> None:
        self._held = held
        self._hints: dict[int, _Hint] = {}

    def __repr__(self) -> str:
        return f"<ReceivedHints {sorted(self._hints)}>"

    def keep(self, handed: HandedShard) -> list[HandedCall]:
        """Keep a hint; return the calls that no workflow will wait for: its own, or the former's.

        Its own when the shard is held under that epoch no longer, and never will be again.
        """
        hint, former = _Hint(handed.epoch + 1), self._hints.get(handed.shard)
        is_older = former is not None and former.epoch >= hint.epoch
        if is_older or self._is_outdated(handed.shard, hint):
            return list(handed.calls)
        for call in handed.calls:
            hint.calls.setdefault(call.workflow_id, []).append(call)
        for workflow_id, watcher in handed.watchers:
            hint.watchers.setdefault(workflow_id, set()).add(watcher)
        self._hints[handed.shard] = hint
        return [] if former is None else former.left()

    def has(self, shard: int) -> bool:
        """Say whether the hint is here of a shard as it is held now."""
        hint = self._hints.get(shard)
        return hint is not None and hint.epoch == self._held.epoch(shard)

    def awaited(self, workflow_id: str) -> Awaited:
        """Return the attempts of a workflow that agents are known to work on."""
        shard = shard_of(workflow_id)
        calls = self._hints[shard].calls.get(workflow_id, ()) if self.has(shard) else ()
        return frozenset((call.node, call.attempt, call.verify_attempt) for call in calls)

    def take(self, workflow_id: str) -> tuple[list[HandedCall], set[str]]:
        """Remove and return a workflow's calls and watchers."""
        shard = shard_of(workflow_id)
        if not self.has(shard):
            return [], set()
        hint = self._hints[shard]
        return hint.calls.pop(workflow_id, []), hint.watchers.pop(workflow_id, set())

    def forget(self, shard: int, epoch: int) -> list[HandedCall]:
        """Forget the hint of a shard that is restored; return the calls that are left of it.

        Args:
            epoch: under which it was restored; a later hint is kept.
        """
        hint = self._hints.get(shard)
        if hint is None or hint.epoch > epoch:
            return []
        return self._hints.pop(shard).left()

    def forget_outdated(self) -> list[HandedCall]:
        """Forget the hints of shards that are another's by now; return the calls that are left."""
        gone = [shard for shard, hint in self._hints.items() if self._is_outdated(shard, hint)]
        return [call for shard in gone for call in self._hints.pop(shard).left()]

    def _is_outdated(self, shard: int, hint: _Hint) -> bool:
        is_held = self._held.epoch(shard) == hint.epoch
        return not is_held and not self._held.is_news(shard, hint.epoch)
