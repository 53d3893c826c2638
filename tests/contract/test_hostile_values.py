"""Values that no field may take, in a field of every class of every body, path and query.

Method: the examples of the description are sent as they are but for one member, once for each class
of field (the schema of the member) and value. They are written as text, since most of the values
are none of a JSON encoder's. Refused means 4xx, described as it is; where the value is only odd, no
reply is a 5xx.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from serve_app.api import all_operations
from serve_app.openapi.document import openapi_document
from tests.contract.conftest import Caller, MakeCaller

Json = dict[str, Any]
DOCUMENT = openapi_document(all_operations(), "0")
HOLE = "a hole in an example"
DEEP = 64
LARGE_BYTES = 10 * 1024 * 1024
REFUSED = {
    "a NUL": '"a\\u0000b"',
    "half of a surrogate pair": '"\\ud800"',
    "the other half": '"a\\udfffb"',
    "a number beyond a double": "1e400",
    "a number below one": "-1e400",
    "not a number": "NaN",
    "lists in lists": "[" * DEEP + "]" * DEEP,
    "objects in objects": '{"a":' * DEEP + "1" + "}" * DEEP,
}
# What a field may take, or what is refused as any other wrong value is.
ODD = {
    "a large whole number": "9" * 400,
    "128 digits": "9" * 128,
    "below 64 bits": "-9223372036854775809",
    "a whole double": "1e300",
    "a fraction": "2.5",
    "minus zero": "-0.0",
    "many decimals": "0." + "0" * 300 + "1",
    "odd characters": '"\\u00a0\\u2028\\u202e\\ufeff\\te' + "\\u0301" * 300 + '"',
    "nothing": "null",
    "a list": "[[]]",
    "names of an object's own": '{"__proto__":{"a":1},"constructor":1,"":1}',
    "a member twice": '{"a":1,"a":[2],"a":{"b":3}}',
}


def resolved(schema: Json) -> Json:
    """Return a schema, followed where it only refers to another."""
    while set(schema) == {"$ref"}:
        place: Any = DOCUMENT
        for part in schema["$ref"].removeprefix("#/").split("/"):
            place = place[part]
        schema = place
    return schema


def members(schema: Json, example: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where an example's members are, with the schema of each: (class, *path)."""
    schema = resolved(schema)
    if path:
        yield (json.dumps(schema, sort_keys=True), *path)
    if isinstance(example, dict):
        known = schema.get("properties", {})
        for name, value in example.items():
            yield from members(known.get(name, {"open": True}), value, (*path, name))
    elif isinstance(example, list) and example:
        yield from members(schema.get("items", {"open": True}), example[0], (*path, 0))


def with_hole(example: Any, path: tuple[Any, ...]) -> Any:
    """Return an example that has a hole in the place of one member."""
    if not path:
        return HOLE
    if isinstance(example, list):
        return [with_hole(example[0], path[1:]), *example[1:]]
    return {**example, path[0]: with_hole(example[path[0]], path[1:])}


def bodies() -> Iterator[tuple[str, str, str]]:
    """Yield (method, path, text with a hole) of a member of each class, operation by operation."""
    seen: set[str] = set()
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None or "example" not in content:
                continue
            example = content["example"]
            for kind, *place in members(content["schema"], example):
                # Of every operation at least one: each is asked with every value.
                if {kind, f"{method} {path}"} <= seen:
                    continue
                seen |= {kind, f"{method} {path}"}
                text = json.dumps(with_hole(example, tuple(place)))
                yield method.upper(), path, text


def queries() -> Iterator[tuple[str, str]]:
    """Yield (path, name) of every parameter of every query."""
    for path, operations in DOCUMENT["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            named = resolved(parameter)
            if named["in"] == "query":
                yield path, named["name"]


BODIES = list(bodies())


@pytest.fixture(scope="module")
def owner(make_caller: MakeCaller) -> Caller:
    """An owner with credits and the rights of a usual key."""
    return make_caller(1_000)


def spelt(path: str, value: str = "a") -> str:
    """Return a path whose parameters have this value."""
    for part in path.split("/"):
        if part.startswith("{"):
            path = path.replace(part, quote(value, safe=""))
    return path


def test_there_is_a_field_of_every_class_and_every_operation() -> None:
    """The method is of use: many classes, and an operation for each example of a body."""
    with_body = {(method, path) for method, path, _ in BODIES}
    assert len(with_body) > 30
    assert len(BODIES) > 80


@pytest.mark.parametrize("value", [*REFUSED, *ODD])
def test_no_value_in_a_body_ends_in_a_5xx(admin: Caller, owner: Caller, value: str) -> None:
    text = REFUSED.get(value) or ODD[value]
    for number, (method, path, body) in enumerate(BODIES):
        http = (admin, owner)[number % 2].http
        content = body.replace(f'"{HOLE}"', text).encode("utf-8", "surrogatepass")
        headers = {"content-type": "application/json"}
        response = http.request(method, spelt(path), content=content, headers=headers)
        told = f"{method} {path} {body}: {response.status_code} {response.text[:500]}"
        assert response.status_code < 500, told
        # What is wrong with one item of a bulk concerns that one alone.
        if value in REFUSED and not path.endswith("/bulk"):
            assert response.status_code >= 400, told


@pytest.mark.parametrize(
    "value", ["\0", "%", "..", "\U0001f600", "x" * 4_000, "9" * 40, "9223372036854775808"]
)
def test_no_value_in_a_path_ends_in_a_5xx(owner: Caller, value: str) -> None:
    for path, operations in DOCUMENT["paths"].items():
        for method in operations if "{" in path else ():
            content = b"{}" if "requestBody" in operations[method] else None
            headers = {"content-type": "application/json"} if content else {}
            response = owner.http.request(
                method.upper(), spelt(path, value), content=content, headers=headers
            )
            assert response.status_code < 500, f"{method} {path}: {response.text[:500]}"


@pytest.mark.parametrize(
    "value",
    ["%00", "%ed%a0%80", "1e400", "9" * 60, "9" * 128, "18446744073709551616",
     "9223372036854775808", "-1", "1e3", "1.0", "0x10", "%2B1", "%D9%A3", "01", "NaN", "",
     "x" * 4_000],
)  # fmt: skip
def test_no_value_in_a_query_ends_in_a_5xx(admin: Caller, owner: Caller, value: str) -> None:
    for number, (path, name) in enumerate(queries()):
        http = (admin, owner)[number % 2].http
        response = http.get(f"{spelt(path)}?{name}={value}")
        assert response.status_code < 500, f"{path} {name}: {response.text[:500]}"


def test_a_body_of_10_mb_is_refused_by_every_operation(owner: Caller) -> None:
    """A text as large in each body; one of a bulk is within its bound, and refused as a member."""
    text = b'{"a":"' + b"x" * LARGE_BYTES + b'"}'
    headers = {"content-type": "application/json"}
    for method, path in {(method, path): None for method, path, _ in BODIES}:
        response = owner.http.request(method, spelt(path), content=text, headers=headers)
        assert 400 <= response.status_code < 500, f"{method} {path}: {response.text[:500]}"
