"""The path, query and header parameters of operations.

A query's are those of the class that the operation declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.records.api.shape import Body, Schemas, members_of
from serve_app.http.calls import Operation, Repeats
from serve_app.http.paths import PATH_VALUES, names_in

Schema = dict[str, Any]

HEADERS: Final[Mapping[str, Schema]] = {
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "maxLength": 255},
        "description": "Makes the call safe to repeat: a repeat gets the first reply again.",
    },
    "Prefer": {
        "name": "Prefer",
        "in": "header",
        "schema": {"type": "string"},
        "description": "`wait=S`: reply when the workflow has ended, after S seconds at most (60).",
    },
    "Reason": {
        "name": "x-callboard-reason",
        "in": "header",
        "schema": {"type": "string", "maxLength": 512},
        "description": "Reason for using a single right; it is written into the audit entry.",
    },
    "RequestId": {
        "name": "x-request-id",
        "in": "header",
        "schema": {"type": "string"},
        "description": "Id of the request; it is repeated in the reply. Default: a new id.",
    },
}


def parameters_of(operation: Operation, schemas: Schemas) -> list[Schema]:
    """Return the parameters of an operation as the document lists them.

    Args:
        schemas: describes their types.
    """
    described = [_of_path(name, schemas) for name in names_in(operation.path)]
    described += _of_query(operation.query, schemas)
    named = ["Prefer"] if operation.may_wait else []
    if operation.repeats is not Repeats.IGNORED:
        named.append("IdempotencyKey")
    if operation.method not in ("GET", "HEAD") and operation.scope is not None:
        named.append("Reason")
    described += ({"$ref": f"#/components/parameters/{name}"} for name in (*named, "RequestId"))
    return described


def _of_path(name: str, schemas: Schemas) -> Schema:
    declared = PATH_VALUES[name]
    return {
        "name": name,
        "in": "path",
        "schema": schemas.of(declared.hint),
        "required": True,
        "description": declared.description,
    }


def _of_query(declared: type[Body] | None, schemas: Schemas) -> list[Schema]:
    described: list[Schema] = []
    for member in members_of(declared) if declared is not None else ():
        schema = schemas.of_member(member)
        parameter: Schema = {"name": member.json_name, "in": "query", "schema": schema}
        if not member.may_be_absent:
            parameter["required"] = True
        parameter["description"] = parameter["schema"].pop("description")
        described.append(parameter)
    return described
