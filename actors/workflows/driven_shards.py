"""A runner's workflows by shard: events parked, calls given, runs dropped.

Knows no lease and no ledger: `membership.py` says when, the runner's callbacks stop and hear.
shards.md (Hand-over). Decision 0200.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from actors.ports import Clock, DispatchOrder, DispatchPort
from actors.shards.held_shards import HeldShards
from actors.shards.parked_events import ParkedEvents, refuse
from actors.workflows.handover import GivenCalls, ReceivedHints, give_calls
from actors.workflows.quarantined_workflows import Quarantine
from actors.workflows.running_workflow import DrivenWorkflows, RunningWorkflow
from core.workflow.events import Event

Done = Callable[[bool], None]

# A place at an agent that has accepted an order is kept for so long after its shard was given,
# within which the recipient has read the rows and holds the place itself.
GIVEN_PLACE_MS: Final = 5_000


class DrivenShards:
    """The shards of one runner's workflows.

    Args:
        held: the shards of this member.
        running: the workflows that are driven.
        quarantine: those that are not driven on.
        dispatcher: has their orders.
        clock: wall time.
        receive: receives an event again that was parked.
        stop: stops a run that is driven no longer, with its orders and timers.
    """

    def __init__(
        self,
        held: HeldShards,
        running: DrivenWorkflows,
        quarantine: Quarantine,
        *,
        dispatcher: DispatchPort,
        clock: Clock,
        receive: Callable[[str, Event, Done | None], None],
        stop: Callable[[RunningWorkflow], None],
    ) -> None:
        self._running = running
        self._quarantine = quarantine
        self._dispatcher = dispatcher
        self._clock = clock
        self._receive = receive
        self._stop = stop
        self._parked = ParkedEvents()
        self.hints = ReceivedHints(held)

    def __repr__(self) -> str:
        return f"<DrivenShards {self._parked!r} {self.hints!r}>"

    def park(self, workflow_id: str, event: Event, done: Done | None) -> None:
        """Keep an event of a workflow whose shard is frozen."""
        self._parked.park(workflow_id, event, done)

    def thaw(self, shard: int) -> None:
        """Hear the events of a shard that was frozen and stays here."""
        for workflow_id, event, done in self._parked.take(shard):
            self._receive(workflow_id, event, done)

    def give(self, shard: int, to: str) -> GivenCalls:
        """Pass the open calls of a shard on to the member that it was given to; drop its runs."""
        given = give_calls(
            self._running.of_shards([shard]),
            self._parked.take(shard),
            pass_on=lambda order: self._dispatcher.hand_over(order, to),
            release=self._release_later,
        )
        for _ in self.drop([shard]):  # no order is left, only timers
            pass
        return given

    def _release_later(self, order: DispatchOrder) -> None:
        self._clock.call_at(self._clock.now_ms() + GIVEN_PLACE_MS, self._dispatcher.release, order)

    def drop(self, shards: Collection[int]) -> Iterator[None]:
        """Drive the workflows of these shards no longer, because another member does.

        At once nothing is heard of them; the generator ends their orders, one workflow per step.
        """
        lost = self._running.of_shards(shards)
        for run in lost:
            run.is_halted = True
            self._running.remove(run.workflow_id)
        self._quarantine.drop(shards)
        for shard in shards:
            refuse(self._parked.take(shard))
        return self._stop_runs(lost)

    def _stop_runs(self, runs: Sequence[RunningWorkflow]) -> Iterator[None]:
        for run in runs:
            # What an agent has accepted it hands in at the member that drives its workflow now.
            for node, is_verification in list(run.orders):
                if run.machine.node(node).is_accepted:
                    self._dispatcher.release(run.orders.pop((node, is_verification)))
            self._stop(run)
            yield
