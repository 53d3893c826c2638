"""Queues the ends of workflows for the gateways that wait for them.

Each gateway has one outbox and empties it with one long poll, so there is no message per workflow.
An entry for a small workflow that succeeded holds all fields of its record, so the gateway reads no
rows for its reply. For any other workflow the entry holds only the id, and the gateway reads the
rows. The outbox is bounded: if a gateway stops polling, its oldest entries are dropped. The gateway
then finds the dropped workflows in the rows. Decision messages-and-large-values.
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
# Limits of a workflow whose entry holds its record. The gateway reads the rows of larger workflows.
TOLD_NODES_MAX: Final = 64
TOLD_BYTES_MAX: Final = 32 * 1024
# Limit of the bytes of all records that no gateway has taken yet.
KEPT_BYTES_MAX: Final = 4 * 1024 * 1024

# Receives the id of a workflow that has ended, its watchers, and its record if it is small.
Finished = Callable[[str, Set[str], WorkflowEnd | None], None]


def workflow_end(run: RunningWorkflow, outcome: Outcome) -> WorkflowEnd | None:
    """Return the record of an ended workflow, or None if the gateway must read its rows.

    Args:
        outcome: the outcome of the workflow's last step.
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
    """The ended workflows of each watcher: by id, an encoded `WorkflowEnd` or None."""

    def __init__(self) -> None:
        self._boxes: dict[str, dict[str, bytes | None]] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._kept_bytes = 0

    def put(self, workflow_id: str, watchers: Set[str], end: WorkflowEnd | None = None) -> None:
        """Queue an ended workflow for each of its watchers."""
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
            self._forget({workflow_id: box.get(workflow_id)})  # an earlier entry of this workflow
            box[workflow_id] = kept
            self._kept_bytes += len(kept or b"")
            if watcher in self._waiting:
                self._waiting[watcher].set()

    async def take(self, watcher: str, timeout_s: float) -> dict[str, bytes | None]:
        """Remove and return the watcher's entries; wait at most `timeout_s` for the first one."""
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
    except Unencodable:  # the ledger has stored the rows, so the gateway reads them
        return None
    return body if len(body) <= 2 * TOLD_BYTES_MAX else None
