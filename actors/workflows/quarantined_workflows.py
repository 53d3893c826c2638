"""Quarantined workflows: a step failed unexpectedly, and the owner drives the workflow no further.

A quarantined workflow keeps its status and its escrow. It leaves the quarantine in three ways: an
administrator resumes it, a caller cancels it, or its deadline passes. The last two end it by one
step that is decided from its current rows: `request_rows` asks for them, `end` receives them.
contract.md section 6 (Quarantine). Decision 0090.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from actors.ports import Clock, Timer
from actors.transport.messages import CancelReply, CancelRequest, NotYet, ResumeReply, ResumeRequest
from actors.workflows.door import Door
from actors.workflows.running_workflow import RunningWorkflow
from actors.workflows.step_commands import (
    OwnerCommands,
    build_cancel_reply,
    newest_rows,
    not_cancellable_error,
)
from actors.workflows.workflow_restore import build_end_from_rows
from core.errors import ErrorCode, QuarantineCode, ServiceError
from core.shards.shard import shard_of
from core.workflow.events import (
    CancelRequested,
    Record,
    RuntimeExceeded,
    WorkflowChanged,
)
from core.workflow.transitions import WorkflowStatus
from ledger.authority import Authority
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.reads.stored import StoredWorkflow
from ledger.workflows.workflow_commands import QuarantineWorkflow, ResumeWorkflow

log = logging.getLogger("callboard.quarantine")

Cancel = Callable[[CancelReply | ServiceError | None], None]
Resume = Callable[[ResumeReply | ServiceError | None], None]

# The end of a workflow is retried, after a refusal or a failure, while its escrow is held.
END_RETRY_MS: Final = 60_000
_NO_END: Final = Outcome(
    OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, "its rows cannot be read"
)


@dataclass(slots=True)
class _QuarantinedWorkflow:
    """One quarantined workflow. `ending`: the event that ends it once its rows are read;
    `authority`: the right beyond a usual key's that permits that."""

    deadline_ms: int
    watchers: set[str]
    payer_did: str
    timer: Timer | None = None
    ending: CancelRequested | RuntimeExceeded | None = None
    authority: Authority | None = None
    cancels: list[Cancel] = field(default_factory=list)


