"""A runner's workflows by shard: which have open calls, and how they are dropped.

Knows no lease and no ledger: `membership.py` says when, the runner's callback stops a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from actors.ports import DispatchPort
from actors.workflows.quarantined_workflows import Quarantine
from actors.workflows.running_workflow import DrivenWorkflows, RunningWorkflow


class DrivenShards:
    """The shards of one runner's workflows.

    Args:
        running: the workflows that are driven.
        quarantine: those that are not driven on.
        dispatcher: has their orders.
        stop: stops a run that is driven no longer, with its orders and timers.
    """

    def __init__(
        self,
        running: DrivenWorkflows,
        quarantine: Quarantine,
        *,
        dispatcher: DispatchPort,
        stop: Callable[[RunningWorkflow], None],
    ) -> None:
        self._running = running
        self._quarantine = quarantine
        self._dispatcher = dispatcher
        self._stop = stop

    def is_idle(self, shard: int) -> bool:
        """Say whether no call of a shard would be lost if its workflows were dropped now.

        What an agent has accepted it hands in, at whichever member holds the shard then.
        """
        return all(
            run.machine.node(node).is_accepted and not is_verification
            for run in self._running.of_shards((shard,))
            for node, is_verification in run.orders
        )

    def drop(self, shards: Collection[int], *, is_told: bool = True) -> Iterator[None]:
        """Drive the workflows of these shards no longer, because another member does or will.

        At once nothing is heard of them; the generator ends their orders, one workflow per step.

        Args:
            is_told: agents get a cancel notice. None for a shard that is given away: the notice
                could end the call that the next member repeats under the same key.
        """
        lost = self._running.of_shards(shards)
        for run in lost:
            run.is_halted = True
            self._running.remove(run.workflow_id)
        self._quarantine.drop(shards)
        return self._stop_runs(lost, is_told=is_told)

    def _stop_runs(self, runs: Sequence[RunningWorkflow], *, is_told: bool) -> Iterator[None]:
        for run in runs:
            # What an agent has accepted it hands in at the member that drives its workflow now.
            for node, is_verification in list(run.orders):
                if run.machine.node(node).is_accepted:
                    self._dispatcher.release(run.orders.pop((node, is_verification)))
                elif not is_told:
                    self._dispatcher.cancel(run.orders.pop((node, is_verification)))
            self._stop(run)
            yield
