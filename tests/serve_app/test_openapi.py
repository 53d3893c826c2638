"""The description is complete, and refers to nothing that is absent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from jsonschema_rs import Draft202012Validator
from starlette.routing import Route

from core.errors import ErrorCode
from core.records.api.shape import Schemas, members_of
from core.settings import Settings
from serve_app.api import all_operations, create_api
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Repeats
from serve_app.http.errors import STATUS
from serve_app.openapi.docs_page import docs_page
from serve_app.openapi.document import openapi_document
from serve_app.openapi.samples import sample
from serve_app.services import Services
from tests.contract.described import closed

OPERATIONS = all_operations()

DOCUMENT = openapi_document(OPERATIONS, "1")
COMPONENTS = closed(DOCUMENT["components"])
# What an example would be too long for.
WITHOUT_EXAMPLE = {
    "/openapi.json",
    "/docs",
    "/metrics",
    "/v1/audit/checkpoint",
    "/v1/audit/export",
    "/v1/events/stream",
    "/v1/workflows/{workflow_id}/stream",
}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for below in value.values():
            yield from references(below)
    elif isinstance(value, list):
        for below in value:
            yield from references(below)


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        target: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            assert part in target, reference
            target = target[part]


def test_operation_ids_are_unique() -> None:
    ids = [
        operation["operationId"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
    ]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)


def test_path_parameters_are_described() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            names = {item["name"] for item in operation["parameters"] if item.get("in") == "path"}
            wanted = {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert wanted == names, path


def described_members(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every property of every schema below a value, with its place."""
    if isinstance(value, dict):
        for name, schema in value.get("properties", {}).items():
            yield f"{place}.{name}", schema
        for key, below in value.items():
            if key not in ("example", "examples"):
                yield from described_members(below, f"{place}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from described_members(item, place)


def test_every_property_and_parameter_has_a_description_and_its_default() -> None:
    found = dict(described_members(DOCUMENT, ""))
    parameters = [
        *DOCUMENT["components"]["parameters"].values(),
        *(
            parameter
            for methods in DOCUMENT["paths"].values()
            for operation in methods.values()
            for parameter in operation["parameters"]
            if "$ref" not in parameter
        ),
    ]
    found.update((f"{one['in']} {one['name']}", one) for one in parameters if "name" in one)
    # Below anyOf stand conditions on members that are described elsewhere.
    missing = [at for at in found if ".anyOf" not in at and not found[at].get("description")]
    assert missing == []
    for operation in OPERATIONS:
        described = DOCUMENT["paths"][operation.path][operation.method.lower()]
        query = {one.get("name"): one.get("schema") for one in described["parameters"]}
        for declared in (operation.query, operation.parsed_body):
            schema = DOCUMENT["components"]["schemas"].get(getattr(declared, "__name__", ""), {})
            shown = query if declared is operation.query else schema.get("properties", {})
            for member in members_of(declared) if declared is not None else ():
                if member.default is not None:
                    assert "default" in shown[member.json_name], (declared, member.name)


@cache
def validator_of(schema_json: str) -> Draft202012Validator:
    """Compile a schema of the document; all of its components are read for it."""
    return Draft202012Validator({**closed(orjson.loads(schema_json)), "components": COMPONENTS})


def is_valid(schema: Any, example: Any) -> bool:
    """Whether an example satisfies a schema of the document."""
    return bool(validator_of(orjson.dumps(schema).decode()).is_valid(example))


def test_every_route_of_the_application_is_described() -> None:
    services = cast(Services, SimpleNamespace(settings=Settings()))
    routes = create_api(services).router.routes
    served = {route.path for route in routes if isinstance(route, Route)}
    assert served == set(DOCUMENT["paths"])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda item: f"{item.method} {item.path}")
def test_every_answer_and_body_of_an_operation_has_a_valid_example(operation: Any) -> None:
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    assert described["summary"] and described["description"]
    contents = [described["responses"]["200"]["content"][operation.media_type]]
    if operation.body is not None:
        contents.append(described["requestBody"]["content"]["application/json"])
    for content in contents if operation.path not in WITHOUT_EXAMPLE else ():
        assert is_valid(content["schema"], content["example"]), content["example"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda item: f"{item.method} {item.path}")
def test_an_example_that_is_derived_from_a_schema_is_valid(operation: Any) -> None:
    schemas = Schemas()
    for declared in filter(None, (operation.reply, operation.parsed_body)):
        schema = schemas.of(declared)
        example = sample(schema, schemas.components)
        assert is_valid(schema, example), example


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda item: f"{item.method} {item.path}")
def test_every_status_has_an_example_of_each_code(operation: Any) -> None:
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    for status, response in described["responses"].items():
        if "application/problem+json" not in response.get("content", ()):
            assert status in ("200", "204") or operation.is_health
            continue
        examples = response["content"]["application/problem+json"]["examples"]
        assert examples
        for code, example in examples.items():
            assert STATUS[ErrorCode(code)] == int(status)
            assert example["value"]["code"] == code
            assert is_valid({"$ref": "#/components/schemas/Problem"}, example["value"])
    statuses = {int(status) for status in described["responses"]}
    assert {200, 405, 406, 500} <= statuses
    assert {STATUS[code] for code in operation.errors} <= statuses
    if operation.scope is not None:
        assert {401, 403, 429, 503} <= statuses
        assert described["security"]
    elif operation.rate is not RateClass.EXEMPT:
        assert {401, 429, 503} <= statuses
    if operation.is_health:
        assert 503 in statuses
    if operation.body is not None:
        assert {400, 413, 415} <= statuses
    names = {item["$ref"].rsplit("/", 1)[1] for item in described["parameters"] if "$ref" in item}
    places = {item.get("in") for item in described["parameters"]}
    if operation.repeats is not Repeats.IGNORED:
        assert "IdempotencyKey" in names
        assert {400, 409, 503} <= statuses
        assert "Idempotency-Replayed" in described["responses"]["200"]["headers"]
    if places & {"query", "path"}:
        assert 400 in statuses
    if "{workflow_id}" in operation.path or "{audit_id}" in operation.path:
        assert 404 in statuses


def test_every_post_that_changes_something_honours_idempotency_keys() -> None:
    ignoring = {
        operation.path
        for operation in OPERATIONS
        if operation.method == "POST"
        and operation.rate is not RateClass.READ
        and operation.repeats is Repeats.IGNORED
    }
    # Of heartbeats the newest counts (decision idempotent-requests).
    assert ignoring == {
        "/v1/agents/{did}/heartbeat",
        "/v1/heartbeat",
        "/v1/ledger/check",
        "/v1/federation/peers/heartbeat",
    }


def test_the_page_shows_every_path_and_loads_nothing() -> None:
    page = docs_page(DOCUMENT).decode()
    for path in DOCUMENT["paths"]:
        assert path in page
    assert "<script" not in page
    assert "src=" not in page
