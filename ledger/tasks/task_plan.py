"""Planning what a payer says of a task. Reference: decision http-edge."""

from __future__ import annotations

from core.records.audit import AuditEventType
from ledger.commands import Outcome
from ledger.tasks.task_commands import SettleTask
from ledger.writer.batch import Batch
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet


def add_settle_reads(command: SettleTask, read_set: ReadSet) -> None:
    """Add what names the payer of a task."""
    read_set.workflow_ids.add(command.workflow_id)


@plans(SettleTask, reads=add_settle_reads, is_asked_again=True)
def plan_settle_task(command: SettleTask, batch: Batch) -> Outcome:
    """Record that a task is settled; its payments are those of its workflow's steps."""
    audit_id = batch.record(
        AuditEventType.WORKFLOW_SETTLED,
        actor_did=command.actor_did,
        target=("workflow", command.workflow_id),
        payload={"taskId": command.task_id},
    )
    return batch.decided(
        command.key, result={}, request_hash=command.request_hash, audit_id=audit_id
    )
