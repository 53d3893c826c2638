"""The path, query and header parameters of operations.

A path's are known by their names, a query's by the class that the operation declares. contract.md
section 2 (Lists, Idempotency-Key) and section 6 (Publish).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.records.api.kinds import CapabilityId, NodeName, Uuid
from core.records.api.shape import Kind, Schemas, members_of
from serve_app.http.calls import Operation, Repeats, path_parameters

Schema = dict[str, Any]

_TEXT: Final = Kind({"type": "string"})
# What stands in braces in a path: its type, and what it is. A value of another form is of nothing.
PATH: Final[Mapping[str, tuple[Any, str]]] = {
    "workflow_id": (Uuid, "the workflow's id"),
    "node": (NodeName, "the node's name"),
    "capability_id": (CapabilityId, "the capability's id"),
    "did": (_TEXT, "the DID, raw or percent-encoded"),
    "invoice_id": (Uuid, "the invoice's id"),
    "dispute_id": (Uuid, "the dispute's id"),
    "task_id": (Uuid, "the `taskId` that publishing answered with"),
    "key_id": (_TEXT, "the key's id"),
    "audit_id": (Kind({"type": "integer", "minimum": 1}), "the entry's id"),
}
HEADERS: Final[Mapping[str, Schema]] = {
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "maxLength": 255},
        "description": "makes the call safe to repeat",
    },
    "Prefer": {
        "name": "Prefer",
        "in": "header",
        "schema": {"type": "string"},
        "description": "`wait=S`: answer when it has ended, at most S seconds",
    },
    "RequestId": {
        "name": "x-request-id",
        "in": "header",
        "schema": {"type": "string"},
        "description": "echoed in the reply",
    },
}


def parameters_of(operation: Operation, schemas: Schemas) -> list[Schema]:
    """Return the parameters of an operation as the document lists them.

    Args:
        schemas: describes their types.
    """
    described: list[Schema] = []
    for name in path_parameters(operation.path):
        kind, description = PATH[name]
        described.append(
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": schemas.of(kind),
                "description": description,
            }
        )
    for member in members_of(operation.query) if operation.query is not None else ():
        parameter = {"name": member.json_name, "in": "query", "schema": schemas.of_member(member)}
        if member.description:
            parameter["description"] = member.description
        described.append(parameter)
    named = ["Prefer"] if operation.may_wait else []
    if operation.repeats is not Repeats.IGNORED:
        named.append("IdempotencyKey")
    described += ({"$ref": f"#/components/parameters/{name}"} for name in (*named, "RequestId"))
    return described
