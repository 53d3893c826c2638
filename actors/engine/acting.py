"""The lower half of a runner: commits what a step has decided, and acts on it once it is committed.

Nothing is dispatched, waited for or told to anybody before its commit. A step that the ledger
refuses for a revoked agent's doing halts its workflow: this machine is ahead of the rows, so it is
driven no further, and one made of the rows takes its place. Any other refusal, and any exception
while a workflow is worked on, quarantines that workflow and nothing else: every callback that comes
in here, from the ledger, a timer or a dispatch, is guarded. Only a fence ends the process.
Spec: Execution order; design.md section 3. Decision 0090.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from actors.dispatch.orders import is_wanted, order_of, timed_out, unstaked
from actors.engine.ports import Clock, DirectoryPort, DispatchOrder, DispatchPort, LedgerPort
from actors.engine.quarantine import Quarantine
from actors.engine.running import RunningWorkflow
from actors.engine.steps import OwnerCommands, bids_of, end_bidding, is_halting, quarantine_code
from core.errors import ErrorCode, QuarantineCode
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
from core.workflow.events import AgentRevoked, Event, Record, RetryDue, RuntimeExceeded
from ledger.commands import Command, Outcome, OutcomeStatus

log = logging.getLogger("callboard.runner")

# After the ledger has said that a round is still open: clocks differ by little.
EARLY_MS: Final = 50
# What agents are told whose work is begun anew.
HALTED_REASON: Final = "error"
_NOTHING: Final[Mapping[str, Any]] = {}


class ActingRunner(ABC):
    """All workflows of one owner, as far as their steps are decided elsewhere.

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
        self._opening = 0  # dispatches of publishes that are being committed
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
            submit=self._submit_unfenced,
            reread=on_unsure,
            changed=self._touch,
            ended=self._quarantined_ended,
        )

    @abstractmethod
    def receive(
        self, workflow_id: str, event: Event, done: Callable[[bool], None] | None = None
    ) -> None:
        """Hear what happened; see `Runner`."""

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
        self._submit(run, command, lambda got: done(self._committed(run, actions, is_last, got)))

    def _submit(
        self, run: RunningWorkflow, command: Command, done: Callable[[Outcome], object]
    ) -> None:
        self._submitted += 1
        self._ledger.submit(command, partial(self._guard, run, done), run.payer_did)

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

    def _guard(self, run: RunningWorkflow, work: Callable[..., object], *arguments: Any) -> None:
        """Work on a workflow; an exception quarantines it and goes no further."""
        try:
            work(*arguments)
        except Exception:  # the edge of one workflow: the others have nothing to do with it
            self._raised += 1
            log.exception("workflow failed inside its owner workflow=%s", run.workflow_id)
            self._quarantine_run(run, QuarantineCode.STEP_FAILED, is_known=False)

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
        if unforeseen is not None:
            # The machine reserved before it acted, so this is our own mistake: do not guess.
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

    def _forget(self, run: RunningWorkflow) -> None:
        del self._running[run.workflow_id]
        self._touch(run.workflow_id)
        run.cancel_timers()
        for order in run.orders.values():
            self._dispatcher.ended(order)

    def _halt(self, run: RunningWorkflow) -> None:
        """Drive a workflow no further; it stays known until another run takes its place."""
        self._stop(run)
        self._on_unsure(run.workflow_id)

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
        del self._running[run.workflow_id]
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
        self._call_at(run, "\x00deadline", deadline_ms, RuntimeExceeded(deadline_ms))

    def _call_at(self, run: RunningWorkflow, name: str, at_ms: int, event: Event) -> None:
        run.set_timer(name, self._clock.call_at(at_ms, self.receive, run.workflow_id, event))
