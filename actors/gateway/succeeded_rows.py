"""Builds the rows of a workflow that has succeeded, without a read of the database.

The replica that published the workflow has the request; the owner sends the other values with the
workflow's end. The rows have the format of rows that are read, so the same view shows both.
Decision messages-and-large-values.
"""

from __future__ import annotations

from msgspec.structs import asdict

from actors.transport.messages import PublishRequest, WorkflowEnd
from core.workflow.events import NodeChanged
from core.workflow.transitions import WorkflowStatus
from ledger.reads.stored import RowDict, StoredWorkflow


def succeeded_workflow(request: PublishRequest, end: WorkflowEnd) -> StoredWorkflow:
    """Return the rows of a succeeded workflow, with the columns that its record shows.

    Args:
        request: the request that published the workflow.
        end: the end of the workflow, as its owner sent it.
    """
    row: RowDict = {
        "id": end.workflow_id,
        "task_id": request.task_id,
        "payer_did": request.payer_did,
        "status": WorkflowStatus.SUCCESS,
        "intent": request.compiled.intent or "",
        "manifest": request.manifest_json,
        "created_ms": end.created_ms,
        "started_ms": end.started_ms,
        "completed_ms": end.completed_ms,
        "spent_micro": end.spent_micro,
        "error": None,
        "quarantined_ms": None,
        "quarantine_code": None,
        "traceparent": request.traceparent,
        "template_id": request.run and request.run.trigger_id,
        "template_version": request.run and request.run.version,
    }
    return StoredWorkflow(row, [_node_row(change) for change in end.nodes])


def _node_row(change: NodeChanged) -> RowDict:
    row: RowDict = asdict(change)
    row["name"] = change.node
    if change.result_ref is not None:
        row["result_ref"] = change.result_ref.to_json()
    return row
