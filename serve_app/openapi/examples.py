"""Examples of replies, made from their schemas: what a member holds is known by its name.

So every route has one, and none can fall out of step with its schema. contract.md section 2
(OpenAPI is complete).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.openapi.parts import Schema

_REFERENCE: Final = "#/components/schemas/"
_PAYER, _AGENT = "did:net:payer", "did:net:summariser"
_HASH: Final = "sha256:" + "9f" * 32

# What members of that name hold, wherever they stand.
_MEMBERS: Final[Mapping[str, Any]] = {
    "workflowId": "0199c0de-0000-7000-8000-000000000001",
    "taskId": "0199c0de-0000-7000-8000-000000000002",
    "keyId": "0199c0de-0000-7000-8000-000000000003",
    "nodeId": "summary",
    "did": _AGENT,
    "agentDid": _AGENT,
    "agentId": _AGENT,
    "ownerDid": _PAYER,
    "payerDid": _PAYER,
    "actorDid": _PAYER,
    "cancelledBy": _PAYER,
    "setByDid": _PAYER,
    "endpoint": "https://agents.example.org/summariser",
    "intent": "Sum an article up",
    "description": "summary by did:net:summariser",
    "nodes": {"summary": {"status": "success", "result": {"text": "short"}, "attempts": 1}},
    "capabilities": [{"id": "cap.text.summarise.v1", "price_cents": 5}],
    "scopes": ["workflows:read", "workflows:write", "ledger:read"],
    "currency": "CREDITS",
    "amount": 0.95,
    "balance": 98.5,
    "attempts": 1,
    "attempt": 1,
    "status": "success",
    "hash": _HASH,
    "prevHash": _HASH,
    "eventType": "workflow.published",
    "targetType": "workflow",
    "targetId": "0199c0de-0000-7000-8000-000000000001",
    "traceId": "0199c0de000070008000000000000001",
    "key": "cb_shown-this-once",
    "nextCursor": None,
    "offset": 0,
    "limit": 50,
    "error": None,
    "results": [
        {"workflowId": "0199c0de-0000-7000-8000-000000000001", "status": "pending"},
        {"type": "urn:callboard:problem:invalid-manifest", "status": 400},
    ],
}
_BY_TYPE: Final[Mapping[str, Any]] = {
    "string": "text",
    "integer": 1,
    "number": 0.5,
    "boolean": True,
    "null": None,
}


def example_of(schema: Schema, schemas: Mapping[str, Schema], name: str = "") -> Any:
    """Return a value that satisfies a schema.

    Args:
        schemas: those that it may refer to, by name.
        name: of the member that has this schema, "" for none.
    """
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].removeprefix(_REFERENCE)], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    options = schema.get("enum")
    if name in _MEMBERS and (options is None or _MEMBERS[name] in options):
        return _MEMBERS[name]
    if options is not None:
        return options[0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], schemas, name)
    kind = schema.get("type", "object")
    if name == "id" and kind == "string":
        return _MEMBERS["workflowId"]
    if kind == "array":
        return [example_of(schema["items"], schemas)]
    if kind == "object":
        members = schema.get("properties", {})
        return {member: example_of(below, schemas, member) for member, below in members.items()}
    return schema.get("default", _HASH if "pattern" in schema else _BY_TYPE[kind])
