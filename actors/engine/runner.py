"""Drives workflows: hears events, steps machines, commits what they decide, then acts.

A plain class without Ray, sockets or a clock of its own: everything it needs comes in through
`actors/engine/ports.py`, so that the seeded simulation runs exactly this code. It never waits;
every answer comes back as a call.

The order of every step, which is the whole guarantee of the engine:
  1. the machine decides (records and actions);
  2. agents are selected, which lets the machine decide further, all in the same step;
  3. all records of the step go to the ledger as one command;
  4. after its commit, and only then, the actions are performed: dispatches, timers, notices.
A step that the ledger refuses for a revoked agent's doing halts its workflow: this machine is ahead
of the rows, so it is driven no further, and one made of the rows takes its place. Any other
refusal, and any exception while a workflow is worked on, quarantines that workflow and nothing
else: every callback that comes in here, from the ledger, a timer or a dispatch, is guarded. Only a
fence ends the process. Spec: Execution order; design.md section 3. Decision 0090.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from actors.dispatch.orders import accepted_orders, is_wanted, order_of, timed_out, unstaked
from actors.engine.door import Door
from actors.engine.ports import Clock, DirectoryPort, DispatchOrder, DispatchPort, LedgerPort
from actors.engine.publishing import (
    accepted,
    answer_of,
    begun,
    estimate,
    foreseen,
    refusal,
)
from actors.engine.quarantine import Quarantine
from actors.engine.recovery import restore
from actors.engine.running import RunnerStatistics, RunningWorkflow
from actors.engine.steps import (
    OwnerCommands,
    bids_of,
    complete,
    end_bidding,
    halted,
    is_halting,
    key_of,
    newest_rows,
    not_cancellable,
    quarantine_code,
    revoked_at_work,
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
    AgentRevoked,
    CancelRequested,
    Event,
    NodeChanged,
    Record,
    RetryDue,
    RuntimeExceeded,
    WorkflowAccepted,
)
from core.workflow.rules.retry import delay_ms
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.reads.stored import StoredWorkflow

log = logging.getLogger("callboard.runner")

# After the ledger has said that a round is still open: clocks differ by little.
EARLY_MS: Final = 50
# What agents are told whose work is begun anew.
HALTED_REASON: Final = "error"
# Names of timers that belong to no node.
_DEADLINE, _READ_AGAIN = "\x00deadline", "\x00read again"
_NOTHING: Final[Mapping[str, Any]] = {}

Publish = Callable[[PublishReply | ServiceError], None]
Cancel = Callable[[CancelReply | ServiceError], None]
Resume = Callable[[ResumeReply | ServiceError], None]


class Runner:
    """All workflows of one owner.

    Args:
        owner: the owner's name.
        epoch: the owner's epoch; commands of an older one are refused by the ledger.
        settings: bounds and the fee.
        on_finished: told (workflow id, watchers) after the last commit of a workflow.
        on_lost: called, with the reason, when another owner has taken over: this runner cannot go
            on.
        on_unsure: told the id of a workflow that is stored but not driven: its rows have to be read
            and, if they are this owner's, given to `take_up`.
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
        self._door = Door(settings, dispatcher, ledger)
        self._published = 0
        self._finished = 0
        self._commands = OwnerCommands(owner, epoch, settings)
        self._submitted = 0
        self._raised = 0
        # Of each read of rows under way, the workflows of which its rows are out of date.
        self._reads: list[set[str]] = []
        self._quarantine = Quarantine(
            self._commands,
            clock,
            self._door,
            submit=self._submit_unfenced,
            reread=on_unsure,
            changed=self._touch,
            ended=self._quarantined_ended,
        )

    def __repr__(self) -> str:
        return f"<Runner {self._owner} epoch={self._epoch} running={len(self._running)}>"

    def statistics(self) -> RunnerStatistics:
        """Return the counters."""
        counts = (self._published, self._finished, self._submitted)
        return RunnerStatistics(len(self._running), *counts, len(self._quarantine), self._raised)

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
        refused = self._door.refusal(request.payer_did)
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
        self._drive(run)
        run.is_stored = False
        self._door.open(run.payer_did, len(actions))
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
        again = partial(done, halted(run.workflow_id))
        self._guard(run, self._cancel, run, request, done, otherwise=again)

    def _cancel(self, run: RunningWorkflow, request: CancelRequest, done: Cancel) -> None:
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

        self._submit(run, command, committed, otherwise=partial(done, halted(run.workflow_id)))

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
            former.cancel_timers()
            run.watchers |= former.watchers
            run.halts = former.halts
        self._drive(run)
        self._arm_deadline(run)
        for order in accepted_orders(run, self._directory.entry, self._clock.now_ms()):
            run.orders[order.node, False] = order
            self._dispatcher.hold(order)
        records, actions = self._complete(run, records, actions)
        # An agent may have been revoked while nobody drove this workflow.
        for event in revoked_at_work(run, self._directory, self._clock):
            more_records, more_actions = self._decide(run, event)
            records = newest_rows([*records, *more_records])
            actions = [*actions, *more_actions]
        # Rows that are read again may say something else: never the same key twice.
        key = f"restore:{run.workflow_id}:{self._owner}:{self._epoch}:{self._submitted}"
        self._submit_step(run, key, records, actions, is_fresh=True)

    # -- events -----------------------------------------------------------------------------------

    def receive(
        self, workflow_id: str, event: Event, done: Callable[[bool], None] | None = None
    ) -> None:
        """Hear what happened to an attempt; an event for a workflow that ended here is dropped.

        `done`: told after the commit, of an event that changes something, whether it was applied;
        False when the workflow is quarantined for it.
        """
        run = self.run_of(workflow_id)
        if run is not None:
            otherwise = None if done is None else partial(done, False)
            self._guard(run, self._receive, run, event, done, otherwise=otherwise)

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
        # Were a publish's answer lost, rows that are read then would be older than this; what it
        # begins with is looked at as it is sent.
        for run in [run for run in self._running.values() if run.is_stored]:
            yield
            if self.run_of(run.workflow_id) is not run:
                continue
            for event in revoked_at_work(run, self._directory, self._clock):
                self.receive(run.workflow_id, event)

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
        return complete(run, self._directory, self._clock, records, asked)

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
        self._door.opened(run.payer_did, len(actions))
        if outcome.status is not OutcomeStatus.APPLIED:
            if run.workflow_id in self._running:
                self._leave(run.workflow_id)
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

    # -- committing -------------------------------------------------------------------------------

    def _submit_step(
        self,
        run: RunningWorkflow,
        key: str,
        records: list[Record],
        actions: list[Action],
        done: Callable[[bool], None] | None = None,
        *,
        is_fresh: bool = False,
    ) -> None:
        is_last = run.machine.is_finished
        command = self._commands.advance(
            run.workflow_id, key, records, self._owner, is_fresh=is_fresh
        )
        if done is None:
            self._submit(run, command, partial(self._committed, run, actions, is_last))
            return
        self._submit(
            run,
            command,
            lambda got: done(self._committed(run, actions, is_last, got)),
            otherwise=partial(done, False),
        )

    def _submit(
        self,
        run: RunningWorkflow,
        command: Command,
        done: Callable[[Outcome], object],
        *,
        otherwise: Callable[[], object] | None = None,
    ) -> None:
        self._submitted += 1
        guarded = partial(self._guard, run, done, otherwise=otherwise)
        self._ledger.submit(command, guarded, run.payer_did)

    def _submit_unfenced(
        self, command: Command, done: Callable[[Outcome], None], payer: str
    ) -> None:
        """Commit a command that belongs to no run; a fence ends the process."""

        def heard(outcome: Outcome) -> None:
            if outcome.status is OutcomeStatus.STALE:
                self._fenced()
            else:
                done(outcome)

        self._submitted += 1
        self._ledger.submit(command, heard, payer)

    def _fenced(self) -> None:
        self._on_lost(f"{self._owner} epoch {self._epoch} was fenced off")

    def _guard(
        self,
        run: RunningWorkflow,
        work: Callable[..., object],
        *arguments: Any,
        otherwise: Callable[[], object] | None = None,
    ) -> None:
        """Work on a workflow; an exception quarantines it and goes no further.

        Args:
            otherwise: answers the request that the work was for, when it raised.
        """
        try:
            work(*arguments)
        except Exception:  # the edge of one workflow: the others have nothing to do with it
            self._raised += 1
            log.exception("workflow failed inside its owner workflow=%s", run.workflow_id)
            self._quarantine_run(run, QuarantineCode.STEP_FAILED, is_known=False)
            if otherwise is not None:
                otherwise()

    def _committed(
        self, run: RunningWorkflow, actions: list[Action], is_last: bool, outcome: Outcome
    ) -> bool:
        """Act after a commit; returns whether the command was applied, now or before."""
        if outcome.status is OutcomeStatus.STALE:
            self._fenced()
            return False
        is_driven = self._running.get(run.workflow_id) is run
        if outcome.error is ErrorCode.ESCROW_RELEASED:
            # Adopted from rows that were read before its end: nothing was done, nothing is left.
            if is_driven:
                self._forget(run)
            return False
        if is_halting(outcome):
            if is_driven and not run.is_halted:
                self._halt(run)
            return False
        unforeseen = quarantine_code(outcome)
        if unforeseen is not None:  # the machine reserved before it acted: this is our own mistake
            log.error("step refused workflow=%s outcome=%s", run.workflow_id, outcome)
            self._quarantine_run(run, unforeseen[0], is_known=unforeseen[1])
            return False
        if not is_driven:
            return True
        self._perform(run, actions, outcome.result)
        if is_last:
            self._forget(run)
            self._finished += 1
            self._on_finished(run.workflow_id, run.watchers)
        return True

    def _drive(self, run: RunningWorkflow) -> None:
        """Know a workflow as driven here, instead of another run of it."""
        if run.workflow_id not in self._running:
            self._door.enter(run.payer_did)
        self._running[run.workflow_id] = run

    def _leave(self, workflow_id: str) -> None:
        """Know a workflow as driven here no longer."""
        self._door.leave(self._running.pop(workflow_id).payer_did)

    def _forget(self, run: RunningWorkflow) -> None:
        self._leave(run.workflow_id)
        self._touch(run.workflow_id)
        run.cancel_timers()
        for order in run.orders.values():
            self._dispatcher.ended(order)

    def _halt(self, run: RunningWorkflow) -> None:
        """Drive a workflow no further; it stays known until another run takes its place.

        Its rows are read at once; when it is halted again after that, with the delays of retries,
        but not after its deadline. The ledger may refuse the same step until its clock has passed a
        time that this clock has passed already.
        """
        self._stop(run)
        run.halts += 1
        delay = delay_ms(run.halts)
        if delay == 0:
            self._on_unsure(run.workflow_id)
            return
        read_ms = min(self._clock.now_ms() + delay, run.machine.deadline_ms)
        run.set_timer(_READ_AGAIN, self._clock.call_at(read_ms, self._on_unsure, run.workflow_id))

    def _stop(self, run: RunningWorkflow) -> None:
        run.is_halted = True
        self._touch(run.workflow_id)
        run.cancel_timers()
        for order in run.orders.values():
            self._dispatcher.abort(order, HALTED_REASON)
        run.orders.clear()

    def _quarantine_run(self, run: RunningWorkflow, code: str, *, is_known: bool) -> None:
        """Drive a workflow no further until it is resumed or ends.

        Args:
            code: a `QuarantineCode`.
            is_known: the ledger has stored it.
        """
        if self._running.get(run.workflow_id) is not run:
            return  # it has ended, or another run has taken its place
        self._leave(run.workflow_id)
        deadline_ms = run.machine.deadline_ms
        self.quarantine(run.workflow_id, code, deadline_ms, run.payer_did, run.watchers)
        if not is_known:
            self._quarantine.store(run.workflow_id, QuarantineCode(code))
        self._stop(run)

    def quarantine(
        self,
        workflow_id: str,
        code: str,
        deadline_ms: int,
        payer_did: str,
        watchers: Iterable[str] = (),
    ) -> None:
        """Keep a workflow that is not driven here, until it is resumed or ends."""
        log.error("workflow quarantined workflow=%s code=%s", workflow_id, code)
        self._quarantine.keep(workflow_id, code, deadline_ms, payer_did, set(watchers))

    def _quarantined_ended(self, workflow_id: str, watchers: set[str]) -> None:
        self._finished += 1
        self._on_finished(workflow_id, watchers)

    def _touch(self, workflow_id: str) -> None:
        """Note that rows of a workflow that were read before now are out of date."""
        for touched in self._reads:
            touched.add(workflow_id)

    # -- acting -----------------------------------------------------------------------------------

    def _perform(
        self,
        run: RunningWorkflow,
        actions: Iterable[Action],
        result: Mapping[str, Any] = _NOTHING,
    ) -> None:
        """Act; what the commit's result names is not sent: no stake is locked, or no trust left."""
        unlocked, revoked = result.get("unstaked", ()), result.get("revoked", ())
        for action in actions:
            match action:
                case DispatchNode(node=node) if node in revoked:
                    event = AgentRevoked(action.agent_did, self._clock.now_ms())
                    self.receive(run.workflow_id, event)
                case DispatchNode(node=node) if node in unlocked:
                    self.receive(run.workflow_id, unstaked(action, self._clock.now_ms()))
                case DispatchNode() | DispatchVerification():
                    self._dispatch(run, action)
                case ScheduleRetry(node, due_ms):
                    self._call_at(run, node, due_ms, RetryDue(node, due_ms))
                case CloseAuction(node, _, due_ms):
                    timer = self._clock.call_at(
                        due_ms, self._guard, run, self._end_bidding, run, action
                    )
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
        did, now_ms = action.agent_did, self._clock.now_ms()
        if self._directory.is_revoked(did, now_ms):
            self.receive(run.workflow_id, AgentRevoked(did, now_ms))
            return
        order = order_of(run, action, self._directory.entry(did), now_ms)
        if not isinstance(order, DispatchOrder):
            self.receive(run.workflow_id, order)
            return
        run.orders[(action.node, order.is_verification)] = order
        self._dispatcher.send(order, self.receive)

    def _end_bidding(self, run: RunningWorkflow, action: CloseAuction) -> None:
        """Ask the ledger, whose clock it is, for the bids; a little later if that says so."""

        def ended(outcome: Outcome) -> None:
            if self._running.get(run.workflow_id) is not run or run.is_halted:
                return
            now_ms = self._clock.now_ms()
            if outcome.error is None:
                self.receive(run.workflow_id, bids_of(action, outcome, now_ms))
            elif outcome.error is ErrorCode.OVERLOADED:
                self._perform(run, [replace(action, due_ms=now_ms + EARLY_MS)])
            elif not is_halting(outcome):  # then the round, or the workflow, has ended meanwhile
                log.error("bids refused workflow=%s outcome=%s", run.workflow_id, outcome)
                self._quarantine_run(run, QuarantineCode.STEP_REFUSED, is_known=False)

        self._submit(run, end_bidding(run.workflow_id, action), ended)

    # -- timers -----------------------------------------------------------------------------------

    def _arm_deadline(self, run: RunningWorkflow) -> None:
        deadline_ms = run.machine.deadline_ms
        self._call_at(run, _DEADLINE, deadline_ms, RuntimeExceeded(deadline_ms))

    def _call_at(self, run: RunningWorkflow, name: str, at_ms: int, event: Event) -> None:
        run.set_timer(name, self._clock.call_at(at_ms, self.receive, run.workflow_id, event))
