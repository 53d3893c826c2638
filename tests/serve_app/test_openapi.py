"""The description is complete, and refers to nothing that is absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from core.errors import ErrorCode
from serve_app.api import all_operations
from serve_app.docs_page import docs_page
from serve_app.errors import STATUS
from serve_app.openapi import openapi_document

OPERATIONS = all_operations()
DOCUMENT = openapi_document(OPERATIONS, "1")


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
            names = {
                DOCUMENT["components"]["parameters"][item["$ref"].rsplit("/", 1)[1]]["name"]
                for item in operation["parameters"]
            }
            wanted = {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert wanted <= names, path


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda item: f"{item.method} {item.path}")
def test_every_status_has_an_example_of_each_code(operation: Any) -> None:
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    for status, response in described["responses"].items():
        if status == "200":
            continue
        examples = response["content"]["application/problem+json"]["examples"]
        assert examples
        for code in examples:
            assert STATUS[ErrorCode(code)] == int(status)
    if operation.scope is not None:
        assert {"401", "403", "503"} <= set(described["responses"])
        assert described["security"]
    if operation.request is not None:
        assert {"400", "413", "415"} <= set(described["responses"])


def test_every_scope_of_an_operation_is_of_its_resource() -> None:
    for operation in OPERATIONS:
        if operation.scope is None:
            continue
        resource = operation.path.split("/")[2]
        expected = {"agent": "agents", "heartbeat": "agents"}.get(resource, resource)
        assert operation.scope.split(":")[0] == expected, operation.path
        is_read = operation.method == "GET"
        assert operation.scope.endswith(":read") is is_read, operation.path


def test_the_page_shows_every_path_and_loads_nothing() -> None:
    page = docs_page(DOCUMENT).decode()
    for path in DOCUMENT["paths"]:
        assert path in page
    assert "<script" not in page
    assert "src=" not in page
