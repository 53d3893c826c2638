"""A task that its payer has settled. Reference: decision http-edge."""

from __future__ import annotations

from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet


class SettleTask(AuthorizedCommand, frozen=True, kw_only=True):
    """Say that a payer has settled a task that was paid; no money moves.

    Its key is made of the workflow, so that it happens once. What was paid, the entries of its
    payments say. Result: {}. Rejections: KEY_REUSED.
    """

    request_hash: bytes
    workflow_id: str
    task_id: str


def settle_task_key(workflow_id: str) -> str:
    """Return the key under which a workflow's task is settled, once."""
    return f"settle_task:{workflow_id}"


def add_settle_reads(command: SettleTask, read_set: ReadSet) -> None:
    """Add what names the payer of a task."""
    read_set.workflow_ids.add(command.workflow_id)


@plans(SettleTask, reads=add_settle_reads, is_asked_again=True)
def plan_settle_task(command: SettleTask, batch: Batch) -> Result:
    """Record that a task is settled; its payments are those of its workflow's steps."""
    batch.record(
        AuditEventType.WORKFLOW_SETTLED, ("workflow", command.workflow_id), taskId=command.task_id
    )
    return {}
