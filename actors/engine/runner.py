"""Drives workflows: receives events, steps state machines, commits the records, then acts.

The runner calls neither Ray, sockets nor the system clock, but the ports in `actors/ports.py`. The
seeded simulation therefore runs the same code. The runner never waits: every outcome arrives in a
callback.

The engine guarantees the order of each step:
  1. The machine decides: it returns records and actions.
  2. The runner selects agents, and the machine decides on each selection within the same step.
  3. The runner sends all records of the step to the ledger as one command.
  4. Only after the commit, the runner performs the actions: dispatches, timers, notices.
If the ledger refuses a step for a reason that may pass (`is_halting`), the workflow halts: its
machine is ahead of the rows, and a machine restored from the rows replaces it. An unexpected
refusal, or an exception in a callback, quarantines the workflow. If another member takes a shard,
the runner drops the workflows of this shard and continues to drive the others.
Reference: features.md (Nodes). Decisions state-machine-and-recovery and workflow-owners-and-shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from actors.directory.peer_directory import PeerDirectory
from actors.engine.agent_waits import AgentWaits
from actors.engine.outbox import Finished, workflow_end
from actors.ports import Clock, DispatchPort, LedgerPort
from actors.process.at_work import AtWork, Guard
from actors.shards.held_shards import HeldShards
from actors.transport.messages import CancelRequest, PublishReply, PublishRequest, ResumeRequest
from actors.workflows.dispatch_orders import (
    OrderSender,
    build_timeout_event,
    build_unstaked_event,
    rebuild_accepted_orders,
)
from actors.workflows.driven_shards import DrivenShards
from actors.workflows.mapping_checks import add_warnings, check_mappings
from actors.workflows.publish_admission import DISPATCHES_MAX, PublishAdmission
from actors.workflows.publish_estimate import (
    build_budget_refusal,
    build_dry_run_reply,
    build_outcome_reply,
    build_publish_reply,
    build_running_workflow,
    estimate_cost,
)
from actors.workflows.quarantined_workflows import Cancel, Quarantine, Resume
from actors.workflows.running_workflow import (
    Done,
    DrivenWorkflows,
    OrderEnds,
    RunnerStatistics,
    RunningWorkflow,
)
from actors.workflows.step_commands import (
    OwnerCommands,
    build_bids_heard,
    build_cancel_reply,
    is_halting,
    is_unanswered,
    newest_rows,
    not_cancellable_error,
    quarantine_code,
    rereading_error,
    resolve_selections,
    revoked_at_work,
    step_key,
)
from actors.workflows.workflow_restore import RowReads, restore_workflow
from core.errors import ErrorCode, QuarantineCode, ServiceError
from core.settings import Settings
from core.shards.shard import shard_of
from core.workflow.actions import (
    AbortDispatch,
    Action,
    AwaitAgent,
    AwaitResult,
    CloseAuction,
    DispatchNode,
    ScheduleRetry,
)
from core.workflow.events import (
    AgentRevoked,
    AttemptFailed,
    CancelRequested,
    Event,
    Record,
    RetryDue,
    RuntimeExceeded,
    WorkflowAccepted,
)
from core.workflow.rules.retry import delay_ms
from ledger.authority import Authority
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.reads.stored import StoredWorkflow

log = logging.getLogger("callboard.runner")

# Delay before the next request for bids when the ledger's clock has not reached the round's end.
EARLY_MS: Final = 50
# Maximum time that a cancellation waits for the ends of orders at peers.
ORDERS_END_MS: Final = 5_000
# The reason in the cancel notices when a run is stopped and its open attempts are lost.
HALTED_REASON: Final = "error"
# Names of the timers that belong to no node; a node id cannot contain a NUL character.
_DEADLINE, _READ_AGAIN = "\x00deadline", "\x00read again"
_NOTHING: Final[Mapping[str, Any]] = {}

Publish = Callable[[PublishReply | ServiceError], None]
# The DID of a caller, and the single right that permits its request, None if none is needed.
Caller = tuple[str, Authority | None]


class Runner:
    """Drives all workflows of one owner. A run (`RunningWorkflow`) is one workflow in memory.

    Args:
        held: the shards of this owner with their epochs, which its commands carry.
        settings: bounds and the fee.
        ledger: commits commands.
        on_finished: receives (workflow id, watchers, `WorkflowEnd` or None) after the last commit
            of a workflow.
        on_rows_needed: receives the id of a stored workflow that is not driven. Its rows must be
            read within `reads.open()` and passed to `restore_stored`.
        at_work: records the current workflow, and counts the process ends that a workflow caused.
        on_answered: receives the shard of a workflow when one of its dispatches has ended.
        dispatches_max: the maximum number of waiting dispatches, see `PublishAdmission`.
    """

    def __init__(
        self,
        held: HeldShards,
        settings: Settings,
        *,
        ledger: LedgerPort,
        directory: PeerDirectory,
        dispatcher: DispatchPort,
        clock: Clock,
        on_finished: Finished,
        on_rows_needed: Callable[[str], None],
        at_work: AtWork,
        on_answered: Callable[[int], None] = lambda _: None,
        dispatches_max: int = DISPATCHES_MAX,
    ) -> None:
        self._held = held
        self._member = held.member
        self._settings = settings
        self._ledger = ledger
        self._directory = directory
        self._dispatcher = dispatcher
        self._clock = clock
        self._on_finished = on_finished
        self._on_rows_needed = on_rows_needed
        self._at_work = at_work
        self._on_answered = on_answered
        self._admission = PublishAdmission(
            settings, dispatcher, ledger, dispatches_max=dispatches_max
        )
        self._running = DrivenWorkflows(self._admission.unfinished)
        self._submitted = 0
        self._commands = OwnerCommands(held, settings)
        self._guard: Guard[RunningWorkflow] = Guard(at_work, self._quarantine_raised)
        self._orders = OrderSender(
            directory, dispatcher, clock, receive=self.receive, guard=self._guard
        )
        self._waits = AgentWaits(directory, clock, self.receive)
        self.reads = RowReads()
        self._quarantine = Quarantine(
            self._commands,
            clock,
            self._admission.unfinished,
            submit=self._submit_alone,
            request_rows=on_rows_needed,
            on_changed=self.reads.mark_changed,
            on_resumed=self._at_work.forget,
            on_ended=on_finished,
        )
        self.shards = DrivenShards(
            self._running, self._quarantine, dispatcher=dispatcher, stop=self._stop
        )

    def statistics(self) -> RunnerStatistics:
        """Return the runner's counters."""
        return RunnerStatistics(
            len(self._running), self._submitted, len(self._quarantine), self._guard.raised
        )

    def is_driving(self, workflow_id: str) -> bool:
        """Say whether this runner drives the workflow; False while the workflow is halted."""
        return self.find_run(workflow_id) is not None

    def find_run(self, workflow_id: str) -> RunningWorkflow | None:
        """Return the run of a driven workflow, for reading only; None if halted or unknown."""
        run = self._running.get(workflow_id)
        return None if run is None or run.is_halted else run

    # -- requests ---------------------------------------------------------------------------------

    def publish(self, request: PublishRequest, done: Publish) -> None:
        """Store a workflow, hold its budget and open its first attempts.

        Args:
            done: receives the reply after the commit, or at once for a dry run and for a refusal.

        Raises: `ServiceError` if the cost cannot be estimated or a mapping cannot match.
        """
        refused = self._admission.refusal(request.payer_did)
        if refused is not None:
            done(refused)
            return
        now_ms, bps = self._clock.now_ms(), self._settings.auction_stake_bps
        check_mappings(request.compiled, self._directory)
        done = add_warnings(request, self._directory, done)
        estimate = estimate_cost(
            request.compiled,
            self._directory,
            auction_stake_bps=bps,
            at_ms=now_ms,
            payer_did=request.payer_did,
        )
        if request.is_dry_run:
            done(build_dry_run_reply(request, estimate, self._directory, now_ms))
            return
        version = self._settings.deployment_keys.version
        run = build_running_workflow(request, estimate, now_ms, key_version=version)
        actions: list[Action] = []
        if estimate.exceeds_budget:
            records: list[Record] = [build_budget_refusal(estimate, now_ms)]
        else:
            records, actions = self._decide(run, WorkflowAccepted(now_ms))
        capability_ids = (node.capability_id for node in request.compiled.nodes.values())
        rates = self._directory.find_rates(request.payer_did, capability_ids)
        command = self._commands.publish(request, estimate, records, now_ms, rates)
        if request.workflow_id in self._running:
            # The caller repeats a request whose reply was lost. The commands have the same key, so
            # the ledger returns the stored outcome of the first command, which gives the reply.
            self._submit(run, command, lambda outcome: done(build_outcome_reply(outcome)))
            return
        self._running.add(run)
        run.is_stored = False
        self._admission.opening.add(run.payer_did, len(actions))
        is_last = estimate.exceeds_budget or run.machine.is_finished
        reply = build_publish_reply(request, estimate)
        handle = partial(self._handle_publish_commit, run, actions, is_last, reply, done)
        self._submit(run, command, handle)

    def watch(self, workflow_id: str, watcher: str) -> bool:
        """Add a watcher of the workflow's end; return False if the workflow is unknown here."""
        run = self._running.get(workflow_id)
        if run is None:
            return self._quarantine.watch(workflow_id, watcher)
        run.watchers.add(watcher)
        return True

    def cancel(
        self, request: CancelRequest, done: Cancel, *, has_ended_orders: bool = False
    ) -> None:
        """Cancel a workflow (spec: Verification and budget 4).

        Args:
            done: receives the reply after the commit, or None if the workflow is unknown here.
            has_ended_orders: the workflow's orders at peers have ended, or `ORDERS_END_MS` is over.
        """
        run = self._running.get(request.workflow_id)
        again = partial(done, rereading_error(request.workflow_id))
        if request.workflow_id in self._quarantine:
            self._quarantine.cancel(request, done)
        elif run is None:
            done(None)
        elif run.is_halted or not run.is_stored:
            again()  # the run of a repeated publish may be behind the rows
        elif run.machine.is_finished:
            done(not_cancellable_error(request.workflow_id))
        elif not has_ended_orders and (run.order_ends or run.orders_at_peers()):
            self._end_orders(run, partial(self.cancel, request, done, has_ended_orders=True))
        else:
            self._guard(run, self._cancel, run, request, done, otherwise=again)

    def _end_orders(self, run: RunningWorkflow, then: Callable[[], None]) -> None:
        """Cancel the orders at peers, and call `then` when they have ended or after a timeout.

        A peer may have charged an order already, and the payer must pay for the node of this order.
        If the payer could cancel just before the result arrives, the clearing account would bear
        the charge. Until `then` is called, the runner sends no dispatch of the workflow.
        """
        if run.order_ends is None:
            orders = run.orders_at_peers()
            run.order_ends = OrderEnds({order.node for order in orders})
            for order in orders:
                self._dispatcher.give_up(order)
            run.unsent.clear()
            due_ms = self._clock.now_ms() + ORDERS_END_MS
            self._clock.call_at(due_ms, run.end_orders, run.order_ends)
        run.order_ends.then.append(then)

    def _cancel(self, run: RunningWorkflow, request: CancelRequest, done: Cancel) -> None:
        now_ms = self._clock.now_ms()
        event = CancelRequested(request.reason, request.details, request.actor_did, now_ms)
        records, actions = self._decide(run, event)
        key = f"cancel:{run.workflow_id}"
        command = self._commands.advance(
            run.workflow_id, key, records, request.actor_did, authority=request.authority
        )

        def committed(outcome: Outcome) -> None:
            if outcome.error is ErrorCode.ESCROW_RELEASED:
                done(not_cancellable_error(run.workflow_id))
            elif is_unanswered(outcome):
                done(rereading_error(run.workflow_id))
            if self._handle_commit(run, actions, True, outcome):
                done(build_cancel_reply(run.workflow_id, now_ms, records, outcome))

        again = partial(done, rereading_error(run.workflow_id))
        self._submit(run, command, committed, otherwise=again)

    def resume(self, request: ResumeRequest, done: Resume) -> None:
        """Resume a quarantined workflow; `done` gets the reply, or None for an unknown workflow."""
        if request.workflow_id in self._running or request.workflow_id in self._quarantine:
            self._quarantine.resume(request, done)
        else:
            done(None)

    def valid_keys(self, agent_did: str) -> tuple[str, ...]:
        """Return an agent's currently valid public keys; empty for an agent unknown here."""
        return self._directory.valid_keys(agent_did, self._clock.now_ms())

    def is_quarantined(self, workflow_id: str) -> bool:
        """Say whether a workflow is quarantined here."""
        return workflow_id in self._quarantine

    # -- rows -------------------------------------------------------------------------------------

    def restore_stored(self, stored: StoredWorkflow, changed_ids: set[str]) -> bool:
        """Drive or quarantine a stored workflow, or end a quarantined workflow from its rows.

        Args:
            stored: the rows of the workflow.
            changed_ids: the set from the `reads.open()` that encloses the read of these rows. It
                has the workflows that changed since the read began. Their rows are not used.

        Returns: whether the workflow is now driven from these rows.
        """
        workflow_id = stored.id
        if not self._held.is_held(workflow_id):
            return False  # its shard was lost while the rows were read
        if workflow_id in self._quarantine:
            self._quarantine.end_from_rows(stored)
            return False
        if self.is_driving(workflow_id) or workflow_id in changed_ids:
            return False
        known, deadline_ms = stored.row["quarantine_code"], stored.row["deadline_ms"]
        if known is not None or self._at_work.is_poison(workflow_id):
            code, payer_did = known or QuarantineCode.STEP_FAILED, stored.payer_did
            is_known = known is not None
            self._quarantine.add(workflow_id, code, deadline_ms, payer_did, is_known=is_known)
            return False
        before = self._at_work.begin(workflow_id)
        try:
            restored = restore_workflow(stored, self._settings, self._clock.now_ms())
        except Exception:  # damaged rows, or rows of another version: quarantine this one only
            self._guard.raised += 1
            log.exception("workflow cannot be restored workflow=%s", workflow_id)
            lost = QuarantineCode.NOT_RESTORABLE
            self._quarantine.add(workflow_id, lost, deadline_ms, stored.payer_did)
            return False
        else:
            self.adopt(*restored)
            return True
        finally:
            self._at_work.end(before)

    def handle_missing_rows(self, workflow_id: str) -> None:
        """Remove a workflow from the quarantine if a read found no unfinished rows of it."""
        if not self.is_driving(workflow_id):
            self._quarantine.remove(workflow_id)

    def adopt(self, run: RunningWorkflow, records: list[Record], actions: list[Action]) -> None:
        """Drive a restored workflow: commit the records of its restore and perform the actions.

        The runner commits even without records, because the workflow may have ended after its rows
        were read. Then the ledger refuses the commit.
        """
        self._guard(run, self._adopt, run, records, actions)

    def _adopt(self, run: RunningWorkflow, records: list[Record], actions: list[Action]) -> None:
        former = self._running.get(run.workflow_id)
        if former is not None:
            former.cancel_timers()
            run.watchers |= former.watchers
            run.halts = former.halts
        self._running.add(run)
        self._arm_deadline(run)
        for order in rebuild_accepted_orders(run, self._directory.entry, self._clock.now_ms()):
            run.orders[order.node, False] = order
            self._dispatcher.hold(order)
        records, actions = resolve_selections(run, self._directory, self._clock, records, actions)
        # An agent may have been revoked while no owner drove this workflow.
        for event in revoked_at_work(run, self._directory, self._clock):
            more_records, more_actions = self._decide(run, event)
            records = newest_rows([*records, *more_records])
            actions = [*actions, *more_actions]
        # Each restore has a key of its own, because a later read may find other rows.
        key = f"restore:{run.workflow_id}:{self._member}:{self._submitted}"
        self._submit_step(run, key, records, actions, is_fresh=True)

    # -- events -----------------------------------------------------------------------------------

    def receive(
        self, workflow_id: str, event: Event, done: Done | None = None, by: Caller | None = None
    ) -> None:
        """Receive an event of a workflow; ignore it if the workflow is not driven here.

        Args:
            by: the caller that requested the step; None for a step of the owner itself.
            done: receives, after the commit of an event with records, whether the command was
                applied. It receives False if an exception quarantines the workflow.
        """
        run = self.find_run(workflow_id)
        if run is None or not run.is_stored:
            return
        otherwise = None if done is None else partial(done, False)
        self._guard(run, self._receive, run, event, done, by, otherwise=otherwise)

    def _receive(
        self, run: RunningWorkflow, event: Event, done: Done | None, by: Caller | None
    ) -> None:
        order = run.close_order(event)
        if order is not None:
            self._orders.release(order, event)
            self._on_answered(shard_of(run.workflow_id))
        ends = run.order_ends
        if ends is not None and order is not None and order.peer is not None:
            ends.nodes.discard(order.node)
            if not ends.nodes:
                self._clock.call_at(event.at_ms, run.end_orders, ends)
            if isinstance(event, AttemptFailed) and not event.charged_micro:
                return  # no failure event: it would dispatch the node to another candidate
        records, actions = self._decide(run, event)
        if records:
            key = step_key(run.workflow_id, event)
            self._submit_step(run, key, records, actions, done, by=by)
        elif actions:
            self._perform(run, actions)

    def revoked_work_steps(self) -> Iterator[None]:
        """End the open work of revoked agents, one workflow per step of the generator."""
        # A workflow whose publish is not committed is skipped: each dispatch is checked when sent.
        for run in self._running.stored():
            yield
            if self.find_run(run.workflow_id) is not run:
                continue
            for event in revoked_at_work(run, self._directory, self._clock):
                self.receive(run.workflow_id, event)

    def commit_empty_step(
        self, workflow_id: str, key: str, done: Callable[[Outcome], None]
    ) -> None:
        """Commit a step without records; the outcome shows whether the workflow has ended."""
        run = self._running.get(workflow_id)
        payer_did = "" if run is None else run.payer_did
        command = self._commands.advance(workflow_id, key, [], self._member)
        self._submit_alone(command, done, payer_did)

    # -- the step ---------------------------------------------------------------------------------

    def _decide(self, run: RunningWorkflow, event: Event) -> tuple[list[Record], list[Action]]:
        """Step the machine with an event; select agents where the machine requests a selection."""
        decision = run.machine.step(event)
        records, pending = decision.records, decision.actions
        return resolve_selections(run, self._directory, self._clock, records, pending)

    # -- commands ---------------------------------------------------------------------------------

    def _handle_publish_commit(
        self,
        run: RunningWorkflow,
        actions: list[Action],
        is_last: bool,
        reply: PublishReply,
        done: Publish,
        outcome: Outcome,
    ) -> None:
        self._admission.opening.remove(run.payer_did, len(actions))
        is_driven = self._running.has(run)
        if outcome.status is not OutcomeStatus.APPLIED:
            if is_driven:
                self._running.remove(run.workflow_id)
            done(build_outcome_reply(outcome))
            if outcome.error is ErrorCode.INTERNAL_ERROR:
                # After an unexpected refusal, only the rows show whether the workflow is stored.
                self._on_rows_needed(run.workflow_id)
            elif outcome.result.get("workflowId") == run.workflow_id:
                # A previous request stored the workflow: only the rows have its state.
                self._on_rows_needed(run.workflow_id)
            return
        run.is_stored = True
        done(reply)
        if is_driven and not is_last:
            self._arm_deadline(run)
        self._handle_commit(run, actions, is_last, outcome)

    # -- committing -------------------------------------------------------------------------------

    def _submit_step(
        self,
        run: RunningWorkflow,
        key: str,
        records: list[Record],
        actions: list[Action],
        done: Done | None = None,
        *,
        is_fresh: bool = False,
        by: Caller | None = None,
    ) -> None:
        is_last = run.machine.is_finished
        actor_did, authority = by or (self._member, None)
        command = self._commands.advance(
            run.workflow_id, key, records, actor_did, is_fresh=is_fresh, authority=authority
        )

        def committed(outcome: Outcome) -> None:
            is_applied = self._handle_commit(run, actions, is_last, outcome)
            if done is not None:
                done(is_applied)

        unapplied = None if done is None else partial(done, False)
        self._submit(run, command, committed, otherwise=unapplied)

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

    def _submit_alone(self, command: Command, done: Callable[[Outcome], None], payer: str) -> None:
        """Commit a command of no run; an exception of `done` quarantines no workflow."""
        self._submitted += 1
        self._ledger.submit(command, done, payer)

    def _handle_commit(
        self, run: RunningWorkflow, actions: list[Action], is_last: bool, outcome: Outcome
    ) -> bool:
        """Perform the actions after a commit, or stop driving the workflow after a refusal.

        Returns: whether the ledger applied the command, by this submission or an earlier one.
        """
        if outcome.status is OutcomeStatus.STALE:
            return False  # another member holds the shard, so the shard and this run were dropped
        is_driven = self._running.has(run)
        if outcome.error is ErrorCode.ESCROW_RELEASED:
            # The run was restored from rows that were read before the workflow ended.
            if is_driven:
                self._forget(run)
            return False
        if is_halting(outcome):
            if is_driven and not run.is_halted:
                self._halt(run)
            return False
        unforeseen = quarantine_code(outcome)
        if unforeseen is not None:  # a defect: the machine reserves credits before it spends them
            log.error("step refused workflow=%s outcome=%s", run.workflow_id, outcome)
            self._quarantine_run(run, unforeseen[0], is_known=unforeseen[1])
            return False
        if not is_driven:
            return True
        self._perform(run, actions, outcome.result)
        if is_last:
            self._forget(run)
            self._on_finished(run.workflow_id, run.watchers, workflow_end(run, outcome))
        return True

    def _forget(self, run: RunningWorkflow) -> None:
        self._running.remove(run.workflow_id)
        self.reads.mark_changed(run.workflow_id)
        run.cancel_timers()
        for order in run.orders.values():
            self._dispatcher.release(order)

    def _halt(self, run: RunningWorkflow) -> None:
        """Stop driving a workflow until a run restored from its rows replaces this one.

        After the first halt the rows are read at once. Each further halt delays the read like a
        retry, but at most until the workflow's deadline. The ledger's clock may be behind.
        """
        self._stop(run)
        run.halts += 1
        delay = delay_ms(run.halts)
        if delay == 0:
            self._on_rows_needed(run.workflow_id)
            return
        read_ms = min(self._clock.now_ms() + delay, run.machine.deadline_ms)
        timer = self._clock.call_at(read_ms, self._on_rows_needed, run.workflow_id)
        run.set_timer(_READ_AGAIN, timer)

    def _stop(self, run: RunningWorkflow) -> None:
        run.is_halted = True
        self.reads.mark_changed(run.workflow_id)
        run.cancel_timers()
        for order in run.orders.values():
            self._dispatcher.abort(order, HALTED_REASON)
        run.orders.clear()

    def _quarantine_raised(self, run: RunningWorkflow) -> None:
        self._quarantine_run(run, QuarantineCode.STEP_FAILED, is_known=False)

    def _quarantine_run(self, run: RunningWorkflow, code: str, *, is_known: bool) -> None:
        """Quarantine a workflow that is driven here.

        Args:
            code: a `QuarantineCode`.
            is_known: whether the ledger has stored the code already.
        """
        if not self._running.has(run):
            return  # the workflow has ended, or another run has replaced this one
        self._running.remove(run.workflow_id)
        ends_ms, payer = run.machine.deadline_ms, run.payer_did
        self._quarantine.add(run.workflow_id, code, ends_ms, payer, run.watchers, is_known=is_known)
        self._stop(run)

    # -- acting -----------------------------------------------------------------------------------

    def _perform(
        self, run: RunningWorkflow, actions: Sequence[Action], result: Mapping[str, Any] = _NOTHING
    ) -> None:
        """Perform actions, except the dispatches that the ledger did not permit.

        Args:
            result: the commit's result; names nodes whose agent is revoked or has no locked stake.
        """
        unlocked, revoked = result.get("unstaked", ()), result.get("revoked", ())
        wanted: list[DispatchNode] = []
        for action in actions:
            match action:
                case DispatchNode(node=node, verify_attempt=0):
                    if node in revoked:
                        event = AgentRevoked(action.agent_did, self._clock.now_ms())
                        self.receive(run.workflow_id, event)
                    elif node in unlocked:
                        unstaked = build_unstaked_event(action, self._clock.now_ms())
                        self.receive(run.workflow_id, unstaked)
                    else:
                        wanted.append(action)
                case DispatchNode():
                    wanted.append(action)
                case ScheduleRetry(node, due_ms):
                    self._call_at(run, node, due_ms, RetryDue(node, due_ms))
                case AwaitAgent(node):
                    run.set_timer(node, self._waits.add(run.workflow_id, action))
                case CloseAuction(node, _, due_ms):
                    work = partial(self._end_bidding, run, action)
                    run.set_timer(node, self._clock.call_at(due_ms, self._guard, run, work))
                case AwaitResult(node, _, _, _, due_ms):
                    self._call_at(run, node, due_ms, build_timeout_event(action))
                case AbortDispatch(node, _, _, reason):
                    for order in run.pop_orders(node):
                        self._dispatcher.abort(order, reason)
                case _:
                    raise AssertionError(f"{action} was not resolved before the commit")
        if wanted and run.order_ends is None:
            self._orders.send(run, wanted)

    def _end_bidding(self, run: RunningWorkflow, action: CloseAuction) -> None:
        """Request a round's bids from the ledger; repeat while the ledger's clock is behind."""

        def handle_bids(outcome: Outcome) -> None:
            if not self._running.has(run) or run.is_halted:
                return
            now_ms = self._clock.now_ms()
            if outcome.error is None:
                self.receive(run.workflow_id, build_bids_heard(action, outcome, now_ms))
            elif outcome.error is ErrorCode.OVERLOADED:
                self._perform(run, [replace(action, due_ms=now_ms + EARLY_MS)])
            elif not is_halting(outcome):  # a halting outcome: the round or the workflow has ended
                log.error("bids refused workflow=%s outcome=%s", run.workflow_id, outcome)
                self._quarantine_run(run, QuarantineCode.STEP_REFUSED, is_known=False)

        self._submit(run, self._commands.end_bidding(run.workflow_id, action), handle_bids)

    # -- timers -----------------------------------------------------------------------------------

    def _arm_deadline(self, run: RunningWorkflow) -> None:
        deadline_ms = run.machine.deadline_ms
        self._call_at(run, _DEADLINE, deadline_ms, RuntimeExceeded(deadline_ms))

    def _call_at(self, run: RunningWorkflow, name: str, at_ms: int, event: Event) -> None:
        run.set_timer(name, self._clock.call_at(at_ms, self.receive, run.workflow_id, event))
