"""Finished workflows, queued per gateway that waits for them.

One long poll per gateway empties its outbox; no message is sent per workflow. With a workflow that
has succeeded goes what its record shows, so that nothing is read for its answer; what is large, and
what has ended in another way, is told by its id, and its rows are read. The outbox is bounded: a
gateway that stops polling loses the oldest ids and finds those workflows in the rows. Decision
messages-and-large-values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Final

from actors.transport.messages import WorkflowEnd
from actors.transport.wire import ENDS, Unencodable
from actors.workflows.running_workflow import RunningWorkflow
from core.workflow.transitions import WorkflowStatus
from ledger.commands import Outcome

OUTBOX_SIZE_MAX: Final = 100_000
WATCHERS_MAX: Final = 1_024
# Of a workflow whose record is told with its end: what is beyond is read from its rows.
TOLD_NODES_MAX: Final = 64
TOLD_BYTES_MAX: Final = 32 * 1024
# Of all records that have not been taken yet.
KEPT_BYTES_MAX: Final = 4 * 1024 * 1024

# Receives a workflow that has ended, its watchers, and what they are told of it.
Finished = Callable[[str, Set[str], WorkflowEnd | None], None]


def workflow_end(run: RunningWorkflow, outcome: Outcome) -> WorkflowEnd | None:
    """Return what is told of a workflow's end, None when its rows are to be read.

    Args:
        outcome: of its last step.
    """
    machine = run.machine
    if not run.watchers or run.created_ms is None or machine.status is not WorkflowStatus.SUCCESS:
        return None
    left_micro = outcome.result.get("releasedMicro")
    if left_micro is None or len(machine.compiled.nodes) > TOLD_NODES_MAX:
        return None
    rows = [machine.row_of(name) for name in machine.compiled.nodes]
    if sum(len(row.result_json or "") + len(row.selection_json or "") for row in rows) > (
        TOLD_BYTES_MAX
    ):
        return None
    assert machine.started_ms is not None
    assert machine.succeeded_ms is not None
    return WorkflowEnd(
        workflow_id=run.workflow_id,
        created_ms=run.created_ms,
        started_ms=machine.started_ms,
        completed_ms=machine.succeeded_ms,
        spent_micro=machine.hold_micro - left_micro,
        nodes=tuple(rows),
    )


class Outboxes:
    """Finished workflows by watcher: ids, with the bytes of the `WorkflowEnd` where one is told."""

    def __init__(self) -> None:
        self._boxes: dict[str, dict[str, bytes | None]] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._kept_bytes = 0

    def put(self, workflow_id: str, watchers: Set[str], end: WorkflowEnd | None = None) -> None:
        """Queue a finished workflow for each of its watchers."""
        body = None if end is None else _encoded(end)
        for watcher in watchers:
            box = self._boxes.get(watcher)
            if box is None:
                if len(self._boxes) >= WATCHERS_MAX:
                    self._forget(self._boxes.pop(next(iter(self._boxes))))
                box = self._boxes[watcher] = {}
            elif len(box) >= OUTBOX_SIZE_MAX:
                oldest = next(iter(box))
                self._forget({oldest: box.pop(oldest)})
            kept = body
            if kept is not None and self._kept_bytes + len(kept) > KEPT_BYTES_MAX:
                kept = None
            self._forget({workflow_id: box.get(workflow_id)})  # what was told of it before
            box[workflow_id] = kept
            self._kept_bytes += len(kept or b"")
            if watcher in self._waiting:
                self._waiting[watcher].set()

    async def take(self, watcher: str, timeout_s: float) -> dict[str, bytes | None]:
        """Return the watcher's finished workflows; wait at most `timeout_s` for the first."""
        if not self._boxes.get(watcher):
            event = self._waiting.setdefault(watcher, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), timeout_s)
            except TimeoutError:
                return {}
            finally:
                self._waiting.pop(watcher, None)
        taken = self._boxes.pop(watcher, {})
        self._forget(taken)
        return taken

    def _forget(self, box: dict[str, bytes | None]) -> None:
        self._kept_bytes -= sum(len(body or b"") for body in box.values())


def _encoded(end: WorkflowEnd) -> bytes | None:
    try:
        body = ENDS.encode(end)
    except Unencodable:  # the ledger has stored it all the same: its rows are read
        return None
    return body if len(body) <= 2 * TOLD_BYTES_MAX else None
