"""Bodies: their size, their type, their depth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ErrorCode, ServiceError
from serve_app.bodies import ClientGone, check_depth, check_media_type, parse_json, read_body


def received(*chunks: bytes, is_cut_short: bool = False) -> Any:
    messages: list[Mapping[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks) or is_cut_short}
        for number, chunk in enumerate(chunks, 1)
    ]
    messages.append({"type": "http.disconnect"})
    waiting = iter(messages)

    async def receive() -> Mapping[str, Any]:
        return next(waiting)

    return receive


def read(*chunks: bytes, declared: bytes | None = None, bytes_max: int = 10) -> bytes:
    return asyncio.run(read_body(received(*chunks), declared, bytes_max))


def test_a_body_in_parts_is_joined() -> None:
    assert read(b"abc", b"", b"def") == b"abcdef"


def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert read(b"12345", b"67890") == b"1234567890"


@pytest.mark.parametrize(
    ("chunks", "declared"),
    [((b"12345", b"678901"), None), ((b"1",), b"11"), ((b"12345", b"678901"), b"3")],
    ids=["measured", "declared", "declared too small"],
)
def test_an_oversized_body_is_refused(chunks: tuple[bytes, ...], declared: bytes | None) -> None:
    with pytest.raises(ServiceError) as refusal:
        read(*chunks, declared=declared)
    assert refusal.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_a_client_that_leaves_is_told_nothing() -> None:
    with pytest.raises(ClientGone):
        asyncio.run(read_body(received(b"1", is_cut_short=True), None, 10))


@pytest.mark.parametrize(
    "content_type",
    [None, b"application/json", b"application/JSON; charset=utf-8", b"application/ld+json"],
)
def test_json_types_are_accepted(content_type: bytes | None) -> None:
    check_media_type(content_type)


@pytest.mark.parametrize("content_type", [b"text/plain", b"application/x-www-form-urlencoded", b""])
def test_other_types_are_refused(content_type: bytes) -> None:
    with pytest.raises(ServiceError) as refusal:
        check_media_type(content_type)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize(
    "body",
    [b"", b"nope", b"{", b'{"a":NaN}', b"\xff", b'"\\ud800"', b'{"a":"\\u0000"}', b'{"\\u0000":1}'],
)
def test_what_is_no_clean_json_is_refused(body: bytes) -> None:
    with pytest.raises(ServiceError) as refusal:
        parse_json(body, depth_max=64)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert refusal.value.problems


def test_an_escaped_backslash_is_no_nul() -> None:
    assert parse_json(b'{"a":"\\\\u0000"}', depth_max=64) == {"a": "\\u0000"}


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded_exactly(opening: bytes, closing: bytes) -> None:
    parse_json(opening * 64 + b"1" + closing * 64, depth_max=64)
    with pytest.raises(ServiceError):
        parse_json(opening * 65 + b"1" + closing * 65, depth_max=64)


def test_a_wide_body_is_not_a_deep_one() -> None:
    assert len(parse_json(orjson.dumps([[1]] * 500), depth_max=3)) == 500


_JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(below) for below in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(below) for below in value), default=0)
    return 0


@given(_JSON, st.integers(0, 6))
def test_depth_is_what_it_means(value: Any, depth_max: int) -> None:
    if depth(value) <= depth_max:
        check_depth(value, depth_max)
    else:
        with pytest.raises(ServiceError):
            check_depth(value, depth_max)
