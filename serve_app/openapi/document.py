"""The OpenAPI document, made from the same declarations that serve the requests.

Every operation lists every status it can answer: its own refusals and those that any call can meet.
Schemas come from the declared classes (`core/records/api`), examples from recorded replies.
Decision requests-json-and-client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.errors import ErrorCode
from core.records.api.record import Problem
from core.records.api.shape import Schemas
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Operation, Repeats
from serve_app.http.errors import STATUS
from serve_app.openapi.examples import Examples, recorded_examples
from serve_app.openapi.parameters import HEADERS, parameters_of

Schema = dict[str, Any]

_ALWAYS = (
    ErrorCode.INVALID_REQUEST,  # the front refuses what is not valid HTTP
    ErrorCode.NOT_ACCEPTABLE,
    ErrorCode.METHOD_NOT_ALLOWED,
    ErrorCode.INTERNAL_ERROR,
    ErrorCode.PAYLOAD_TOO_LARGE,  # the front measures bodies of reads, too
)
_WITH_CREDENTIAL = (
    ErrorCode.UNAUTHORIZED,
    ErrorCode.INSUFFICIENT_SCOPE,
    ErrorCode.LEDGER_UNAVAILABLE,
)
# Also without a scope, a key that is sent is looked up, and rows are read.
_WITHOUT_CREDENTIAL = (ErrorCode.UNAUTHORIZED, ErrorCode.LEDGER_UNAVAILABLE)
_WITH_BODY = (
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
)


def openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these operations.

    Args:
        operations: all of the service's.
        version: the service's version.
    """
    return _Description(recorded_examples()).of(operations, version)


class _Description:
    """Describes operations, and keeps the schemas that they refer to.

    Args:
        examples: replies and bodies as they were recorded.
    """

    def __init__(self, examples: Examples) -> None:
        self._schemas = Schemas()
        self._examples = examples

    def of(self, operations: Iterable[Operation], version: str) -> dict[str, Any]:
        paths: dict[str, dict[str, Any]] = {}
        for operation in operations:
            paths.setdefault(operation.path, {})[operation.method.lower()] = self._one(operation)
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
                "schemas": dict(sorted(self._schemas.components.items())),
                "parameters": {name: dict(value) for name, value in HEADERS.items()},
                "securitySchemes": {
                    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "signature": {
                        "type": "apiKey",
                        "in": "header",
                        "name": "Signature",
                        "description": "RFC 9421, by the key of a DID (docs/signed-requests.md).",
                    },
                },
            },
        }

    def _one(self, operation: Operation) -> dict[str, Any]:
        described: dict[str, Any] = {
            "operationId": _operation_id(operation),
            "summary": operation.summary,
            "tags": [operation.tag],
            "description": _description(operation),
            "parameters": parameters_of(operation, self._schemas),
            "responses": self._responses(operation),
            "security": [{"apiKey": []}, {"bearer": []}, {"signature": []}]
            if operation.scope is not None
            else [],
        }
        if operation.body is not None:
            media: Schema = {"schema": self._schemas.of(operation.body)}
            example = self._examples.body(operation.method, operation.path)
            if example is not None:
                media["example"] = example
            described["requestBody"] = {
                "required": not operation.is_body_optional,
                "content": {"application/json": media},
            }
        return described

    def _responses(self, operation: Operation) -> dict[str, Any]:
        media: Schema = {"schema": self._schemas.of(operation.reply)}
        example = self._examples.reply(operation.method, operation.path)
        if example is not None:
            media["example"] = example
        responses: dict[str, Any] = {
            "200": {
                "description": "Success.",
                "content": {operation.media_type: media},
                "headers": {"x-request-id": {"schema": {"type": "string"}}},
            }
        }
        if operation.other_media_type is not None:
            text = {"schema": {"type": "string"}}
            responses["200"]["content"][operation.other_media_type] = text
        if operation.empty:
            responses["204"] = {"description": operation.empty}
        if operation.repeats is not Repeats.IGNORED:
            responses["200"]["headers"]["Idempotency-Replayed"] = {
                "schema": {"const": "true"},
                "description": "Present when this is the stored reply of an earlier call.",
            }
        by_status: dict[int, list[ErrorCode]] = {}
        for code in dict.fromkeys(_refusals_of(operation)):
            by_status.setdefault(STATUS[code], []).append(code)
        for status, group in sorted(by_status.items()):
            responses[str(status)] = self._refusals(group)
        if operation.is_health:
            responses["503"] = {
                "description": "Not healthy; the reply has the same members.",
                "content": responses["200"]["content"],
            }
        return responses

    def _refusals(self, codes: list[ErrorCode]) -> dict[str, Any]:
        examples = {str(code): {"value": self._examples.problem(code)} for code in codes}
        media = {"schema": self._schemas.of(Problem), "examples": examples}
        return {
            "description": ", ".join(codes),
            "content": {"application/problem+json": media},
        }


def _refusals_of(operation: Operation) -> Iterable[ErrorCode]:
    """Return the codes that an operation can refuse with."""
    yield from _ALWAYS
    yield from operation.errors
    if operation.repeats is not Repeats.IGNORED:
        yield from (ErrorCode.KEY_REUSED, ErrorCode.LEDGER_UNAVAILABLE)
    if operation.scope is not None:
        yield from _WITH_CREDENTIAL
    if operation.rate is not RateClass.EXEMPT:
        yield from (*_WITHOUT_CREDENTIAL, ErrorCode.RATE_LIMITED, ErrorCode.OVERLOADED)
    if operation.body is not None or operation.method in ("POST", "PUT", "PATCH"):
        yield from _WITH_BODY
    if "{" in operation.path:
        yield ErrorCode.NOT_FOUND
    if operation.scope is not None and operation.rate is not RateClass.READ:
        yield from (ErrorCode.FORBIDDEN, ErrorCode.CONFLICT)


def _operation_id(operation: Operation) -> str:
    words = [
        "".join(letter for letter in part.title() if letter.isalnum())
        for part in operation.path.removeprefix("/v1").split("/")
        if part
    ]
    return operation.method.lower() + "".join(words)


def _description(operation: Operation) -> str:
    needs = "Public." if operation.scope is None else f"Needs the scope `{operation.scope}`."
    if operation.single_right is not None:
        needs = f"Needs the scope `{operation.scope}` or `{operation.single_right}`."
    if operation.rate is RateClass.EXEMPT:
        return needs
    return f"{needs} Counts as a {operation.rate} operation."