class Quarantine:
    """The quarantined workflows of one runner.

    Args:
        commands: builds the owner's commands.
        clock: time and timers.
        door: counts the workflows of each payer, quarantined ones too.
        submit: commits a command in its payer's order; a fenced-off owner gets no callback.
        request_rows: requests a read of a workflow's rows, for `end` or for driving it on.
        on_changed: receives the id of a workflow whose rows, read before, are out of date.
        on_resumed: receives the id of a workflow whose resume is committed, before its rows are
            requested: what is known against its restore holds no longer.
        on_ended: receives (workflow id, watchers) after the commit of a workflow's end.
    """

    def __init__(
        self,
        commands: OwnerCommands,
        clock: Clock,
        door: Door,
        *,
        submit: Callable[[Command, Callable[[Outcome], None], str], None],
        request_rows: Callable[[str], None],
        on_changed: Callable[[str], None],
        on_resumed: Callable[[str], None],
        on_ended: Callable[[str, set[str]], None],
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._door = door
        self._submit = submit
        self._request_rows = request_rows
        self._on_changed = on_changed
        self._on_resumed = on_resumed
        self._on_ended = on_ended
        self._workflows: dict[str, _QuarantinedWorkflow] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<Quarantine workflows={len(self._workflows)}>"

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._workflows

    def __len__(self) -> int:
        return len(self._workflows)

    def add(
        self,
        workflow_id: str,
        code: str,
        deadline_ms: int,
        payer_did: str,
        watchers: Collection[str] = (),
        *,
        is_known: bool = False,
    ) -> None:
        """Quarantine a workflow that is not driven; its deadline still ends it.

        Args:
            code: a `QuarantineCode`.
            deadline_ms: the end of `maxRuntimeMs`, Unix milliseconds.
            watchers: the gateways that wait for its end.
            is_known: whether the ledger has stored the code.
        """
        log.error("workflow quarantined workflow=%s code=%s", workflow_id, code)
        self._add(workflow_id, deadline_ms, payer_did, watchers)
        if not is_known:
            self._store_code(workflow_id, QuarantineCode(code))

    def _add(
        self, workflow_id: str, deadline_ms: int, payer_did: str, watchers: Collection[str]
    ) -> None:
        if workflow_id in self._workflows:
            return
        quarantined = self._workflows[workflow_id] = _QuarantinedWorkflow(
            deadline_ms, set(watchers), payer_did
        )
        self._door.enter(payer_did)
        self._on_changed(workflow_id)
        self._end_at(workflow_id, quarantined, deadline_ms)

    def _store_code(self, workflow_id: str, code: QuarantineCode) -> None:
        command = QuarantineWorkflow(
            key=self._key("quarantine", workflow_id),
            member=self._commands.held.member,
            shard_epoch=self._commands.held.epoch_of(workflow_id),
            workflow_id=workflow_id,
            code=code,
        )

        def stored(outcome: Outcome) -> None:
            if outcome.error is ErrorCode.ESCROW_RELEASED:
                self.remove(workflow_id)
            elif outcome.error is not None:
                log.error("quarantine not stored workflow=%s outcome=%s", workflow_id, outcome)

        self._submit(command, stored, self._payer_of(workflow_id))

    def watch(self, workflow_id: str, watcher: str) -> bool:
        """Add a watcher of the workflow's end; False when the workflow is not quarantined here."""
        quarantined = self._workflows.get(workflow_id)
        if quarantined is not None:
            quarantined.watchers.add(watcher)
        return quarantined is not None

    def remove(self, workflow_id: str) -> set[str]:
        """Remove a workflow that has ended or is driven elsewhere or again; return its watchers.

        Waiting cancellations hear that it is not driven here: its row tells whether it has ended.
        """
        quarantined = self._workflows.pop(workflow_id, None)
        if quarantined is None:
            return set()
        self._door.leave(quarantined.payer_did)
        if quarantined.timer is not None:
            quarantined.timer.cancel()
        self._on_changed(workflow_id)
        for done in quarantined.cancels:
            done(None)
        return quarantined.watchers

    def drop(self, shards: Collection[int]) -> None:
        """Remove the workflows of these shards, which another member holds now."""
        for workflow_id in [name for name in self._workflows if shard_of(name) in shards]:
            self.remove(workflow_id)

    def _payer_of(self, workflow_id: str) -> str:
        quarantined = self._workflows.get(workflow_id)
        return "" if quarantined is None else quarantined.payer_did

    # -- resuming ---------------------------------------------------------------------------------

    def resume(self, request: ResumeRequest, done: Resume) -> None:
        """Resume a workflow from its rows; `done` after the commit."""
        workflow_id = request.workflow_id
        command = ResumeWorkflow(
            key=self._key("resume", workflow_id),
            member=self._commands.held.member,
            shard_epoch=self._commands.held.epoch_of(workflow_id),
            workflow_id=workflow_id,
            actor_did=request.actor_did,
            authority=request.authority,
        )

        def resumed(outcome: Outcome) -> None:
            if outcome.status is OutcomeStatus.STALE:
                done(None)
                return
            if outcome.error is not None:
                done(ServiceError(outcome.error, outcome.detail))
                return
            quarantined = self._workflows.get(workflow_id)
            if quarantined is not None and quarantined.ending is None:
                self.remove(workflow_id)
            self._on_resumed(workflow_id)
            self._request_rows(workflow_id)
            done(ResumeReply(workflow_id=workflow_id, resumed_ms=self._clock.now_ms()))

        self._submit(command, resumed, self._payer_of(workflow_id))

    # -- ending -----------------------------------------------------------------------------------

    def cancel(self, request: CancelRequest, done: Cancel) -> None:
        """Cancel a quarantined workflow; `done` after the commit of its end."""
        quarantined = self._workflows[request.workflow_id]
        if quarantined.ending is not None:
            done(ending_error(request.workflow_id))
            return
        quarantined.cancels.append(done)
        quarantined.ending = CancelRequested(
            request.reason, request.details, request.actor_did, self._clock.now_ms()
        )
        quarantined.authority = request.authority
        self._request_rows(request.workflow_id)

    def is_ending(self, workflow_id: str) -> bool:
        """Say whether a workflow ends as soon as its rows are read."""
        quarantined = self._workflows.get(workflow_id)
        return quarantined is not None and quarantined.ending is not None

    def end(
        self, stored: StoredWorkflow, restored: tuple[RunningWorkflow, list[Record]] | None
    ) -> None:
        """End a workflow for which `is_ending` holds, from its rows.

        Args:
            stored: the rows that were just read.
            restored: the workflow restored from them and the records of its restore; None when the
                restore failed: then the workflow ends without its machine.
        """
        workflow_id = stored.workflow_id
        quarantined = self._workflows[workflow_id]
        event = quarantined.ending
        assert event is not None, workflow_id
        try:
            records = None if restored is None else _last_step(*restored, event)
            if records is None:
                records = build_end_from_rows(stored, event)
        except Exception:  # rows of another version: a later retry may run code that reads them
            log.exception("no end for workflow=%s", workflow_id)
            self._end_committed(workflow_id, event, [], _NO_END)
            return
        by_did = event.by_did if isinstance(event, CancelRequested) else self._commands.held.member
        key = self._key("end", workflow_id)
        command = self._commands.advance(
            workflow_id,
            key,
            records,
            by_did,
            is_fresh=True,
            authority=quarantined.authority,
        )
        ended = partial(self._end_committed, workflow_id, event, records)
        self._submit(command, ended, stored.payer_did)

    def _end_committed(
        self,
        workflow_id: str,
        event: CancelRequested | RuntimeExceeded,
        records: list[Record],
        outcome: Outcome,
    ) -> None:
        quarantined = self._workflows.get(workflow_id)
        if quarantined is None:
            return
        quarantined.ending = quarantined.authority = None
        cancels, quarantined.cancels = quarantined.cancels, []
        is_over = outcome.error in (None, ErrorCode.ESCROW_RELEASED)
        if is_over:
            self._on_ended(workflow_id, self.remove(workflow_id))
        else:
            log.error("end refused workflow=%s outcome=%s", workflow_id, outcome)
            self._end_at(workflow_id, quarantined, self._clock.now_ms() + END_RETRY_MS)
        is_cancelled = any(
            isinstance(record, WorkflowChanged) and record.status is WorkflowStatus.CANCELLED
            for record in records
        )
        for done in cancels:
            if not is_over:
                done(ServiceError(ErrorCode.INTERNAL_ERROR, "the ledger refused the cancellation"))
            elif outcome.error is not None or not is_cancelled:
                done(not_cancellable_error(workflow_id))
            else:
                done(build_cancel_reply(workflow_id, event.at_ms, records, outcome))

    def _end_at(self, workflow_id: str, quarantined: _QuarantinedWorkflow, at_ms: int) -> None:
        at_ms = max(at_ms, quarantined.deadline_ms)
        if quarantined.timer is not None:
            quarantined.timer.cancel()
        quarantined.timer = self._clock.call_at(at_ms, self._deadline_passed, workflow_id)

    def _deadline_passed(self, workflow_id: str) -> None:
        quarantined = self._workflows.get(workflow_id)
        if quarantined is not None and quarantined.ending is None:
            quarantined.ending = RuntimeExceeded(self._clock.now_ms())
            self._request_rows(workflow_id)

    def _key(self, kind: str, workflow_id: str) -> str:
        """Return a key that no other command has, because a retry here is decided anew."""
        self._count += 1
        return f"{kind}:{workflow_id}:{self._commands.held.member}:{self._count}"


def ending_error(workflow_id: str) -> NotYet:
    """Return the error of a cancellation while the workflow is being ended."""
    message = f"workflow {workflow_id} is being ended"
    return NotYet(ErrorCode.OVERLOADED, message, retry_after_s=1)


def _last_step(
    run: RunningWorkflow, records: list[Record], event: CancelRequested | RuntimeExceeded
) -> list[Record] | None:
    """Return the records of the end; None when the restored machine cannot decide it."""
    if run.machine.is_finished:  # the restore found the deadline passed
        return newest_rows(records)
    try:
        return newest_rows([*records, *run.machine.step(event).records])
    except Exception:  # the edge of one workflow: its escrow is released even so
        log.exception("a machine cannot end workflow=%s", run.workflow_id)
        return None
