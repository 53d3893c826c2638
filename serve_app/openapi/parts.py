"""What JSON Schemas of the API are made of: the types of members, and shapes that recur.

contract.md sections 1 and 2.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
TIME: Schema = {"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:00.000Z"]}
CREDITS: Schema = {"type": "number", "description": "credits, at most 6 decimals"}
BALANCE: Schema = {
    "type": ["number", "string"],
    "description": "credits, at most 6 decimals; text above 10^9 credits, which a double rounds",
    "examples": [98.5],
}
CREDITS_IN: Schema = {
    "type": ["number", "string"],
    "description": "credits, at most 6 decimals; text keeps decimals exact",
}
HASH: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}


def record(required: str = "", /, **properties: Schema) -> Schema:
    """Return an object schema; `required` names members, spaces between them."""
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required.split()
    return schema


def nullable(schema: Schema) -> Schema:
    """Return a schema that null satisfies as well."""
    return {"anyOf": [schema, {"type": "null"}]}


def listing(plural: str, item: str) -> Schema:
    """Return the schema of a page of `item` records."""
    return record(
        f"{plural} limit offset nextCursor",
        **{
            plural: {"type": "array", "items": {"$ref": f"#/components/schemas/{item}"}},
            "limit": INTEGER,
            "offset": INTEGER,
            "nextCursor": nullable(STRING),
        },
    )


def with_example(schema: Schema, example: Any) -> Schema:
    """Return a schema with an example."""
    return {**schema, "examples": [example]}
