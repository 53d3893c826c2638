"""The OpenAPI document, made from the same declarations that serve the requests.

Every operation lists every status it can answer: its own refusals and those that any call can meet.
contract.md section 2 (OpenAPI is complete).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.errors import ErrorCode
from serve_app.calls import Operation, Repeats
from serve_app.errors import STATUS, title
from serve_app.limits import RateClass
from serve_app.openapi.examples import example_of
from serve_app.openapi.parameters import PARAMETERS
from serve_app.openapi.workflows import SCHEMAS

_ALWAYS = (ErrorCode.NOT_ACCEPTABLE, ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.INTERNAL_ERROR)
_WITH_CREDENTIAL = (
    ErrorCode.UNAUTHORIZED,
    ErrorCode.INSUFFICIENT_SCOPE,
    ErrorCode.LEDGER_UNAVAILABLE,
)
# Also without a scope, a key that is sent is looked up, and rows are read.
_WITHOUT_CREDENTIAL = (ErrorCode.UNAUTHORIZED, ErrorCode.LEDGER_UNAVAILABLE)
_WITH_BODY = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
)


def openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these operations.

    Args:
        operations: all of the service's.
        version: the service's version.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Callboard",
            "version": version,
            "summary": "Publish workflows; agents do the work and are paid out of escrow.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {name: dict(schema) for name, schema in SCHEMAS.items()},
            "parameters": {name: dict(value) for name, value in PARAMETERS.items()},
            "securitySchemes": {
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "description": _description(operation),
        "responses": _responses(operation),
        "security": [{"apiKey": []}, {"bearer": []}] if operation.scope is not None else [],
    }
    names = [*operation.parameters, "RequestId"]
    if operation.repeats is not Repeats.IGNORED:
        names.insert(-1, "IdempotencyKey")
    described["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    if operation.request is not None:
        described["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {"application/json": _media(operation.request)},
        }
    return described


def _operation_id(operation: Operation) -> str:
    words = [
        "".join(letter for letter in part.title() if letter.isalnum())
        for part in operation.path.removeprefix("/v1").split("/")
        if part
    ]
    return operation.method.lower() + "".join(words)


def _description(operation: Operation) -> str:
    needs = "Public." if operation.scope is None else f"Needs the scope `{operation.scope}`."
    if operation.rate is RateClass.EXEMPT:
        return needs
    return f"{needs} Counts as a {operation.rate} operation."


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {
        "200": {
            "description": "The answer.",
            "content": {operation.media_type: _media(operation.reply)},
            "headers": {"x-request-id": {"schema": {"type": "string"}}},
        }
    }
    codes = [*_ALWAYS, *operation.errors]
    if operation.repeats is not Repeats.IGNORED:
        codes.extend((ErrorCode.KEY_REUSED, ErrorCode.INVALID_REQUEST))
        codes.append(ErrorCode.LEDGER_UNAVAILABLE)
        responses["200"]["headers"]["Idempotency-Replayed"] = {
            "schema": {"const": "true"},
            "description": "the first reply again, of an earlier call with this Idempotency-Key",
        }
    if operation.scope is not None:
        codes.extend(_WITH_CREDENTIAL)
    if operation.rate is not RateClass.EXEMPT:
        codes.extend((*_WITHOUT_CREDENTIAL, ErrorCode.RATE_LIMITED, ErrorCode.OVERLOADED))
    if operation.request is not None:
        codes.extend(_WITH_BODY)
    if operation.parameters:
        codes.append(ErrorCode.INVALID_REQUEST)
    by_status: dict[int, list[ErrorCode]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(STATUS[code], []).append(code)
    for status, group in sorted(by_status.items()):
        responses[str(status)] = _refusals(status, group)
    if operation.is_health:
        responses["503"] = {
            "description": "It is not: the same answer with what is wrong.",
            "content": responses["200"]["content"],
        }
    return responses


def _refusals(status: int, codes: list[ErrorCode]) -> dict[str, Any]:
    examples = {
        str(code): {
            "value": {
                "type": f"urn:callboard:problem:{code.lower().replace('_', '-')}",
                "title": title(code),
                "status": status,
                "detail": "what was got and what was expected",
                "code": code,
                "error": code,
                "message": "what was got and what was expected",
                "requestId": "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
            }
        }
        for code in codes
    }
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        "description": ", ".join(codes),
        "content": {"application/problem+json": {"schema": schema, "examples": examples}},
    }


def _media(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"schema": schema, "example": example_of(schema, SCHEMAS)}
