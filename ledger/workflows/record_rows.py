"""A machine's records as rows: the one place that knows both their fields and the columns.

A column that a row does not bring has its default (`ledger/tables/work_tables.py`).
Reference: features.md (Workflows).
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from core.market.reputation import PROMISED_MS
from core.trust.signatures import signature_text
from core.workflow.events import AttemptFinished, NodeChanged, WorkflowChanged
from core.workflow.transitions import WorkflowStatus, is_terminal
from ledger.tables.table import Row
from ledger.tables.work_tables import NODES
from ledger.workflows.workflow_commands import PublishWorkflow


def node_payload(change: NodeChanged, attempt: AttemptFinished | None) -> dict[str, Any]:
    """Return what the audit record of a node's end says."""
    payload: dict[str, Any] = {"nodeId": change.node, "attempt": change.attempt}
    if change.agent_did is not None:
        payload["agentDid"] = change.agent_did
    if attempt is not None and attempt.input_hash is not None:
        payload["inputHash"] = attempt.input_hash
    if attempt is not None and attempt.output_hash is not None:
        payload["outputHash"] = attempt.output_hash
    if change.error is not None:
        # The specification's own AGENT_UNAVAILABLE object has its code in `error`.
        payload["code"] = str(change.error.get("code", change.error.get("error", "")))
    return payload


def change_workflow(row: Row, change: WorkflowChanged) -> None:
    """Apply a change of status to a workflow's row, new or stored."""
    row["status"] = change.status
    if not is_terminal(change.status):
        row.setdefault("started_ms", change.at_ms)
        return
    row["completed_ms"] = change.at_ms
    row["error"] = change.error
    row["end_reason"] = change.reason
    row["end_details"] = change.details
    row["ended_by_did"] = change.by_did


_PUBLISHED_FIELDS: Final = (
    "task_id", "payer_did", "intent", "created_ms", "deadline_ms", "estimate_micro", "hold_micro",
    "fee_bps",
)  # fmt: skip


def workflow_row(command: PublishWorkflow) -> Row:
    """Return a new workflow's row."""
    return {
        **{name: getattr(command, name) for name in _PUBLISHED_FIELDS},
        "id": command.workflow_id,
        "status": WorkflowStatus.PENDING,
        "manifest": command.manifest_json,
        "reserved": command.reserved_json,
        **({"traceparent": command.traceparent} if command.traceparent else {}),
        **({"webhook_url": command.webhook_url} if command.webhook_url else {}),
        **(
            {"template_id": command.run.trigger_id, "template_version": command.run.version}
            if command.run
            else {}
        ),
    }


# A node's columns besides its key; its record has a field for each.
_NODE_FIELDS: Final = tuple(
    column.name for column in NODES.given if column.name not in ("workflow_id", "name")
)
_node_values: Final = attrgetter(*_NODE_FIELDS)


def node_row(workflow_id: str, change: NodeChanged) -> Row:
    """Return a node's row, without the columns that have their defaults."""
    values = zip(_NODE_FIELDS, _node_values(change), strict=True)
    row: Row = {name: value for name, value in values if value}
    row["workflow_id"] = workflow_id
    row["name"] = change.node
    if change.promised_ms == PROMISED_MS:
        del row["promised_ms"]
    else:  # also 0, which the default is not
        row["promised_ms"] = change.promised_ms
    if change.result_ref is not None:
        row["result_ref"] = change.result_ref.to_json()
    return row


def attempt_row(workflow_id: str, record: AttemptFinished) -> Row:
    """Return the history line of a finished attempt."""
    row: Row = {
        "workflow_id": workflow_id,
        "node": record.node,
        "attempt": record.attempt,
        "kind": record.kind,
        "agent_did": record.agent_did,
        "outcome": record.outcome,
        "started_ms": record.started_ms,
        "completed_ms": max(record.started_ms, record.completed_ms),
    }
    if record.output_hash is not None or record.input_hash is not None:
        row["input_hash"] = record.input_hash
        row["output_hash"] = record.output_hash
    if record.error_code is not None or record.error_message is not None:
        row["error_code"] = record.error_code
        row["error_message"] = record.error_message
    if record.queued_ms is not None:
        # Two machines' clocks: the owner has opened it, another process may have sent it.
        row["queued_ms"] = min(record.queued_ms, record.started_ms)
    if record.signature is not None:
        row["signature"] = signature_text(record.signature)
        row["signed_key"] = record.signed_key
    return row
