"""Drives workflows: hears events, steps machines, commits what they decide, then acts.

A plain class without Ray, sockets or a clock of its own: everything it needs comes in through
`actors/engine/ports.py`, so that the seeded simulation runs exactly this code. It never waits;
every answer comes back as a call.

The order of every step, which is the whole guarantee of the engine:
  1. the machine decides (records and actions);
  2. agents are selected, which lets the machine decide further, all in the same step;
  3. all records of the step go to the ledger as one command;
  4. after its commit, and only then, the actions are performed: dispatches, timers, notices.
Spec: Execution order; design.md section 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from actors.dispatch.orders import accepted_orders
from actors.engine.acting import ActingRunner
from actors.engine.publishing import (
    accepted,
    answer_of,
    begun,
    estimate,
    foreseen,
    refusal,
)
from actors.engine.recovery import restore
from actors.engine.running import RunnerStatistics, RunningWorkflow
from actors.engine.selecting import complete
from actors.engine.steps import (
    halted,
    is_halting,
    key_of,
    not_cancellable,
    overloaded,
    quarantine_code,
)
from actors.transport.messages import (
    CancelReply,
    CancelRequest,
    PublishReply,
    PublishRequest,
    ResumeReply,
    ResumeRequest,
)
from core.errors import ErrorCode, QuarantineCode, ServiceError
from core.workflow.actions import Action
from core.workflow.events import (
    AgentRevoked,
    CancelRequested,
    Event,
    NodeChanged,
    Record,
    WorkflowAccepted,
)
from ledger.commands import Outcome, OutcomeStatus
from ledger.queries.stored import StoredWorkflow

log = logging.getLogger("callboard.runner")

Publish = Callable[[PublishReply | ServiceError], None]
Cancel = Callable[[CancelReply | ServiceError], None]
Resume = Callable[[ResumeReply | ServiceError], None]


class Runner(ActingRunner):
    """All workflows of one owner; see `ActingRunner` for the arguments."""

    def __repr__(self) -> str:
        return f"<Runner {self._owner} epoch={self._epoch} running={len(self._running)}>"

    def statistics(self) -> RunnerStatistics:
        """Return the counters."""
        return RunnerStatistics(
            len(self._running),
            self._published,
            self._finished,
            self._submitted,
            len(self._quarantine),
            self._raised,
        )

    def runs(self, workflow_id: str) -> bool:
        """Whether the workflow is unfinished and driven here."""
        return self.run_of(workflow_id) is not None

    def driven(self) -> set[str]:
        """Return the ids of all unfinished workflows that are driven here."""
        return {name for name, run in self._running.items() if not run.is_halted}

    def run_of(self, workflow_id: str) -> RunningWorkflow | None:
        """Return a workflow that is driven here, to be read only."""
        run = self._running.get(workflow_id)
        return None if run is None or run.is_halted else run

    # -- requests ---------------------------------------------------------------------------------

    def publish(self, request: PublishRequest, done: Publish) -> None:
        """Store a workflow, hold its budget, open its first attempts; `done` after the commit."""
        waiting = self._dispatcher.waiting + self._opening
        unfinished = len(self._running) + len(self._quarantine)
        refused = overloaded(
            unfinished, waiting, self._settings, is_ledger_full=self._ledger.is_full
        )
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
            self._submit(run, command, lambda outcome: done(answer_of(outcome)))
            return
        self._running[request.workflow_id] = run
        run.is_stored = False
        self._opening += len(actions)
        is_last = found.exceeds_budget or run.machine.is_finished
        reply = accepted(request, found)
        self._submit(
            run, command, partial(self._publish_committed, run, actions, is_last, reply, done)
        )

    def watch(self, workflow_id: str, watcher: str) -> bool:
        """Tell the watcher when the workflow has finished; False when it does not run here."""
        run = self._running.get(workflow_id)
        if run is None:
            return self._quarantine.watch(workflow_id, watcher)
        run.watchers.add(watcher)
        return True

    def cancel(self, request: CancelRequest, done: Cancel) -> None:
        """Cancel a workflow; `done` after the commit (spec: Verification and budget 4)."""
        if request.workflow_id in self._quarantine:
            self._quarantine.cancel(request, done)
            return
        run = self._running.get(request.workflow_id)
        if run is not None and run.is_halted:
            done(halted(run.workflow_id))
            return
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
            elif is_halting(outcome) or quarantine_code(outcome) is not None:
                done(halted(run.workflow_id))
            if self._committed(run, actions, True, outcome):
                done(
                    CancelReply(
                        workflow_id=run.workflow_id,
                        cancelled_ms=now_ms,
                        nodes_affected=affected,
                        refunded_micro=int(outcome.result.get("releasedMicro", 0)),
                    )
                )

        self._submit(run, command, committed)

    def resume(self, request: ResumeRequest, done: Resume) -> None:
        """Let a quarantined workflow be driven on; `done` after the commit."""
        self._quarantine.resume(request, done)

    def is_quarantined(self, workflow_id: str) -> bool:
        """Say whether a workflow is kept here without being driven on."""
        return workflow_id in self._quarantine

    # -- rows -------------------------------------------------------------------------------------

    def begin_read(self) -> set[str]:
        """Begin a read of rows; returns what `take_up` and `end_read` are told of it."""
        touched: set[str] = set()
        self._reads.append(touched)
        return touched

    def end_read(self, touched: set[str]) -> None:
        """End a read of rows, all of which have been taken up."""
        self._reads = [other for other in self._reads if other is not touched]

    def take_up(self, stored: StoredWorkflow, touched: set[str]) -> bool:
        """Drive a stored workflow on, keep it quarantined, or end it; returns whether it is driven.

        Args:
            stored: its rows.
            touched: of their read, by `begin_read`: what has changed here since then is read again
                by whoever changed it.
        """
        workflow_id = stored.workflow_id
        is_ending = self._quarantine.is_ending(workflow_id)
        if self.runs(workflow_id) or (workflow_id in touched and not is_ending):
            return False
        if not is_ending and workflow_id in self._quarantine:
            return False
        code, deadline_ms = stored.row["quarantine_code"], stored.row["deadline_ms"]
        if code is not None and not is_ending:
            self.quarantine(workflow_id, code, deadline_ms, stored.payer_did)
            return False
        try:
            restored = restore(stored, self._settings, self._clock.now_ms())
        except Exception:  # stored by another version, or damaged: the others must not stop for it
            self._raised += 1
            log.exception("workflow cannot be restored workflow=%s", workflow_id)
            if is_ending:
                self._quarantine.end(stored, None)
            else:
                lost = QuarantineCode.NOT_RESTORABLE
                self.quarantine(workflow_id, lost, deadline_ms, stored.payer_did)
                self._quarantine.store(workflow_id, lost)
            return False
        if is_ending:
            self._quarantine.end(stored, restored[:2])
            return False
        self.adopt(*restored)
        return True

    def not_found(self, workflow_id: str) -> None:
        """Hear that a workflow that was read has no unfinished rows of this owner."""
        if not self.runs(workflow_id):
            self._quarantine.forget(workflow_id)

    def adopt(self, run: RunningWorkflow, records: list[Record], actions: list[Action]) -> None:
        """Go on with a workflow restored from rows: perform what restoring decided.

        After a commit, even of nothing: rows may be older than the end, which the ledger knows.
        """
        self._guard(run, self._adopt, run, records, actions)

    def _adopt(self, run: RunningWorkflow, records: list[Record], actions: list[Action]) -> None:
        former = self._running.get(run.workflow_id)
        if former is not None:
            run.watchers |= former.watchers
        self._running[run.workflow_id] = run
        self._arm_deadline(run)
        for order in accepted_orders(run, self._directory.entry, self._clock.now_ms()):
            run.orders[order.node, False] = order
            self._dispatcher.hold(order)
        records, actions = self._complete(run, records, actions)
        # Rows that are read again may say something else: never the same key twice.
        key = f"restore:{run.workflow_id}:{self._owner}:{self._epoch}:{self._submitted}"
        self._submit_step(run, key, records, actions, is_fresh=True)

    # -- events -----------------------------------------------------------------------------------

    def receive(
        self, workflow_id: str, event: Event, done: Callable[[bool], None] | None = None
    ) -> None:
        """Hear what happened to an attempt; an event for a workflow that ended here is dropped.

        `done`: told after the commit, of an event that changes something, whether it was applied.
        """
        run = self.run_of(workflow_id)
        if run is not None:
            self._guard(run, self._receive, run, event, done)

    def _receive(
        self, run: RunningWorkflow, event: Event, done: Callable[[bool], None] | None
    ) -> None:
        workflow_id = run.workflow_id
        order = run.close_order(event)
        if order is not None:
            self._dispatcher.ended(order)
        records, actions = self._decide(run, event)
        if records:
            self._submit_step(run, key_of(workflow_id, event), records, actions, done)
        else:
            self._perform(run, actions)

    def revoked_work_steps(self) -> Iterator[None]:
        """Take what revoked agents have to do from them, one workflow at each step."""
        at_ms = self._clock.now_ms()
        # Were a publish's answer lost, rows that are read then would be older than this; what it
        # begins with is looked at as it is sent.
        for run in [run for run in self._running.values() if run.is_stored]:
            yield
            if self.run_of(run.workflow_id) is not run:
                continue
            for did in run.machine.agents_at_work():
                if self._directory.is_revoked(did, at_ms):
                    self.receive(run.workflow_id, AgentRevoked(did, at_ms))

    def confirm(self, workflow_id: str, key: str, done: Callable[[Outcome], None]) -> None:
        """Commit nothing of a workflow: says whether it has ended, after all that came before."""
        run = self._running.get(workflow_id)
        payer_did = "" if run is None else run.payer_did
        command = self._commands.advance(workflow_id, key, [], self._owner)
        self._submit_unfenced(command, done, payer_did)

    # -- the step ---------------------------------------------------------------------------------

    def _decide(self, run: RunningWorkflow, event: Event) -> tuple[list[Record], list[Action]]:
        decision = run.machine.step(event)
        return self._complete(run, decision.records, decision.actions)

    def _complete(
        self, run: RunningWorkflow, records: list[Record], asked: list[Action]
    ) -> tuple[list[Record], list[Action]]:
        return complete(run.machine, self._directory, self._clock, records, asked)

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
                self._fenced()
            elif outcome.error is ErrorCode.INTERNAL_ERROR:
                # Whether it is stored, an unforeseen refusal does not say.
                self._on_unsure(run.workflow_id)
            elif outcome.result.get("workflowId") == run.workflow_id:
                # Stored by an earlier try of this request, whose answer was lost on the way here or
                # to another owner: who drives it, and how far it is, only the rows can tell.
                self._on_unsure(run.workflow_id)
            return
        self._published += 1
        run.is_stored = True
        done(reply)
        if not is_last:
            self._arm_deadline(run)
        self._committed(run, actions, is_last, outcome)
