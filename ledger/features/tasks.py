"""The settlement of a task by its payer. Reference: decision http-edge."""

from __future__ import annotations

from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import keys_of, plans


class SettleTask(AuthorizedCommand, frozen=True, kw_only=True):
    """Record that a payer has settled a paid task. No money moves.

    The key is derived from the workflow, so a task is settled once. Result: {}. Rejections:
    KEY_REUSED.
    """

    request_hash: bytes
    workflow_id: str
    task_id: str


def settle_task_key(workflow_id: str) -> str:
    """Return the key under which a workflow's task is settled once."""
    return f"settle_task:{workflow_id}"


@plans(SettleTask, reads=keys_of(workflow_ids="workflow_id"), reuses_key=True)
def plan_settle_task(command: SettleTask, batch: Batch) -> Result:
    """Record that a task is settled; the steps of its workflow have paid for it."""
    batch.record(
        AuditEventType.WORKFLOW_SETTLED, ("workflow", command.workflow_id), taskId=command.task_id
    )
    return {}
