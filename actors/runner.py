"""Drives workflows: hears events, steps machines, commits what they decide, then acts.

A plain class without Ray, sockets or a clock of its own: everything it needs comes in through
`actors/ports.py`, so that the seeded simulation runs exactly this code. It never waits; every
answer comes back as a call.

The order of every step, which is the whole guarantee of the engine:
  1. the machine decides (records and actions);
  2. agents are selected, which lets the machine decide further, all in the same step;
  3. all records of the step go to the ledger as one command;
  4. after its commit, and only then, the actions are performed: dispatches, timers, notices.
Spec: Execution order; design.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from actors.messages import CancelReply, CancelRequest, PublishReply, PublishRequest
from actors.orders import accepted_orders, is_wanted, order_of, timed_out, unstaked
from actors.ports import Clock, DirectoryPort, DispatchOrder, DispatchPort, LedgerPort
from actors.publishing import (
    accepted,
    answer_of,
    begun,
    estimate,
    foreseen,
    refusal,
)
from actors.running import RunnerStatistics, RunningWorkflow
from actors.selecting import complete
from actors.steps import (
    OwnerCommands,
    bids_of,
    end_bidding,
    key_of,
    not_cancellable,
    overloaded,
)
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.workflow.actions import (
    AbortDispatch,
    Action,
    AwaitResult,
    CloseAuction,
    DispatchNode,
    DispatchVerification,
    ScheduleRetry,
)
from core.workflow.events import (
    CancelRequested,
    Event,
    NodeChanged,
    Record,
    RetryDue,
    RuntimeExceeded,
    WorkflowAccepted,
)
from ledger.commands import Command, Outcome, OutcomeStatus

# After the ledger has said that a round is still open: clocks differ by little.
EARLY_MS = 50

Publish = Callable[[PublishReply | ServiceError], None]
Cancel = Callable[[CancelReply | ServiceError], None]


class Runner:
    """All workflows of one owner.

    Args:
        owner: the owner's name.
        epoch: the owner's epoch; commands of an older one are refused by the ledger.
        settings: bounds and the fee.
        on_finished: told (workflow id, watchers) after the last commit of a workflow.
        on_lost: called, with the reason, when this runner cannot be trusted any more: another
            owner has taken over, or the ledger refused what the machine was sure of.
        on_unsure: told the id of a workflow that is stored but may not be driven by anybody: its
            rows have to be read and, if they are this owner's, adopted.
    """

    def __init__(
        self,
        owner: str,
        epoch: int,
        settings: Settings,
        *,
        ledger: LedgerPort,
        directory: DirectoryPort,
        dispatcher: DispatchPort,
        clock: Clock,
        on_finished: Callable[[str, set[str]], None],
        on_lost: Callable[[str], None],
        on_unsure: Callable[[str], None],
    ) -> None:
        self._owner = owner
        self._epoch = epoch
        self._settings = settings
        self._ledger = ledger
        self._directory = directory
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_finished = on_finished
        self._on_lost = on_lost
        self._on_unsure = on_unsure
        self._running: dict[str, RunningWorkflow] = {}
        self._opening = 0  # dispatches of publishes that are being committed
        self._published = 0
        self._finished = 0
        self._commands = OwnerCommands(owner, epoch, settings)
        self._submitted = 0

    def __repr__(self) -> str:
        return f"<Runner {self._owner} epoch={self._epoch} running={len(self._running)}>"

    def statistics(self) -> RunnerStatistics:
        """Return the counters."""
        return RunnerStatistics(
            len(self._running), self._published, self._finished, self._submitted
        )

    def runs(self, workflow_id: str) -> bool:
        """Whether the workflow is unfinished and driven here."""
        return workflow_id in self._running

    def run_of(self, workflow_id: str) -> RunningWorkflow | None:
        """Return a workflow that is driven here, to be read only."""
        return self._running.get(workflow_id)

    # -- requests ---------------------------------------------------------------------------------

    def publish(self, request: PublishRequest, done: Publish) -> None:
        """Store a workflow, hold its budget, open its first attempts; `done` after the commit."""
        waiting = self._dispatcher.waiting + self._opening
        refused = overloaded(len(self._running), waiting, self._settings)
        if refused is not None:
            done(refused)
            return
        now_ms = self._clock.now_ms()
        bps = self._settings.auction_stake_bps
        found = estimate(request.compiled, self._directory, auction_stake_bps=bps)
        if request.is_dry_run:
            done(foreseen(request, found, self._directory, now_ms))
            return
        run = begun(request, found, now_ms)
        actions: list[Action] = []
        if found.exceeds_budget:
            records: list[Record] = [refusal(found, now_ms)]
        else:
            records, actions = self._decide(run, WorkflowAccepted(now_ms))
        command = self._commands.publish(request, found, records, now_ms)
        if request.workflow_id in self._running:
            # The request again, whose first reply was missed: driven here already, so only the
            # ledger's answer is of interest.
            self._submit(command, lambda outcome: done(answer_of(outcome)))
            return
        self._running[request.workflow_id] = run
        self._opening += len(actions)
        is_last = found.exceeds_budget or run.machine.is_finished
        reply = accepted(request, found)
        self._submit(command, partial(self._publish_committed, run, actions, is_last, reply, done))

    def watch(self, workflow_id: str, watcher: str) -> bool:
        """Tell the watcher when the workflow has finished; False when it does not run here."""
        run = self._running.get(workflow_id)
        if run is None:
            return False
        run.watchers.add(watcher)
        return True

    def cancel(self, request: CancelRequest, done: Cancel) -> None:
        """Cancel a workflow; `done` after the commit (spec: Verification and budget 4)."""
        run = self._running.get(request.workflow_id)
        if run is None or run.machine.is_finished:
            done(not_cancellable(request.workflow_id))
            return
        now_ms = self._clock.now_ms()
        event = CancelRequested(request.reason, request.details, request.actor_did, now_ms)
        records, actions = self._decide(run, event)
        key = f"cancel:{run.workflow_id}"
        command = self._commands.advance(run.workflow_id, key, records, request.actor_did)
        affected = sum(isinstance(record, NodeChanged) for record in records)

        def committed(outcome: Outcome) -> None:
            if outcome.error is ErrorCode.ESCROW_RELEASED:
                done(not_cancellable(run.workflow_id))
            if self._committed(run, actions, True, outcome):
                done(
                    CancelReply(
                        workflow_id=run.workflow_id,
                        cancelled_ms=now_ms,
                        nodes_affected=affected,
                        refunded_micro=int(outcome.result.get("releasedMicro", 0)),
                    )
                )

        self._submit(command, committed)

    def adopt(self, run: RunningWorkflow, records: list[Record], actions: list[Action]) -> None:
        """Go on with a workflow restored from rows: perform what restoring decided.

        After a commit, even of nothing: rows may be older than the end, which the ledger knows.
        """
        self._running[run.workflow_id] = run
        self._arm_deadline(run)
        for order in accepted_orders(run, self._directory.entry, self._clock.now_ms()):
            run.orders[order.node, False] = order
            self._dispatcher.hold(order)
        records, actions = self._complete(run, records, actions)
        # Rows that are read again may say something else: never the same key twice.
        key = f"restore:{run.workflow_id}:{self._owner}:{self._epoch}:{self._submitted}"
        self._submit_step(run, key, records, actions)

    # -- events -----------------------------------------------------------------------------------

    def receive(
        self, workflow_id: str, event: Event, done: Callable[[bool], None] | None = None
    ) -> None:
        """Hear what happened to an attempt; an event for a workflow that ended here is dropped.

        `done`: told after the commit, of an event that changes something, whether it was applied.
        """
        run = self._running.get(workflow_id)
        if run is None:
            return
        order = run.close_order(event)
        if order is not None:
            self._dispatcher.ended(order)
        records, actions = self._decide(run, event)
        if records:
            self._submit_step(run, key_of(workflow_id, event), records, actions, done)
        else:
            self._perform(run, actions)

    def confirm(self, workflow_id: str, key: str, done: Callable[[Outcome], None]) -> None:
        """Commit nothing of a workflow: says whether it has ended, after all that came before."""
        self._submit(self._commands.advance(workflow_id, key, [], self._owner), done)

    def drop_all(self) -> list[str]:
        """Forget every workflow without a word to the ledger: this owner was fenced off."""
        dropped = list(self._running)
        for run in self._running.values():
            run.cancel_timers()
        self._running.clear()
        return dropped

    # -- the step ---------------------------------------------------------------------------------

    def _decide(self, run: RunningWorkflow, event: Event) -> tuple[list[Record], list[Action]]:
        decision = run.machine.step(event)
        return self._complete(run, decision.records, decision.actions)

    def _complete(
        self, run: RunningWorkflow, records: list[Record], asked: list[Action]
    ) -> tuple[list[Record], list[Action]]:
        return complete(run.machine, self._directory, self._clock, records, asked)

    def _submit_step(
        self,
        run: RunningWorkflow,
        key: str,
        records: list[Record],
        actions: list[Action],
        done: Callable[[bool], None] | None = None,
    ) -> None:
        is_last = run.machine.is_finished
        command = self._commands.advance(run.workflow_id, key, records, self._owner)
        if done is None:
            self._submit(command, partial(self._committed, run, actions, is_last))
            return
        self._submit(command, lambda got: done(self._committed(run, actions, is_last, got)))

    def _committed(
        self, run: RunningWorkflow, actions: list[Action], is_last: bool, outcome: Outcome
    ) -> bool:
        """Act after a commit; returns whether the command was applied, now or before."""
        if outcome.status is OutcomeStatus.STALE:
            self._on_lost(f"{self._owner} epoch {self._epoch} was fenced off")
            return False
        if outcome.error is ErrorCode.ESCROW_RELEASED:
            # Adopted from rows that were read before its end: nothing was done, nothing is left.
            if self._running.get(run.workflow_id) is run:
                self._forget(run)
            return False
        if outcome.error is not None:
            # The machine reserved before it acted, so this is our own mistake: stop, do not guess;
            # a new process restores what is stored.
            self._on_lost(f"{run.workflow_id}: {outcome.error} {outcome.detail}")
            return False
        if self._running.get(run.workflow_id) is not run:
            return True
        self._perform(run, actions, outcome.result.get("unstaked", ()))
        if is_last:
            self._forget(run)
            self._finished += 1
            self._on_finished(run.workflow_id, run.watchers)
        return True

    def _forget(self, run: RunningWorkflow) -> None:
        del self._running[run.workflow_id]
        run.cancel_timers()
        for order in run.orders.values():
            self._dispatcher.ended(order)

    # -- acting -----------------------------------------------------------------------------------

    def _perform(
        self, run: RunningWorkflow, actions: Iterable[Action], refused: Collection[str] = ()
    ) -> None:
        """Act; attempts of the nodes `refused` are not sent, because their stake is not locked."""
        for action in actions:
            match action:
                case DispatchNode(node=node) if node in refused:
                    self.receive(run.workflow_id, unstaked(action, self._clock.now_ms()))
                case DispatchNode() | DispatchVerification():
                    self._dispatch(run, action)
                case ScheduleRetry(node, due_ms):
                    self._call_at(run, node, due_ms, RetryDue(node, due_ms))
                case CloseAuction(node, _, due_ms):
                    timer = self._clock.call_at(due_ms, self._end_bidding, run, action)
                    run.set_timer(node, timer)
                case AwaitResult(node, _, _, _, due_ms):
                    self._call_at(run, node, due_ms, timed_out(action))
                case AbortDispatch(node, _, _, reason):
                    for order in run.take_orders(node):
                        self._dispatcher.abort(order, reason)
                case _:
                    raise AssertionError(f"{action} was not answered before the commit")

    def _dispatch(self, run: RunningWorkflow, action: DispatchNode | DispatchVerification) -> None:
        if not is_wanted(run.machine, action):
            return
        entry = self._directory.entry(action.agent_did)
        order = order_of(run, action, entry, self._clock.now_ms())
        if not isinstance(order, DispatchOrder):
            self.receive(run.workflow_id, order)
            return
        run.orders[(action.node, order.is_verification)] = order
        self._dispatcher.send(order, self.receive)

    def _end_bidding(self, run: RunningWorkflow, action: CloseAuction) -> None:
        """Ask the ledger, whose clock it is, for the bids; a little later if that says so."""

        def ended(outcome: Outcome) -> None:
            if self._running.get(run.workflow_id) is not run:
                return
            now_ms = self._clock.now_ms()
            if outcome.error is None:
                self.receive(run.workflow_id, bids_of(action, outcome, now_ms))
            elif outcome.error is ErrorCode.OVERLOADED:
                self._perform(run, [replace(action, due_ms=now_ms + EARLY_MS)])

        self._submit(end_bidding(run.workflow_id, action), ended)

    # -- commands ---------------------------------------------------------------------------------

    def _publish_committed(
        self,
        run: RunningWorkflow,
        actions: list[Action],
        is_last: bool,
        reply: PublishReply,
        done: Publish,
        outcome: Outcome,
    ) -> None:
        self._opening -= len(actions)
        if outcome.status is not OutcomeStatus.APPLIED:
            self._running.pop(run.workflow_id, None)
            done(answer_of(outcome))
            if outcome.status is OutcomeStatus.STALE:
                self._on_lost(f"{self._owner} epoch {self._epoch} was fenced off")
            elif outcome.result.get("workflowId") == run.workflow_id:
                # Stored by an earlier try of this request, whose answer was lost on the way here or
                # to another owner: who drives it, and how far it is, only the rows can tell.
                self._on_unsure(run.workflow_id)
            return
        self._published += 1
        done(reply)
        if not is_last:
            self._arm_deadline(run)
        self._committed(run, actions, is_last, outcome)

    def _submit(self, command: Command, done: Callable[[Outcome], Any]) -> None:
        self._submitted += 1
        self._ledger.submit(command, done)

    # -- timers -----------------------------------------------------------------------------------

    def _arm_deadline(self, run: RunningWorkflow) -> None:
        deadline_ms = run.machine.deadline_ms
        self._call_at(run, "\x00deadline", deadline_ms, RuntimeExceeded(deadline_ms))

    def _call_at(self, run: RunningWorkflow, name: str, at_ms: int, event: Event) -> None:
        run.set_timer(name, self._clock.call_at(at_ms, self.receive, run.workflow_id, event))
