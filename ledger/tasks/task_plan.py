"""Planning what a payer says of a task. Reference: decision http-edge."""

from __future__ import annotations

from core.records.audit import AuditEventType
from ledger.tasks.task_commands import SettleTask
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet


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
