"""Starts runs of triggers, and records the runs that are refused, skipped or missed.

Each cause of a run results in one command, whether the run starts or not. The command's key names
the cause. If the outcome is unknown, the cause stays due and is decided again from the stored rows.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from actors.process.loop_clock import wall_ms
from actors.routing.live_owners import LiveOwners
from actors.routing.publishes import publish_all
from actors.routing.trigger_runs import run_request
from actors.transport.ledger_route import LedgerRoute
from actors.transport.messages import PackedPublish, PublishReply
from actors.transport.names import TIMEKEEPER
from actors.transport.wire import packed
from core.errors import ErrorCode, ServiceError
from core.ids import uuid7
from core.settings import Settings
from core.workflow.dag import WorkflowLimits
from ledger.features.workflow_commands import NoteRun, TriggerRun, run_command_key
from ledger.reads.stored import RowDict

log = logging.getLogger("callboard.triggers")

COMMIT_TIMEOUT_S: Final = 10.0
# Codes after which a cause stays due: nothing was stored, the outcome is unknown, or another
# process decided it.
LEFT_DUE: Final = (
    ErrorCode.OVERLOADED,
    ErrorCode.LEDGER_UNAVAILABLE,
    ErrorCode.CONFLICT,
    ErrorCode.KEY_REUSED,
)


class Cause(NamedTuple):
    """A cause of a run, and its result: the publish of the run, or a note why no run starts."""

    run: TriggerRun
    act: PackedPublish | NoteRun


def note_of(
    run: TriggerRun,
    status: Literal["failed", "skipped"],
    reason: str,
    *,
    detail: str = "",
    missed_until_ms: int | None = None,
) -> NoteRun:
    """Return the command that records why a cause started no run.

    Args:
        missed_until_ms: the last missed due time, Unix milliseconds; None if none was missed.
    """
    return NoteRun(
        key=run_command_key(run.trigger_id, run.key),
        actor_did=TIMEKEEPER,
        run=run,
        status=status,
        reason=reason,
        detail=detail,
        missed_until_ms=missed_until_ms,
    )


def failed_note(run: TriggerRun, error: ServiceError) -> NoteRun:
    """Return the command that records a refused run.

    If a quota was exceeded, the run counts as skipped, because the trigger itself is not faulty.
    """
    is_spent = error.code is ErrorCode.QUOTA_EXCEEDED
    return note_of(run, "skipped" if is_spent else "failed", error.code, detail=error.detail)


def publish_of(
    row: RowDict,
    run: TriggerRun,
    cause: Mapping[str, Any],
    *,
    limits: WorkflowLimits,
    ids: tuple[str, str],
) -> Cause:
    """Return the publish of a run, or the record of its failure.

    The template may be refused now, because the deployment's limits were lowered since.

    Args:
        ids: the ids of the new workflow and its task.
    """
    try:
        request = run_request(row, run, cause, limits=limits, workflow_id=ids[0], task_id=ids[1])
    except ServiceError as error:
        return Cause(run, failed_note(run, error))
    return Cause(run, packed(request))


class RunStarter:
    """Publishes runs to workflow owners and commits notes to the ledger, for the timekeeper.

    Args:
        settings: the deployment's settings.
    """

    def __init__(self, settings: Settings) -> None:
        self._route = LedgerRoute(settings)
        self._ledger = self._route.client()
        self._owners = LiveOwners(settings, lambda *_: None, self._route.renewals(), machine="")

    def follow(self) -> None:
        """Start the task that keeps the map of the owners up to date."""
        self._owners.follow()

    def new_ids(self) -> tuple[str, str]:
        """Return the ids of a new workflow and its task.

        The workflow's shard belongs to a member that accepts new workflows, if there is one.
        """
        at_ms = wall_ms()
        workflow_id, task_id = (uuid7(at_ms=at_ms, entropy=os.urandom(10)) for _ in range(2))
        return self._owners.place(workflow_id) or workflow_id, task_id

    async def take(self, causes: Sequence[Cause]) -> list[TriggerRun]:
        """Publish workflows and commit notes; return the runs that stay due.

        Raises:
            ServiceError: a note was not committed in time.
        """
        publishes = [(run, act) for run, act in causes if isinstance(act, PackedPublish)]
        replies = await publish_all(self._owners, [act for _, act in publishes])
        notes = [act for _, act in causes if isinstance(act, NoteRun)]
        left: list[TriggerRun] = []
        reasons: list[ServiceError] = []
        for (run, _), reply in zip(publishes, replies, strict=True):
            if isinstance(reply, PublishReply):
                continue
            if reply.code not in LEFT_DUE:
                notes.append(failed_note(run, reply))
            else:
                left.append(run)
                reasons.append(reply)
        if reasons:
            log.info("runs left due=%d first=%s: %s", len(left), left[0].trigger_id, reasons[0])
        return left + await self._note(notes)

    async def _note(self, notes: Sequence[NoteRun]) -> list[TriggerRun]:
        commits = [self._ledger.commit(note, timeout_s=COMMIT_TIMEOUT_S) for note in notes]
        outcomes = await asyncio.gather(*commits)
        return [
            note.run
            for note, outcome in zip(notes, outcomes, strict=True)
            if outcome.error is not None
        ]
