"""The query, path and header parameters of the API, by the names that operations declare.

contract.md section 2 (Lists, Idempotency-Key) and section 6 (Publish).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.workflow.transitions import WorkflowStatus

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_TIME: Schema = {"type": "string", "format": "date-time"}


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _header(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "header", "schema": schema, "description": description}


def _path(name: str, description: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": _STRING,
        "description": description,
    }


PARAMETERS: Mapping[str, Schema] = {
    "Limit": _query("limit", {"type": "integer", "minimum": 1}, "most rows in the reply"),
    "Offset": _query("offset", {"type": "integer", "minimum": 0}, "rows to pass over"),
    "Cursor": _query("cursor", _STRING, "the `nextCursor` of the page before"),
    "Status": _query("status", {"enum": [str(status) for status in WorkflowStatus]}, "only these"),
    "Quarantined": _query(
        "quarantined",
        {"enum": ["true", "false"]},
        "only unfinished workflows that wait for being resumed, or only others",
    ),
    "CapabilityId": _query("capabilityId", _STRING, "only agents that offer it"),
    "OwnerDid": _query("ownerDid", _STRING, "whose; others than one's own for administrators"),
    "AgentStatus": _query(
        "status", {"enum": ["active", "inactive"], "default": "active"}, "only these"
    ),
    "WorkflowIdQuery": _query("workflowId", _STRING, "only of this workflow"),
    "EventType": _query("eventType", _STRING, "only events of this type"),
    "ActorDid": _query("actorDid", _STRING, "only what this one did"),
    "TargetType": _query("targetType", _STRING, "only what happened to this kind of thing"),
    "TargetId": _query("targetId", _STRING, "only what happened to this"),
    "StartTime": _query("startTime", _TIME, "not before"),
    "EndTime": _query("endTime", _TIME, "before"),
    "WorkflowId": _path("workflow_id", "the workflow's id"),
    "NodePath": _path("node", "the node's name"),
    "CapabilityIdPath": _path("capability_id", "the capability's id"),
    "AccountDid": _path("did", "the DID, raw or percent-encoded"),
    "AgentDid": _path("did", "the agent's DID, raw or percent-encoded"),
    "PayerDid": _query("payerDid", _STRING, "whose; others than one's own for administrators"),
    "InvoiceStatus": _query("status", {"enum": ["pending", "paid", "void"]}, "only these"),
    "DisputeStatus": _query("status", _STRING, "only these: `open`, or a decision"),
    "InvoiceId": _path("invoice_id", "the invoice's id"),
    "DisputeId": _path("dispute_id", "the dispute's id"),
    "TaskId": _path("task_id", "the `taskId` that publishing answered with"),
    "KeyId": _path("key_id", "the key's id"),
    "AuditId": _path("audit_id", "the entry's id"),
    "IdempotencyKey": _header(
        "Idempotency-Key", {"type": "string", "maxLength": 255}, "makes the call safe to repeat"
    ),
    "Prefer": _header("Prefer", _STRING, "`wait=S`: answer when it has ended, at most S seconds"),
    "RequestId": _header("x-request-id", _STRING, "echoed in the reply"),
}
