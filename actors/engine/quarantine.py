"""Workflows that this owner drives no further, because a step of theirs failed unforeseen.

Each keeps its status and its money. Only three things happen to it: it is resumed, it is cancelled,
or its deadline passes; the last two end it by one step that is decided from its rows, as they are
then. Rows are read by another part of the owner: `reread` asks for them, `end` gets them.
contract.md section 6 (Quarantine). Decision 0090.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from actors.engine.door import Door
from actors.engine.ports import Clock, Timer
from actors.engine.recovery import bare_end
from actors.engine.running import RunningWorkflow
from actors.engine.steps import OwnerCommands, newest_rows, not_cancellable
from actors.transport.messages import CancelReply, CancelRequest, NotYet, ResumeReply, ResumeRequest
from core.errors import ErrorCode, QuarantineCode, ServiceError
from core.workflow.events import (
    CancelRequested,
    NodeChanged,
    Record,
    RuntimeExceeded,
    WorkflowChanged,
)
from core.workflow.transitions import WorkflowStatus
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.reads.stored import StoredWorkflow
from ledger.workflows.workflow_commands import QuarantineWorkflow, ResumeWorkflow

log = logging.getLogger("callboard.quarantine")

Cancel = Callable[[CancelReply | ServiceError], None]
Resume = Callable[[ResumeReply | ServiceError], None]

# An end that the ledger has refused, or that failed, is tried again as long as money is held.
END_RETRY_MS: Final = 60_000
_NO_END: Final = Outcome(
    OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, "its rows cannot be read"
)


@dataclass(slots=True)
class _Kept:
    """One quarantined workflow. `ending`: the event that is to end it, once its rows are read."""

    code: str
    deadline_ms: int
    watchers: set[str]
    payer_did: str
    timer: Timer | None = None
    ending: CancelRequested | RuntimeExceeded | None = None
    cancels: list[Cancel] = field(default_factory=list)


class Quarantine:
    """The quarantined workflows of one runner.

    Args:
        commands: makes the owner's commands.
        clock: time and timers.
        door: counts the workflows of each payer, quarantined ones too.
        submit: commits a command (its callback is not called when this owner was fenced off) in
            the order of a payer.
        reread: asks for the rows of a workflow, to be given to `end` or driven on.
        changed: told the id of a workflow of which rows that were read before are out of date.
        ended: told (workflow id, watchers) after the commit of a workflow's end.
    """

    def __init__(
        self,
        commands: OwnerCommands,
        clock: Clock,
        door: Door,
        *,
        submit: Callable[[Command, Callable[[Outcome], None], str], None],
        reread: Callable[[str], None],
        changed: Callable[[str], None],
        ended: Callable[[str, set[str]], None],
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._door = door
        self._submit = submit
        self._reread = reread
        self._changed = changed
        self._ended = ended
        self._kept: dict[str, _Kept] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<Quarantine kept={len(self._kept)}>"

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def keep(
        self,
        workflow_id: str,
        code: str,
        deadline_ms: int,
        payer_did: str,
        watchers: Collection[str] = (),
    ) -> None:
        """Know a workflow as quarantined; its deadline still ends it.

        Args:
            code: a `QuarantineCode`, as the ledger has it or will have it.
            deadline_ms: when `maxRuntimeMs` is over, Unix milliseconds.
            watchers: who is told of its end.
        """
        if workflow_id in self._kept:
            return
        kept = self._kept[workflow_id] = _Kept(code, deadline_ms, set(watchers), payer_did)
        self._door.enter(payer_did)
        self._changed(workflow_id)
        self._end_at(workflow_id, kept, deadline_ms)

    def store(self, workflow_id: str, code: QuarantineCode) -> None:
        """Have the ledger mark a workflow as quarantined that this owner has given up."""
        owner, epoch = self._commands.owner, self._commands.epoch
        command = QuarantineWorkflow(
            key=self._key("quarantine", workflow_id),
            owner=owner,
            owner_epoch=epoch,
            workflow_id=workflow_id,
            code=code,
        )

        def stored(outcome: Outcome) -> None:
            if outcome.error is ErrorCode.ESCROW_RELEASED:
                self.forget(workflow_id)
            elif outcome.error is not None:
                log.error("quarantine not stored workflow=%s outcome=%s", workflow_id, outcome)

        self._submit(command, stored, self._payer_of(workflow_id))

    def watch(self, workflow_id: str, watcher: str) -> bool:
        """Tell the watcher when the workflow has ended; False when it is not kept here."""
        kept = self._kept.get(workflow_id)
        if kept is not None:
            kept.watchers.add(watcher)
        return kept is not None

    def forget(self, workflow_id: str) -> set[str]:
        """Keep a workflow no longer, because it has ended or is driven on; returns its watchers.

        Cancellations that wait for it are answered: there is nothing to be cancelled any more.
        """
        kept = self._kept.pop(workflow_id, None)
        if kept is None:
            return set()
        self._door.leave(kept.payer_did)
        if kept.timer is not None:
            kept.timer.cancel()
        self._changed(workflow_id)
        for done in kept.cancels:
            done(not_cancellable(workflow_id))
        return kept.watchers

    def _payer_of(self, workflow_id: str) -> str:
        kept = self._kept.get(workflow_id)
        return "" if kept is None else kept.payer_did

    # -- resuming ---------------------------------------------------------------------------------

    def resume(self, request: ResumeRequest, done: Resume) -> None:
        """Let a workflow be driven on from its rows; `done` after the commit."""
        workflow_id = request.workflow_id
        command = ResumeWorkflow(
            key=self._key("resume", workflow_id),
            owner=self._commands.owner,
            owner_epoch=self._commands.epoch,
            workflow_id=workflow_id,
            actor_did=request.actor_did,
        )

        def resumed(outcome: Outcome) -> None:
            if outcome.error is not None:
                done(ServiceError(outcome.error, outcome.detail))
                return
            kept = self._kept.get(workflow_id)
            if kept is not None and kept.ending is None:
                self.forget(workflow_id)
            self._reread(workflow_id)
            done(ResumeReply(workflow_id=workflow_id, resumed_ms=self._clock.now_ms()))

        self._submit(command, resumed, self._payer_of(workflow_id))

    # -- ending -----------------------------------------------------------------------------------

    def cancel(self, request: CancelRequest, done: Cancel) -> None:
        """Cancel a workflow that is kept here; `done` after the commit of its end."""
        kept = self._kept[request.workflow_id]
        if kept.ending is not None:
            done(ending(request.workflow_id))
            return
        kept.cancels.append(done)
        kept.ending = CancelRequested(
            request.reason, request.details, request.actor_did, self._clock.now_ms()
        )
        self._reread(request.workflow_id)

    def is_ending(self, workflow_id: str) -> bool:
        """Say whether the rows of a workflow are waited for to end it."""
        kept = self._kept.get(workflow_id)
        return kept is not None and kept.ending is not None

    def end(
        self, stored: StoredWorkflow, restored: tuple[RunningWorkflow, list[Record]] | None
    ) -> None:
        """End a workflow for which `is_ending` holds, by its rows.

        Args:
            stored: the rows that were just read.
            restored: what they were restored to, and what that decided; None when they cannot be:
                then the workflow ends without its machine.
        """
        workflow_id = stored.workflow_id
        event = self._kept[workflow_id].ending
        assert event is not None, workflow_id
        try:
            records = None if restored is None else _last_step(*restored, event)
            if records is None:
                records = bare_end(stored, event)
        except Exception:  # rows of another version: its end is tried again, by another one perhaps
            log.exception("no end for workflow=%s", workflow_id)
            self._end_committed(workflow_id, event, [], _NO_END)
            return
        by_did = event.by_did if isinstance(event, CancelRequested) else self._commands.owner
        key = self._key("end", workflow_id)
        command = self._commands.advance(workflow_id, key, records, by_did, is_fresh=True)
        ended = partial(self._end_committed, workflow_id, event, records)
        self._submit(command, ended, stored.payer_did)

    def _end_committed(
        self,
        workflow_id: str,
        event: CancelRequested | RuntimeExceeded,
        records: list[Record],
        outcome: Outcome,
    ) -> None:
        kept = self._kept.get(workflow_id)
        if kept is None:
            return
        kept.ending = None
        cancels, kept.cancels = kept.cancels, []
        is_over = outcome.error in (None, ErrorCode.ESCROW_RELEASED)
        if is_over:
            self._ended(workflow_id, self.forget(workflow_id))
        else:
            log.error("end refused workflow=%s outcome=%s", workflow_id, outcome)
            self._end_at(workflow_id, kept, self._clock.now_ms() + END_RETRY_MS)
        is_cancelled = any(
            isinstance(record, WorkflowChanged) and record.status is WorkflowStatus.CANCELLED
            for record in records
        )
        for done in cancels:
            if not is_over:
                done(ServiceError(ErrorCode.INTERNAL_ERROR, "the ledger refused the cancellation"))
            elif outcome.error is not None or not is_cancelled:
                done(not_cancellable(workflow_id))
            else:
                done(
                    CancelReply(
                        workflow_id=workflow_id,
                        cancelled_ms=event.at_ms,
                        nodes_affected=sum(isinstance(r, NodeChanged) for r in records),
                        refunded_micro=int(outcome.result.get("releasedMicro", 0)),
                    )
                )

    def _end_at(self, workflow_id: str, kept: _Kept, at_ms: int) -> None:
        at_ms = max(at_ms, kept.deadline_ms)
        if kept.timer is not None:
            kept.timer.cancel()
        kept.timer = self._clock.call_at(at_ms, self._deadline_passed, workflow_id)

    def _deadline_passed(self, workflow_id: str) -> None:
        kept = self._kept.get(workflow_id)
        if kept is not None and kept.ending is None:
            kept.ending = RuntimeExceeded(self._clock.now_ms())
            self._reread(workflow_id)

    def _key(self, kind: str, workflow_id: str) -> str:
        """Return a key that no other command has: what is repeated here is decided anew."""
        self._count += 1
        owner, epoch = self._commands.owner, self._commands.epoch
        return f"{kind}:{workflow_id}:{owner}:{epoch}:{self._count}"


def ending(workflow_id: str) -> NotYet:
    """Return the refusal of a cancellation while the workflow is being ended."""
    message = f"workflow {workflow_id} is being ended"
    return NotYet(ErrorCode.OVERLOADED, message, retry_after_s=1)


def _last_step(
    run: RunningWorkflow, records: list[Record], event: CancelRequested | RuntimeExceeded
) -> list[Record] | None:
    """Return the records of the end; None when the restored machine cannot decide it."""
    if run.machine.is_finished:  # its deadline had passed as it was restored
        return newest_rows(records)
    try:
        return newest_rows([*records, *run.machine.step(event).records])
    except Exception:  # the edge of one workflow: whatever is wrong with it, its money is released
        log.exception("a machine cannot end workflow=%s", run.workflow_id)
        return None
