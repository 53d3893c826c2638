"""Finds open calls to agents in the shards of a runner, and drops the workflows of shards.

This module knows neither leases nor the ledger. `membership.py` decides when shards are dropped;
a callback of the runner stops each run (`RunningWorkflow`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from actors.ports import DispatchPort
from actors.workflows.quarantined_workflows import Quarantine
from actors.workflows.running_workflow import DrivenWorkflows, RunningWorkflow


class DrivenShards:
    """The shards of one runner's workflows.

    Args:
        running: the workflows that the runner drives.
        quarantine: the quarantined workflows, which the runner does not drive.
        dispatcher: holds the workflows' orders, that is, their dispatches to agents.
        stop: ends the timers and the remaining orders of a dropped run.
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
        """Say whether no call to an agent would be lost if the shard's workflows were dropped now.

        An attempt that its agent has accepted (202) is not lost: its result goes to the member that
        holds the shard when the result arrives. A verification always counts as an open call,
        because the next member sends it again.
        """
        return all(
            run.machine.node(node).is_accepted and not is_verification
            for run in self._running.of_shards((shard,))
            for node, is_verification in run.orders
        )

    def drop(self, shards: Collection[int], *, is_told: bool = True) -> Iterator[None]:
        """Stop driving the workflows of these shards, because another member drives them next.

        The workflows receive no events after this call. The returned generator then ends their
        orders, one workflow per step.

        Args:
            is_told: whether the agents get a cancel notice. False for a shard that is handed off:
                the next member repeats the call under the same key, and the notice could end it.
        """
        lost = self._running.of_shards(shards)
        for run in lost:
            run.is_halted = True
            self._running.remove(run.workflow_id)
        self._quarantine.drop(shards)
        return self._stop_runs(lost, is_told=is_told)

    def _stop_runs(self, runs: Sequence[RunningWorkflow], *, is_told: bool) -> Iterator[None]:
        for run in runs:
            # An accepted order goes on: the agent sends its result to the next member.
            for node, is_verification in list(run.orders):
                if run.machine.node(node).is_accepted:
                    self._dispatcher.release(run.orders.pop((node, is_verification)))
                elif not is_told:
                    self._dispatcher.cancel(run.orders.pop((node, is_verification)))
            self._stop(run)
            yield
