"""Bulk bodies: whatever they hold, their items are what a parser of the whole would find."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.process.slices import Slices
from core.errors import ErrorCode, ServiceError
from core.settings import KIB, Settings
from serve_app.http.bodies import RequestBounds
from serve_app.http.bulk import BulkItems, cut, judged
from tests.serve_app.parts import call_of, gateway_with, services_of

TEXTS = st.text(st.sampled_from(['"', "\\", "{", "}", "[", "]", ",", "é", "\n", "a"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def pieces(body: bytes, window: int) -> tuple[bytes, list[bytes]]:
    async def run() -> tuple[bytes, list[bytes]]:
        return await cut(body, 10**6, Slices(), window=window)

    return asyncio.run(run())


def put_together(outline: bytes, parts: list[bytes]) -> Any:
    value = orjson.loads(outline)
    if not isinstance(value, dict):
        assert not parts or isinstance(value, list)
        return value
    for items in value.values():
        if isinstance(items, list):
            items[:] = [
                orjson.loads(parts[item[0]]) if isinstance(item, list) else item for item in items
            ]
    return value


@given(
    st.dictionaries(TEXTS, st.lists(VALUES, max_size=4) | VALUES, max_size=4),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from([1, 2, 3, 7, 1_000]),
)
def test_items_and_the_rest_are_the_whole(
    value: Any, indent: int | None, is_ascii: bool, window: int
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode()
    outline, parts = pieces(body, window)
    assert put_together(outline, parts) == value
    items = [item for items in value.values() if isinstance(items, list) for item in items]
    assert len(parts) == sum(isinstance(item, list | dict) for item in items)


BOUNDS = RequestBounds(body_bytes_max=KIB, bulk_items_max=5, json_depth_max=4)


def judge_all(
    body: bytes,
    judge: Callable[[int, Any, int], Awaitable[Any]] | None = None,
) -> BulkItems[Any]:
    gateway = gateway_with(Settings())
    call = call_of(services_of(gateway, bounds=BOUNDS), body=body)

    async def by_itself(index: int, item: Any, _: int) -> tuple[int, Any]:
        assert item != {"defect": 1}
        if item == {"bad": True}:
            raise ServiceError(ErrorCode.INVALID_MANIFEST, "bad")
        return index, item

    return asyncio.run(judged(call, "items", judge or by_itself))


def test_each_item_is_judged_by_itself_in_order() -> None:
    large = {"text": "x" * KIB}
    deep: dict[str, Any] = {"a": {"b": {"c": {"d": {}}}}}
    items = [{"n": 0}, {"bad": True}, large, deep, "no object"]
    found = judge_all(orjson.dumps({"items": items}))
    assert found.accepted == [(0, {"n": 0}), (4, "no object")]
    codes = [None if result is None else result["code"] for result in found.results]
    assert codes == [None, "INVALID_MANIFEST", "PAYLOAD_TOO_LARGE", "INVALID_REQUEST", None]
    assert [result["requestId"] for result in found.results if result] == ["r"] * 3


def test_an_item_comes_with_the_length_of_its_text() -> None:
    async def judge(_: int, __: Any, size: int) -> int:
        return size

    assert judge_all(b'{"items": [{"n":  1}, 7, [ ]]}', judge=judge).accepted == [9, 0, 3]


def test_an_item_that_fails_inside_refuses_itself_alone() -> None:
    found = judge_all(b'{"items": [{"n": 0}, {"defect": 1}, {"n": 2}]}')
    assert found.accepted == [(0, {"n": 0}), (2, {"n": 2})]
    assert found.results[1]["code"] == "INTERNAL_ERROR"


def test_replies_stand_where_their_items_stood() -> None:
    found = judge_all(orjson.dumps({"items": [{"n": 0}, {"bad": True}, {"n": 2}]}))
    answer = asyncio.run(found.answer(["first", "last"], lambda item, reply: [item[0], reply])).body
    assert answer["results"][0] == [0, "first"]
    assert answer["results"][1]["code"] == "INVALID_MANIFEST"
    assert answer["results"][2] == [2, "last"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'[[{"a": 1}]]',
        b"{}",
        b'{"items": {}}',
        b'{"items": [{}, {}, {}, {}, {}, {}]}',
        b'{"items": [{"a": 1}}, {}]}',
        b'{"items": [{} {}]}',
        b'{"items": [{"a": "unended}]}',
        b'{"items": [{}]}}',
        b'{"items": [{}]} {"items": [{}]}',
    ],
)
def test_a_body_that_is_no_bulk_is_refused_whole(body: bytes) -> None:
    with pytest.raises(ServiceError) as refused:
        judge_all(body)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_what_stands_beside_the_items_is_bounded() -> None:
    with pytest.raises(ServiceError) as refused:
        judge_all(b'{"items": [{}], "more": "' + b"x" * KIB + b'"}')
    assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE
