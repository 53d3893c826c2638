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

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from actors.messages import CancelReply, CancelRequest, PublishReply, PublishRequest
from actors.ports import (
    Clock,
    DirectoryPort,
    DispatchOrder,
    DispatchPort,
    LedgerPort,
    Timer,
)
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.settings import Settings
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import (
    AbortDispatch,
    Action,
    AttemptFailed,
    CancelRequested,
    DispatchNode,
    DispatchVerification,
    Event,
    Failure,
    NodeChanged,
    Record,
    RetryDue,
    RuntimeExceeded,
    ScheduleRetry,
    SelectAgent,
    SelectVerifier,
    Verdict,
    VerificationFinished,
    WorkflowAccepted,
    WorkflowChanged,
)
from core.workflow.machine import WorkflowMachine
from core.workflow.transitions import WorkflowStatus
from ledger.commands import AdvanceWorkflow, Command, Outcome, OutcomeStatus, PublishWorkflow

Publish = Callable[[PublishReply | ServiceError], None]
Cancel = Callable[[CancelReply | ServiceError], None]


@dataclass(slots=True)
class RunningWorkflow:
    """One unfinished workflow in this process."""

    workflow_id: str
    task_id: str
    payer_did: str
    machine: WorkflowMachine
    orders: dict[tuple[str, bool], DispatchOrder] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)
    watchers: set[str] = field(default_factory=set)
    uncommitted: int = 0


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """Counters since the runner was made."""

    running: int
    published: int
    finished: int
    commands: int


class Runner:
    """All workflows of one owner.

    Args:
        owner: the owner's name.
        epoch: the owner's epoch; commands of an older one are refused by the ledger.
        settings: bounds and the fee.
        on_finished: told (workflow id, watchers) after the last commit of a workflow.
        on_lost: called, with the reason, when this runner cannot be trusted any more: another
            owner has taken over, or the ledger refused what the machine was sure of.
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
        self._running: dict[str, RunningWorkflow] = {}
        self._published = 0
        self._finished = 0
        self._commands = 0

    def __repr__(self) -> str:
        return f"<Runner {self._owner} epoch={self._epoch} running={len(self._running)}>"

    def statistics(self) -> RunnerStatistics:
        """Return the counters."""
        return RunnerStatistics(len(self._running), self._published, self._finished, self._commands)

    def runs(self, workflow_id: str) -> bool:
        """Whether the workflow is unfinished and driven here."""
        return workflow_id in self._running

    # -- requests ---------------------------------------------------------------------------------

    def publish(self, request: PublishRequest, done: Publish) -> None:
        """Store a workflow, hold its budget, open its first attempts; `done` after the commit."""
        if len(self._running) >= self._settings.workflows_per_actor_max:
            done(
                ServiceError(
                    ErrorCode.OVERLOADED,
                    f"{len(self._running)} workflows run here, limit"
                    f" {self._settings.workflows_per_actor_max}",
                    retry_after_s=1,
                )
            )
            return
        compiled = request.compiled
        reserved = self._reserve(compiled)
        estimate_micro = sum(reserved.values())
        if request.is_dry_run:
            done(self._foresee(request, estimate_micro))
            return
        budget_micro = compiled.budget_micro
        hold_micro = estimate_micro if budget_micro is None else budget_micro
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + compiled.max_runtime_ms
        if estimate_micro > hold_micro:
            refusal = WorkflowChanged(
                WorkflowStatus.FAILED,
                now_ms,
                error={
                    "code": "BUDGET_EXCEEDED",
                    "message": f"the estimate of {estimate_micro} micro-credits exceeds"
                    f" the budget of {hold_micro}",
                },
            )
            command = self._publish_command(
                request, now_ms, deadline_ms, estimate_micro, 0, (refusal,), has_hold=False
            )
            self._submit(command, partial(self._refused_by_budget, request, estimate_micro, done))
            return
        machine = WorkflowMachine(
            request.workflow_id,
            compiled,
            hold_micro=hold_micro,
            reserved=reserved,
            deadline_ms=deadline_ms,
        )
        run = RunningWorkflow(request.workflow_id, request.task_id, request.payer_did, machine)
        if request.watcher:
            run.watchers.add(request.watcher)
        records, actions = self._decide(run, WorkflowAccepted(now_ms))
        command = self._publish_command(
            request, now_ms, deadline_ms, estimate_micro, hold_micro, tuple(records), has_hold=True
        )
        reply = PublishReply(
            workflow_id=request.workflow_id,
            task_id=request.task_id,
            status=WorkflowStatus.PENDING,
            estimate_micro=estimate_micro,
            hold_micro=hold_micro,
        )
        self._running[request.workflow_id] = run
        self._submit(command, partial(self._publish_committed, run, actions, reply, done))

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
            done(
                ServiceError(
                    ErrorCode.NOT_CANCELLABLE,
                    f"workflow {request.workflow_id} has finished and cannot be cancelled",
                )
            )
            return
        now_ms = self._clock.now_ms()
        event = CancelRequested(request.reason, request.details, request.actor_did, now_ms)
        records, actions = self._decide(run, event)
        command = self._advance_command(
            run, f"cancel:{run.workflow_id}", records, actor_did=request.actor_did
        )
        affected = sum(isinstance(record, NodeChanged) for record in records)

        def committed(outcome: Outcome) -> None:
            if self._committed(run, actions, True, outcome):
                refunded_micro = int(outcome.result.get("releasedMicro", 0))
                done(
                    CancelReply(
                        workflow_id=run.workflow_id,
                        cancelled_ms=now_ms,
                        nodes_affected=affected,
                        refunded_micro=refunded_micro,
                    )
                )

        self._submit(command, committed)

    def adopt(self, run: RunningWorkflow, records: list[Record], actions: list[Action]) -> None:
        """Go on with a workflow that was restored from rows: perform what restoring decided."""
        self._running[run.workflow_id] = run
        self._arm_deadline(run)
        more, actions = self._select_all(run, deque(actions))
        key = f"restore:{run.workflow_id}:{self._owner}:{self._epoch}"
        self._commit_step(run, key, records + more, actions)

    # -- events -----------------------------------------------------------------------------------

    def receive(self, workflow_id: str, event: Event) -> None:
        """Hear what happened to an attempt; an event for a workflow that ended here is dropped."""
        run = self._running.get(workflow_id)
        if run is None:
            return
        records, actions = self._decide(run, event)
        if records or actions:
            self._commit_step(run, _key_of(workflow_id, event), records, actions)

    def drop_all(self) -> list[str]:
        """Forget every workflow without a word to the ledger: this owner was fenced off."""
        dropped = list(self._running)
        for run in self._running.values():
            self._cancel_timers(run)
        self._running.clear()
        return dropped

    # -- the step ---------------------------------------------------------------------------------

    def _decide(self, run: RunningWorkflow, event: Event) -> tuple[list[Record], list[Action]]:
        decision = run.machine.step(event)
        if not decision.actions:
            return decision.records, []
        more, actions = self._select_all(run, deque(decision.actions))
        return decision.records + more, actions

    def _select_all(
        self, run: RunningWorkflow, waiting: deque[Action]
    ) -> tuple[list[Record], list[Action]]:
        """Answer every selection the machine asks for, until only outward actions are left."""
        records: list[Record] = []
        actions: list[Action] = []
        while waiting:
            action = waiting.popleft()
            if isinstance(action, SelectAgent):
                decision = run.machine.step(self._directory.select(action, self._clock.now_ms()))
            elif isinstance(action, SelectVerifier):
                decision = run.machine.step(
                    self._directory.select_verifier(action, self._clock.now_ms())
                )
            else:
                actions.append(action)
                continue
            records += decision.records
            waiting.extend(decision.actions)
        return records, actions

    def _commit_step(
        self, run: RunningWorkflow, key: str, records: list[Record], actions: list[Action]
    ) -> None:
        if not records:
            self._perform(run, actions)
            return
        is_last = run.machine.is_finished
        command = self._advance_command(run, key, records, actor_did=self._owner)
        self._submit(command, partial(self._committed, run, actions, is_last))

    def _committed(
        self, run: RunningWorkflow, actions: list[Action], is_last: bool, outcome: Outcome
    ) -> bool:
        """Act after a commit; returns whether the command was applied, now or before."""
        if outcome.status is OutcomeStatus.STALE:
            self._on_lost(f"{self._owner} epoch {self._epoch} was fenced off")
            return False
        if outcome.error is not None:
            # The machine reserved before it acted, so this is our own mistake: stop, do not guess;
            # a new process restores what is stored.
            self._on_lost(f"{run.workflow_id}: {outcome.error} {outcome.detail}")
            return False
        self._perform(run, actions)
        if is_last and self._running.pop(run.workflow_id, None) is not None:
            self._cancel_timers(run)
            self._finished += 1
            self._on_finished(run.workflow_id, run.watchers)
        return True

    # -- acting -----------------------------------------------------------------------------------

    def _perform(self, run: RunningWorkflow, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case DispatchNode():
                    self._dispatch(run, action)
                case DispatchVerification():
                    self._dispatch_verification(run, action)
                case ScheduleRetry(node, due_ms):
                    run.timers[node] = self._clock.call_at(
                        due_ms, self.receive, run.workflow_id, RetryDue(node, due_ms)
                    )
                case AbortDispatch(node, _, _, reason):
                    for is_verification in (False, True):
                        order = run.orders.pop((node, is_verification), None)
                        if order is not None:
                            self._dispatcher.abort(order, reason)
                case _:
                    raise AssertionError(f"{action} was not answered before the commit")

    def _dispatch(self, run: RunningWorkflow, action: DispatchNode) -> None:
        node = run.machine.compiled.nodes[action.node]
        inputs = run.machine.inputs_for(action.node)
        entry = self._directory.entry(action.agent_did)
        if isinstance(inputs, Failure) or entry is None:
            failure = inputs if isinstance(inputs, Failure) else _gone(action.agent_did)
            now_ms = self._clock.now_ms()
            self.receive(
                run.workflow_id,
                AttemptFailed(action.node, action.attempt, failure, now_ms, now_ms),
            )
            return
        order = DispatchOrder(
            workflow_id=run.workflow_id,
            task_id=run.task_id,
            node=action.node,
            attempt=action.attempt,
            capability_id=node.capability_id,
            agent_did=entry.did,
            url=entry.url,
            cancel_url=entry.cancel_url,
            secret=entry.secret,
            inputs=inputs[0],
            parents=inputs[1],
            timeout_ms=action.timeout_ms,
        )
        run.orders[(action.node, False)] = order
        self._dispatcher.send(order, self.receive)

    def _dispatch_verification(self, run: RunningWorkflow, action: DispatchVerification) -> None:
        node = run.machine.compiled.nodes[action.node]
        entry = self._directory.entry(action.agent_did)
        inputs = run.machine.inputs_for(action.node)
        if isinstance(inputs, Failure) or entry is None:
            failure = inputs if isinstance(inputs, Failure) else _gone(action.agent_did)
            now_ms = self._clock.now_ms()
            self.receive(
                run.workflow_id,
                VerificationFinished(action.node, action.attempt, False, failure, now_ms, now_ms),
            )
            return
        order = DispatchOrder(
            workflow_id=run.workflow_id,
            task_id=run.task_id,
            node=action.node,
            attempt=action.attempt,
            capability_id=node.verifier_capability_id,
            agent_did=entry.did,
            url=entry.url,
            cancel_url=entry.cancel_url,
            secret=entry.secret,
            inputs={
                "capabilityId": node.capability_id,
                "inputs": inputs[0],
                "result": run.machine.unverified_result(action.node),
            },
            parents={},
            timeout_ms=action.timeout_ms,
            is_verification=True,
            verify_attempt=action.verify_attempt,
        )
        run.orders[(action.node, True)] = order
        self._dispatcher.send(order, self.receive)

    # -- publishing -------------------------------------------------------------------------------

    def _reserve(self, compiled: CompiledWorkflow) -> dict[str, int]:
        """Return what each node may cost, verifier included: the estimate, node by node."""
        reserved = {}
        for name, node in compiled.nodes.items():
            price = self._directory.price_micro_max(node.capability_id, node.target_agent_id)
            if node.requires_verification:
                price += self._directory.price_micro_max(node.verifier_capability_id, None)
            reserved[name] = price
        return reserved

    def _foresee(self, request: PublishRequest, estimate_micro: int) -> PublishReply:
        budget_micro = request.compiled.budget_micro
        return PublishReply(
            workflow_id=request.workflow_id,
            task_id=request.task_id,
            status=WorkflowStatus.PENDING,
            estimate_micro=estimate_micro,
            hold_micro=estimate_micro if budget_micro is None else budget_micro,
            candidates={
                name: [entry.did for entry in self._directory.candidates(node.capability_id)]
                for name, node in request.compiled.nodes.items()
            },
        )

    def _publish_committed(
        self,
        run: RunningWorkflow,
        actions: list[Action],
        reply: PublishReply,
        done: Publish,
        outcome: Outcome,
    ) -> None:
        if outcome.status is OutcomeStatus.APPLIED:
            self._published += 1
            done(reply)
            self._arm_deadline(run)
            self._committed(run, actions, run.machine.is_finished, outcome)
            return
        self._running.pop(run.workflow_id, None)
        done(_publish_answer(outcome))
        if outcome.status is OutcomeStatus.STALE:
            self._on_lost(f"{self._owner} epoch {self._epoch} was fenced off")

    def _refused_by_budget(
        self, request: PublishRequest, estimate_micro: int, done: Publish, outcome: Outcome
    ) -> None:
        if outcome.status is not OutcomeStatus.APPLIED:
            done(_publish_answer(outcome))
            return
        if request.watcher:
            self._on_finished(request.workflow_id, {request.watcher})
        done(
            PublishReply(
                workflow_id=request.workflow_id,
                task_id=request.task_id,
                status=WorkflowStatus.FAILED,
                estimate_micro=estimate_micro,
            )
        )

    def _publish_command(
        self,
        request: PublishRequest,
        now_ms: int,
        deadline_ms: int,
        estimate_micro: int,
        hold_micro: int,
        records: tuple[Record, ...],
        *,
        has_hold: bool,
    ) -> PublishWorkflow:
        return PublishWorkflow(
            key=request.command_key,
            request_hash=request.request_hash,
            actor_did=request.actor_did,
            owner=self._owner,
            owner_epoch=self._epoch,
            workflow_id=request.workflow_id,
            task_id=request.task_id,
            payer_did=request.payer_did,
            intent=request.compiled.intent,
            manifest_json=request.manifest_json,
            created_ms=now_ms,
            deadline_ms=deadline_ms,
            estimate_micro=estimate_micro,
            hold_micro=hold_micro,
            fee_bps=self._settings.fee_bps,
            has_hold=has_hold,
            records=records,
        )

    def _advance_command(
        self, run: RunningWorkflow, key: str, records: list[Record], *, actor_did: str
    ) -> AdvanceWorkflow:
        return AdvanceWorkflow(
            key=key,
            owner=self._owner,
            owner_epoch=self._epoch,
            workflow_id=run.workflow_id,
            actor_did=actor_did,
            records=tuple(records),
        )

    def _submit(self, command: Command, done: Callable[[Outcome], Any]) -> None:
        self._commands += 1
        self._ledger.submit(command, done)

    # -- timers -----------------------------------------------------------------------------------

    def _arm_deadline(self, run: RunningWorkflow) -> None:
        if run.machine.is_finished:
            return
        deadline_ms = run.machine.deadline_ms
        run.timers["\x00deadline"] = self._clock.call_at(
            deadline_ms, self.receive, run.workflow_id, RuntimeExceeded(deadline_ms)
        )

    @staticmethod
    def _cancel_timers(run: RunningWorkflow) -> None:
        for timer in run.timers.values():
            timer.cancel()
        run.timers.clear()


def _gone(agent_did: str) -> Failure:
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        f"{agent_did} was deregistered between its selection and its dispatch",
        Verdict.FINAL_FOR_AGENT,
        details="agent_not_found",
        target_agent_id=agent_did,
    )


def _publish_answer(outcome: Outcome) -> PublishReply | ServiceError:
    """Return what a publish that stored nothing new is answered with."""
    if outcome.error is not None:
        return ServiceError(outcome.error, outcome.detail)
    if outcome.status is OutcomeStatus.STALE:
        return ServiceError(
            ErrorCode.OVERLOADED, "the workflow's owner is being replaced", retry_after_s=1
        )
    return PublishReply(
        workflow_id=str(outcome.result["workflowId"]),
        task_id=str(outcome.result["taskId"]),
        status=str(outcome.result["status"]),
        is_repeat=True,
    )


def _key_of(workflow_id: str, event: Event) -> str:
    """Return the command key of an event's step: the same event always has the same key."""
    kind = type(event).__name__
    node = getattr(event, "node", "")
    attempt = getattr(event, "attempt", 0)
    # A node is retried, and a verifier tried, more than once within one attempt number.
    at_ms = event.at_ms if isinstance(event, (RetryDue, VerificationFinished)) else 0
    return f"{kind}:{workflow_id}:{node}:{attempt}:{at_ms}"
