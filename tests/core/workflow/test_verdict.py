"""Every dialect of agent replies. Spec: Dispatch response, Agent rules; contract.md section 5."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given

from core.errors import NodeErrorCode
from core.records.bounds import METRICS_BYTES_MAX
from core.workflow.events import Failure, Verdict
from core.workflow.verdict import Accepted, Success, is_approved, judge_reply

EVENT = "event-1"
CAPABILITY = "cap.text.sum.v1"


def judged(
    reply: Any, status: int = 200, retry_after: str | None = None
) -> Success | Accepted | Failure:
    body = reply if isinstance(reply, bytes) or reply is None else orjson.dumps(reply)
    return judge_reply(
        status,
        "application/json",
        body,
        event_id=EVENT,
        capability_id=CAPABILITY,
        retry_after=retry_after,
    )


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        ({"eventId": EVENT, "status": "success", "result": {"x": 1}}, {"x": 1}),
        ({"status": "ok", "result": {"x": 1}}, {"x": 1}),
        ({"status": "success", "output": {"x": 1}}, {"x": 1}),
        ({"result": {"x": 1}}, {"x": 1}),
        ({"output": [1]}, [1]),
        ({"ok": True, "result": {"x": 1}}, {"x": 1}),
        ({"eventId": None, "result": None}, None),
        ({"status": "success", "result": "text", "error": None}, "text"),
        ({"status": "success"}, {}),
    ],
)
def test_success(reply: dict[str, Any], result: Any) -> None:
    assert judged(reply) == Success(result)
    assert judged(reply, 201) == Success(result)


def test_metrics_are_kept_when_they_are_an_object() -> None:
    assert judged({"result": 1, "metrics": {"latency_ms": 3}}) == Success(1, {"latency_ms": 3})
    assert judged({"result": 1, "metrics": "fast"}) == Success(1)


def test_metrics_are_kept_up_to_their_bound() -> None:
    """As compact JSON in UTF-8, whatever spaces and escapes the agent sends."""
    room = METRICS_BYTES_MAX - len('{"model":"é"}'.encode())
    metrics = {"model": "é" + "m" * room}
    assert judged(json.dumps({"result": 1, "metrics": metrics}).encode()) == Success(1, metrics)
    failure = judged({"result": 1, "metrics": {"model": "é" + "m" * (room + 1)}})
    assert isinstance(failure, Failure)
    assert failure.code is NodeErrorCode.INVALID_REPLY
    assert failure.message.endswith("metrics: got 16385 bytes, expected at most 16384")


@pytest.mark.parametrize("metrics", [{"a": "\0"}, {"\0": 1}, {"a": [{"b": "x\0"}]}])
def test_metrics_with_a_text_that_the_database_refuses_are_invalid(metrics: dict[str, Any]) -> None:
    failure = judged({"result": 1, "metrics": metrics})
    assert isinstance(failure, Failure)
    assert failure.code is NodeErrorCode.INVALID_REPLY
    escaped = {"model": r"\u0000"}
    assert judged({"result": 1, "metrics": escaped}) == Success(1, escaped)


@pytest.mark.parametrize(
    ("reply", "status"), [({"ok": True}, 200), (b"", 202), ({"result": 1}, 202)]
)
def test_accepted(reply: Any, status: int) -> None:
    assert judged(reply, status) == Accepted()


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ({"eventId": "event-2", "status": "success", "result": {}}, 200),
        (b"<html>", 200),
        (b"", 200),
        (b"", 204),
        (b"[1]", 200),
        (b"NaN", 200),
        ({"status": "done", "result": 1}, 200),
        ({"hello": 1}, 200),
        ({}, 200),
        (b"", 301),
        ({"result": 1}, 307),
        (b'{"result":' + b"[" * 80 + b"]" * 80 + b"}", 200),
    ],
)
def test_invalid_reply_is_retryable(reply: Any, status: int) -> None:
    failure = judged(reply, status)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INVALID_REPLY, Verdict.RETRYABLE)


def test_too_large_reply_is_retryable() -> None:
    failure = judged(None)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.RESULT_TOO_LARGE, Verdict.RETRYABLE)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 422])
def test_client_error_is_final_for_this_agent(status: int) -> None:
    failure = judged({"eventId": EVENT, "status": "error", "error": "bad input"}, status, "9")
    assert failure == Failure(
        NodeErrorCode.AGENT_ERROR, f"HTTP {status}: bad input", Verdict.FINAL_FOR_AGENT
    )


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_error_is_retryable_and_honours_retry_after(status: int) -> None:
    failure = judged({"error": "later", "code": "BUSY"}, status, "7")
    assert isinstance(failure, Failure)
    assert (failure.verdict, failure.retry_after_ms) == (Verdict.RETRYABLE, 7_000)
    assert failure.message == f"HTTP {status}: later (BUSY)"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, 0),
        ("3600", 30_000),
        ("9" * 5_000, 30_000),
        ("-1", 0),
        ("1.5", 0),
        ("²", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 0),
    ],
)
def test_retry_after(header: str | None, wanted: int) -> None:
    failure = judged(b"", 503, header)
    assert isinstance(failure, Failure)
    assert failure.retry_after_ms == wanted


@pytest.mark.parametrize(
    "reply",
    [
        {"status": "error", "error": "out of memory"},
        {"error": "boom"},
        {"ok": False},
        {"status": "error"},
        {"status": "error", "error": {"message": "boom", "code": "E1"}},
        {"status": "error", "error": "file not found"},
    ],
)
def test_error_with_http_200_is_retryable(reply: dict[str, Any]) -> None:
    failure = judged(reply)
    assert isinstance(failure, Failure)
    assert (failure.code, failure.verdict) == (NodeErrorCode.AGENT_ERROR, Verdict.RETRYABLE)


@pytest.mark.parametrize(
    "reply",
    [
        {"eventId": EVENT, "status": "error", "error": f"Unknown capability: {CAPABILITY}"},
        {"status": "error", "error": f"{CAPABILITY} is not supported"},
        {"status": "error", "error": {"message": "unsupported", "code": "CAPABILITY_UNKNOWN"}},
    ],
)
def test_unknown_capability_with_http_200_is_final_for_this_agent(reply: dict[str, Any]) -> None:
    failure = judged(reply)
    assert isinstance(failure, Failure)
    assert failure.verdict is Verdict.FINAL_FOR_AGENT


def test_foreign_text_is_one_bounded_line() -> None:
    failure = judged({"status": "error", "error": "a\n\x00b" + "c" * 9_999})
    assert isinstance(failure, Failure)
    assert failure.message.startswith("the agent says: a b")
    assert len(failure.message) < 600


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ({"approved": True}, True),
        ({"valid": True}, True),
        ({"approved": False, "valid": True}, True),
        ({"approved": "true"}, False),
        ({"approved": 1}, False),
        ({}, False),
        ([True], False),
        (True, False),
        (None, False),
    ],
)
def test_approval(result: Any, wanted: bool) -> None:
    assert is_approved(result) is wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
MEMBERS = st.sampled_from(["status", "error", "result", "output", "eventId", "ok", "code"])


@given(status=st.integers(100, 599), body=st.binary(max_size=50) | st.none())
def test_any_bytes_get_a_judgement(status: int, body: bytes | None) -> None:
    assert isinstance(judged(body, status), Success | Accepted | Failure)


@given(status=st.integers(100, 599), reply=st.dictionaries(MEMBERS, JSON))
def test_any_object_gets_a_judgement(status: int, reply: dict[str, Any]) -> None:
    verdict = judged(reply, status)
    assert not (status >= 300 and isinstance(verdict, Success | Accepted))


@pytest.mark.parametrize("opening", ["[", '{"k":'])
def test_depth_of_a_reply_is_bounded_exactly(opening: str) -> None:
    closing = "]" if opening == "[" else "}"

    def reply(depth: int) -> bytes:
        return ('{"result":' + opening * depth + "1" + closing * depth + "}").encode()

    assert isinstance(judged(reply(63)), Success)
    assert isinstance(judged(reply(64)), Failure)


def test_judging_a_reply_takes_no_step_for_each_value_and_no_text_for_each_path() -> None:
    """Half a million numbers below a long key were as many texts, and held an owner for seconds."""
    key = "k" * 40_000
    body = orjson.dumps({"result": {key: [0] * 20_000, "b": [[]] * 66}})
    tracemalloc.start()
    steps = line_steps(lambda: judged(body))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert steps < 1_000
    assert peak < 50 * len(key)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("member", ["error", "eventId", "status"])
def test_foreign_values_are_described_without_their_text(member: str, status: int) -> None:
    """An error of 1,000 levels exceeded the stack, and one of 1 MiB was written out whole."""
    deep = b"[" * 1_000 + b"]" * 1_000
    failure = judged(b'{"%s":%s}' % (member.encode(), deep), status)
    assert isinstance(failure, Failure)
    wide = judged({member: [0] * 100_000}, status)
    assert isinstance(wide, Failure)
    assert len(wide.message) < 600


def line_steps(work: Callable[[], object]) -> int:
    """Return how many lines of Python a work executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
