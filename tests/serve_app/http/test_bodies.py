"""Bodies: their size, their type, their depth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ErrorCode, ServiceError
from serve_app.http.bodies import (
    SLOW_AFTER_S,
    ClientGone,
    Pace,
    check_depth,
    check_media_type,
    held_bytes,
    parse_json,
    read_body,
)

PACE = Pace(timeout_s=10, rate_min=1_000)


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
    return asyncio.run(read_body(received(*chunks), declared, bytes_max, pace=PACE))


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
        asyncio.run(read_body(received(b"1", is_cut_short=True), None, 10, pace=PACE))


class TurnedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock the test turns."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


class Sender:
    """A client that sends a body byte by byte, and turns its loop's clock before each."""

    def __init__(self, loop: TurnedLoop, every_s: float, size: int) -> None:
        self._loop = loop
        self._every_s = every_s
        self._size = size
        self.sent = 0

    async def receive(self) -> Mapping[str, Any]:
        self._loop.skipped_s += self._every_s
        for _ in range(3):  # the loop looks at its timers
            await asyncio.sleep(0)
        self.sent += 1
        return {"type": "http.request", "body": b"x", "more_body": self.sent < self._size}


def read_slowly(
    every_s: float, pace: Pace, on_slow: Callable[[], None], size: int = 100
) -> tuple[int, str]:
    """Read a body of one byte every so often; return how many were sent, and the end."""
    loop = TurnedLoop()
    sender = Sender(loop, every_s, size)
    try:
        reading = read_body(sender.receive, None, size, pace=pace, on_slow=on_slow)
        loop.run_until_complete(reading)
    except ServiceError as refusal:
        return sender.sent, refusal.code
    finally:
        loop.close()
    return sender.sent, "read"


def test_a_body_that_trickles_in_is_cut_off() -> None:
    slow: list[None] = []
    sent, end = read_slowly(0.5, Pace(10, 1_000), lambda: slow.append(None))
    assert end == "REQUEST_TIMEOUT"
    assert len(slow) == 1
    assert 15 <= sent <= 20


def test_a_body_below_the_least_rate_is_cut_off_and_one_at_it_is_read() -> None:
    assert read_slowly(0.5, Pace(10, 2), lambda: None) == (100, "read")
    sent, end = read_slowly(0.5, Pace(10, 4), lambda: None)
    assert end == "REQUEST_TIMEOUT"
    assert 35 <= sent <= 40


def test_a_slow_body_that_finds_no_place_is_refused_at_once() -> None:
    def on_slow() -> None:
        raise ServiceError(ErrorCode.RATE_LIMITED, "too many")

    sent, end = read_slowly(SLOW_AFTER_S / 4, PACE, on_slow)
    assert end == "RATE_LIMITED"
    assert sent <= 4


def test_a_quick_body_is_never_slow() -> None:
    slow: list[None] = []
    assert read_slowly(0.001, PACE, lambda: slow.append(None)) == (100, "read")
    assert not slow


@pytest.mark.parametrize(
    ("declared", "held"), [(None, 100), (b"7", 7), (b"100", 100), (b"101", 0), (b"x", 100)]
)
def test_what_reading_may_hold_is_known_before(declared: bytes | None, held: int) -> None:
    assert held_bytes(declared, 100) == held


@pytest.mark.parametrize(
    "content_type",
    [None, b"application/json", b"application/JSON; charset=utf-8", b"application/ld+json"],
)
def test_json_types_are_accepted(content_type: bytes | None) -> None:
    check_media_type(content_type)


@pytest.mark.parametrize(
    "body",
    [b"", b"nope", b"{", b'{"a":NaN}', b"\xff", b'"\\ud800"', b'{"a":"\\u0000"}', b'{"\\u0000":1}'],
)
def test_what_is_no_clean_json_is_refused(body: bytes) -> None:
    with pytest.raises(ServiceError) as refusal:
        parse_json(body, depth_max=64)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert refusal.value.problems


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


def test_a_nul_is_refused_with_its_place() -> None:
    with pytest.raises(ServiceError) as refusal:
        parse_json(b'{"a":"\\\\\\u0000"}', depth_max=64)
    (problem,) = refusal.value.problems
    assert (problem.path, problem.got) == ("$", "text with U+0000 (byte 8)")


@given(st.recursive(st.text("\0\\u0"), lambda below: st.dictionaries(st.text("\0\\u0"), below)))
def test_a_nul_is_found_in_the_text_as_in_the_value(value: Any) -> None:
    """The text is searched, because walking a value of 1 MiB takes a turn of 100 ms."""
    body = orjson.dumps(value)
    if _holds_nul(value):
        with pytest.raises(ServiceError):
            parse_json(body, depth_max=64)
    else:
        assert parse_json(body, depth_max=64) == value


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    return any("\0" in key or _holds_nul(member) for key, member in value.items())
