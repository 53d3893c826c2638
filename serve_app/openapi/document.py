"""Builds the OpenAPI document from the declarations of the operations.

Every operation lists all of its possible statuses: those of the refusals that it declares, and
those of the refusals that other code raises for all operations. Schemas come from the declared
classes (`core/records/api`), examples from recorded replies. Decision requests-json-and-client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from core.errors import ErrorCode, ServiceError
from core.json_text import read_json
from core.records.api.record import Problem
from core.records.api.shape import Body, Schemas, members_of
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Operation, Repeats
from serve_app.http.errors import STATUS, problem
from serve_app.http.paths import PATH_VALUES, description_of, names_in
from serve_app.openapi.samples import sample

Schema = dict[str, Any]

# Bodies and replies of the contract tests, recorded by `python -m scripts.record_examples`. Tests
# validate every example against the schemas.
EXAMPLES: Final = Path(__file__).with_name("examples.json")
_REQUEST_ID: Final = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
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
_ALWAYS = (
    ErrorCode.INVALID_REQUEST,  # HAProxy refuses invalid HTTP.
    ErrorCode.NOT_ACCEPTABLE,
    ErrorCode.METHOD_NOT_ALLOWED,
    ErrorCode.INTERNAL_ERROR,
    ErrorCode.PAYLOAD_TOO_LARGE,  # HAProxy also limits the bodies of GET requests.
)
_WITH_CREDENTIAL = (
    ErrorCode.UNAUTHORIZED,
    ErrorCode.INSUFFICIENT_SCOPE,
    ErrorCode.LEDGER_UNAVAILABLE,
)
# An operation without a scope also reads rows, and verifies the credential if the caller sends one.
_WITHOUT_CREDENTIAL = (ErrorCode.UNAUTHORIZED, ErrorCode.LEDGER_UNAVAILABLE)
_WITH_BODY = (
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
)


def openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the service.

    Args:
        operations: all operations of the service.
        version: the service's version.
    """
    return _Description().of(operations, version)


class _Description:
    """Describes operations, and collects the schemas that they refer to."""

    def __init__(self) -> None:
        self._schemas = Schemas()
        self._examples = read_json(EXAMPLES.read_bytes())

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
            example = self._example(operation, "body")
            if example is not None:
                media["example"] = example
            described["requestBody"] = {
                "required": not operation.is_body_optional,
                "content": {"application/json": media},
            }
        return described

    def _responses(self, operation: Operation) -> dict[str, Any]:
        media: Schema = {"schema": self._schemas.of(operation.reply)}
        example = self._example(operation, "reply")
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

    def _example(self, operation: Operation, part: str) -> Any:
        """Return the recorded body or reply of an operation, or else one derived from its schema.

        Args:
            operation: the operation.
            part: `body` or `reply`.
        """
        name = f"{operation.method} {operation.path}"
        recorded = self._examples["operations"].get(name, {}).get(part)
        if recorded is not None or operation.media_type != "application/json":
            return recorded
        return sample(self._schemas.of(getattr(operation, part)), self._schemas.components)

    def _refusals(self, codes: list[ErrorCode]) -> dict[str, Any]:
        recorded: dict[str, Any] = self._examples["problems"]
        examples = {str(code): {"value": recorded.get(code) or _example(code)} for code in codes}
        media = {"schema": self._schemas.of(Problem), "examples": examples}
        return {
            "description": ", ".join(codes),
            "content": {"application/problem+json": media},
        }


def _example(code: ErrorCode) -> dict[str, Any]:
    """Return an example of the problem details of an error code that was not recorded."""
    return problem(ServiceError(code, "what was got and what was expected"), _REQUEST_ID)


def _refusals_of(operation: Operation) -> Iterable[ErrorCode]:
    """Return the error codes of all refusals of an operation."""
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


def parameters_of(operation: Operation, schemas: Schemas) -> list[Schema]:
    """Return the parameters of an operation in the form of the OpenAPI document.

    Args:
        operation: the operation.
        schemas: describes the types of the parameters, and collects their schemas.
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
    return {
        "name": name,
        "in": "path",
        "schema": schemas.of(PATH_VALUES[name]),
        "required": True,
        "description": description_of(name),
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
