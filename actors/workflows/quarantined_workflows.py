"""Keeps an owner's quarantined workflows. They are not driven, because a step failed unexpectedly.

A quarantined workflow keeps its status and its escrow. It leaves the quarantine when the payer or
an administrator resumes or cancels it, or when its deadline passes. A cancelled or overdue workflow
is ended from its current rows, without its machine: `request_rows` requests the rows, and
`end_from_rows` receives the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.ports import Clock, Timer
from actors.transport.messages import CancelReply, CancelRequest, NotYet, ResumeReply, ResumeRequest
from actors.workflows.step_commands import (
    OwnerCommands,
    build_cancel_reply,
    not_cancellable_error,
)
from actors.workflows.workflow_restore import build_end_from_rows
from core.errors import ErrorCode, QuarantineCode, ServiceError
from core.market.sharing.fair_share import Held
from core.shards.shard import shard_of
from core.workflow.events import CancelRequested, Record, RuntimeExceeded
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.workflow_commands import QuarantineWorkflow, ResumeWorkflow
from ledger.reads.stored import StoredWorkflow

log = logging.getLogger("callboard.quarantine")

Cancel = Callable[[CancelReply | ServiceError | None], None]
Resume = Callable[[ResumeReply | ServiceError | None], None]

# Minimum pause before the end of a workflow is tried again after a refusal or a failure.
END_RETRY_MS: Final = 60_000


@dataclass(slots=True)
class _QuarantinedWorkflow:
    """One quarantined workflow.

    `cancel`: a cancellation that waits for the workflow's rows, with its callback. `is_due`: the
    deadline has passed. `is_ending`: the command that ends the workflow has no outcome yet.
    """

    deadline_ms: int
    watchers: set[str]
    payer_did: str
    timer: Timer
    cancel: tuple[CancelRequest, Cancel] | None = None
    is_due: bool = False
    is_ending: bool = False


class Quarantine:
    """The quarantined workflows of one runner.

    Args:
        commands: builds the owner's commands.
        clock: time and timers.
        unfinished: counts the workflows of each payer, including quarantined workflows.
        submit: commits a command in the queue of its payer. If another member holds the shard, the
            outcome is STALE, and the shard's workflows are removed before the callback is called.
        request_rows: requests a read of a workflow's rows, to end the workflow or to resume it.
        on_changed: receives the id of a workflow whose rows, if read earlier, are out of date.
        on_resumed: receives the id of a workflow after the commit of its resume, before its rows
            are requested. The process ends that were counted against the workflow are forgotten.
        on_ended: receives (workflow id, watchers, None) after the commit of a workflow's end.
    """

    def __init__(
        self,
        commands: OwnerCommands,
        clock: Clock,
        unfinished: Held,
        *,
        submit: Callable[[Command, Callable[[Outcome], None], str], None],
        request_rows: Callable[[str], None],
        on_changed: Callable[[str], None],
        on_resumed: Callable[[str], None],
        on_ended: Callable[[str, set[str], None], None],
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._unfinished = unfinished
        self._submit = submit
        self._request_rows = request_rows
        self._on_changed = on_changed
        self._on_resumed = on_resumed
        self._on_ended = on_ended
        self._workflows: dict[str, _QuarantinedWorkflow] = {}
        self._count = 0

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
        """Quarantine a workflow that is no longer driven; its deadline still ends it.

        Args:
            code: a `QuarantineCode`.
            deadline_ms: the end of `maxRuntimeMs`, Unix milliseconds.
            watchers: the gateways that wait for the workflow's end.
            is_known: whether the ledger has stored the code already.
        """
        log.error("workflow quarantined workflow=%s code=%s", workflow_id, code)
        if workflow_id not in self._workflows:
            timer = self._clock.call_at(deadline_ms, self._deadline_passed, workflow_id)
            self._workflows[workflow_id] = _QuarantinedWorkflow(
                deadline_ms, set(watchers), payer_did, timer
            )
            self._unfinished.add(payer_did)
            self._on_changed(workflow_id)
        if not is_known:
            self._store_code(workflow_id, QuarantineCode(code))

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
        """Remove a workflow that has ended, or that a runner drives again; return its watchers.

        The callback of a waiting cancellation gets None ("not driven here"). The gateway then reads
        the row, which says whether the workflow has ended.
        """
        quarantined = self._workflows.pop(workflow_id, None)
        if quarantined is None:
            return set()
        self._unfinished.remove(quarantined.payer_did)
        quarantined.timer.cancel()
        self._on_changed(workflow_id)
        if quarantined.cancel is not None:
            quarantined.cancel[1](None)
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
        """Resume a workflow from its rows; call `done` after the commit."""
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
            if quarantined is not None and quarantined.cancel is None:
                self.remove(workflow_id)
            self._on_resumed(workflow_id)
            self._request_rows(workflow_id)
            done(ResumeReply(workflow_id=workflow_id, resumed_ms=self._clock.now_ms()))

        self._submit(command, resumed, self._payer_of(workflow_id))

    # -- ending -----------------------------------------------------------------------------------

    def cancel(self, request: CancelRequest, done: Cancel) -> None:
        """Cancel a quarantined workflow; call `done` after the commit of its end."""
        quarantined = self._workflows[request.workflow_id]
        if quarantined.cancel is not None or quarantined.is_ending:
            done(ending_error(request.workflow_id))
            return
        quarantined.cancel = request, done
        self._request_rows(request.workflow_id)

    def end_from_rows(self, stored: StoredWorkflow) -> None:
        """End a quarantined workflow if it is being cancelled or its deadline has passed.

        Args:
            stored: the workflow's rows, which were just read.
        """
        workflow_id, now_ms = stored.id, self._clock.now_ms()
        quarantined = self._workflows[workflow_id]
        is_wanted = quarantined.cancel is not None or quarantined.is_due
        if quarantined.is_ending or not is_wanted:
            return
        authority, by_did = None, self._commands.held.member
        event: CancelRequested | RuntimeExceeded = RuntimeExceeded(now_ms)
        if quarantined.cancel is not None:
            request, _ = quarantined.cancel
            authority, by_did = request.authority, request.actor_did
            event = CancelRequested(request.reason, request.details, by_did, now_ms)
        try:
            records = build_end_from_rows(stored, event)
        except Exception:  # rows of a newer version: a retry after an upgrade may read them
            log.exception("workflow cannot be ended workflow=%s", workflow_id)
            self._retry_end(workflow_id, quarantined)
            return
        quarantined.is_ending = True
        command = self._commands.advance(
            workflow_id,
            self._key("end", workflow_id),
            records,
            by_did,
            is_fresh=True,
            authority=authority,
        )
        ended = partial(self._handle_end, workflow_id, now_ms, records)
        self._submit(command, ended, stored.payer_did)

    def _handle_end(
        self, workflow_id: str, at_ms: int, records: list[Record], outcome: Outcome
    ) -> None:
        quarantined = self._workflows.get(workflow_id)
        if quarantined is None:
            return
        if outcome.error not in (None, ErrorCode.ESCROW_RELEASED):
            log.error("end refused workflow=%s outcome=%s", workflow_id, outcome)
            self._retry_end(workflow_id, quarantined)
            return
        cancel, quarantined.cancel = quarantined.cancel, None
        self._on_ended(workflow_id, self.remove(workflow_id), None)
        if cancel is None:
            return
        _, done = cancel
        if outcome.error is not None:
            done(not_cancellable_error(workflow_id))
        else:
            done(build_cancel_reply(workflow_id, at_ms, records, outcome))

    def _retry_end(self, workflow_id: str, quarantined: _QuarantinedWorkflow) -> None:
        """Refuse a waiting cancellation; retry the end, but not before the workflow's deadline."""
        cancel, quarantined.cancel = quarantined.cancel, None
        quarantined.is_due = quarantined.is_ending = False
        quarantined.timer.cancel()
        at_ms = max(self._clock.now_ms() + END_RETRY_MS, quarantined.deadline_ms)
        quarantined.timer = self._clock.call_at(at_ms, self._deadline_passed, workflow_id)
        if cancel is not None:
            _, done = cancel
            done(ServiceError(ErrorCode.INTERNAL_ERROR, "the workflow could not be ended"))

    def _deadline_passed(self, workflow_id: str) -> None:
        # Stored as a flag: the wall clock may have been set back, so a comparison could be false.
        self._workflows[workflow_id].is_due = True
        self._request_rows(workflow_id)

    def _key(self, kind: str, workflow_id: str) -> str:
        """Return a new, unique key. Each retry needs one, because it is a new decision."""
        self._count += 1
        return f"{kind}:{workflow_id}:{self._commands.held.member}:{self._count}"


def ending_error(workflow_id: str) -> NotYet:
    """Return the error of a cancellation while the workflow is being ended."""
    message = f"workflow {workflow_id} is being ended"
    return NotYet(ErrorCode.OVERLOADED, message, retry_after_s=1)
