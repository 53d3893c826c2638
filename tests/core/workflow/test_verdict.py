"""Every dialect of agent replies. Reference: features.md (Dispatch, Agent interface)."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import given

from core.errors import NodeErrorCode
from core.records.bounds import METRICS_BYTES_MAX
from core.workflow.events import Failure, Verdict
from core.workflow.verdict import Accepted, Success, find_verdict, is_approved, judge_reply
from tests.costs import line_steps, peak_bytes

EVENT = "event-1"
CAPABILITY = "cap.text.sum.v1"
# Wed, 21 Oct 2026 07:27:53 GMT.
AT_MS = 1_792_567_673_000


def judged(
    reply: Any, status: int = 200, retry_after: str | None = None, location: str | None = None
) -> Success | Accepted | Failure:
    body = reply if isinstance(reply, bytes) or reply is None else orjson.dumps(reply)
    return judge_reply(
        status,
        "application/json",
        body,
        event_id=EVENT,
        capability_id=CAPABILITY,
        retry_after=retry_after,
        location=location,
        at_ms=AT_MS,
    )


def failed(reply: Any, status: int = 200, **headers: str | None) -> Failure:
    """Judge a reply that must be a failure."""
    failure = judged(reply, status, **headers)
    assert isinstance(failure, Failure), failure
    return failure


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        ({"status": "success", "output": {"x": 1}}, {"x": 1}),
        ({"output": [1]}, [1]),
        ({"ok": True, "result": {"x": 1}}, {"x": 1}),
        ({"eventId": None, "result": None}, None),
        ({"status": "success", "result": "text", "error": None}, "text"),
        ({"status": "success"}, {}),
        ({"error": "", "result": 1}, 1),
        ({"error": False, "output": 1}, 1),
        ({"error": None, "ok": True, "result": 1}, 1),
        ({"error": {}, "result": 1}, 1),
        ({"status": "OK", "error": "", "result": 1}, 1),
        ({"status": "Success", "result": 1}, 1),
        (b'\xef\xbb\xbf{"result": 1}', 1),
        (b'\xef\xbb\xbf \r\n\t{"result": 1}\n', 1),
    ],
)
def test_success(reply: Any, result: Any) -> None:
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
    failure = failed({"result": 1, "metrics": {"model": "é" + "m" * (room + 1)}})
    assert failure.code is NodeErrorCode.INVALID_REPLY
    assert failure.message.endswith("metrics: got 16385 bytes, expected at most 16384")


@pytest.mark.parametrize("metrics", [{"a": "\0"}, {"\0": 1}, {"a": [{"b": "x\0"}]}])
def test_metrics_with_a_text_that_the_database_refuses_are_invalid(metrics: dict[str, Any]) -> None:
    failure = failed({"result": 1, "metrics": metrics})
    assert failure.code is NodeErrorCode.INVALID_REPLY
    escaped = {"model": r"\u0000"}
    assert judged({"result": 1, "metrics": escaped}) == Success(1, escaped)


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ({"ok": True}, 200),
        ({"ok": True, "eventId": EVENT}, 200),
        ({"ok": True, "eventId": None}, 200),
        (b'\xef\xbb\xbf{"ok":true}', 200),
        (b"", 202),
        (b"<html>", 202),
        ([1], 202),
        ({"result": 1}, 202),
        ({"status": "accepted", "error": ""}, 202),
    ],
)
def test_accepted(reply: Any, status: int) -> None:
    assert judged(reply, status) == Accepted()


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (b"<html>", 200),
        (b"", 200),
        (b"", 204),
        (b"[1]", 200),
        (b"NaN", 200),
        ({"status": "done", "result": 1}, 200),
        ({"ok": True, "eventId": "event-2"}, 200),
        ({"ok": True, "note": "soon"}, 200),
        ({"ok": 1}, 200),
        ({"error": ""}, 200),
        ({}, 200),
        (b"", 301),
        ({"result": 1}, 307),
        (b'{"result":' + b"[" * 80 + b"]" * 80 + b"}", 200),
    ],
)
def test_invalid_reply_is_retryable(reply: Any, status: int) -> None:
    failure = failed(reply, status)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INVALID_REPLY, Verdict.RETRYABLE)


def test_too_large_reply_is_retryable() -> None:
    failure = failed(None)
    assert (failure.code, failure.verdict) == (NodeErrorCode.RESULT_TOO_LARGE, Verdict.RETRYABLE)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422])
def test_client_error_is_final_for_this_agent(status: int) -> None:
    failure = judged({"eventId": EVENT, "status": "error", "error": "bad input"}, status, "9")
    assert failure == Failure(
        NodeErrorCode.AGENT_ERROR,
        f"HTTP {status}: bad input",
        Verdict.FINAL_FOR_AGENT,
        is_refusal=status in (400, 413, 422),
    )


@pytest.mark.parametrize("status", [200, 202, 400, 500])
@pytest.mark.parametrize(
    "reply",
    [
        {"status": "error", "error": "no url", "code": "MISSING_INPUT"},
        {"status": "error", "error": {"message": "no url", "code": "INVALID_INPUT"}},
        {"error": "invalid-input"},
        {"ok": False, "code": "INVALID_INPUT"},
    ],
)
def test_a_refusal_of_the_inputs_by_its_code_is_final_for_this_agent(
    reply: dict[str, Any], status: int
) -> None:
    failure = failed(reply, status)
    assert (failure.verdict, failure.is_refusal) == (Verdict.FINAL_FOR_AGENT, True)


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308])
def test_a_redirect_names_its_location_and_costs_the_agent_nothing(status: int) -> None:
    failure = failed(b"", status, location="https://new.example/node/\r\n\x1b" + "x" * 9_999)
    assert (failure.code, failure.is_spared) == (NodeErrorCode.INVALID_REPLY, True)
    assert f"HTTP {status} to 'https://new.example/node/ x" in failure.message
    assert len(failure.message) < 700
    unnamed = failed(b"", status)
    assert "without a Location" in unnamed.message


SAID = b'{"status": "success",\n  "result": {"t": '


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (b"NaN}}", "NaN is no value at line 2 column 19"),
        (b'["NaN", -Infinity]}}', "-Infinity is no value at line 2 column 27"),
        (rb'"a\ud83d"}}', "half a surrogate pair at line 2 column 21"),
        (rb'"\ud83d\ude00 \ude00"}}', "half a surrogate pair at line 2 column 33"),
        (b'"caf\xe9"}}', "not UTF-8, byte 0xe9 at line 2 column 23"),
        (b'"a\tb"}}', "invalid control character at line 2 column 21"),
        (b'"a\nb"}}', "invalid control character at line 2 column 21"),
        (b'"a\x00b"}}', "invalid control character at line 2 column 21"),
        (rb'"a\u0000"}}', "U+0000 in a text at line 2 column 21"),
        (rb'1}, "\u0000": 1}', "U+0000 in a text at line 2 column 24"),
        (b"1}} tail", "extra data at line 2 column 23"),
        (b"1}", "at line 2 column 21"),
        (b'"a', "unterminated string starting at line 2 column 19"),
        (b"'a'}}", "expecting value at line 2 column 19"),
        (b"01}}", "at line 2 column 20"),
        (b"1,}}", "at line 2 column 21"),
    ],
)
def test_a_reply_that_is_not_json_is_refused_with_reason_and_place(
    rest: bytes, reason: str
) -> None:
    failure = failed(SAID + rest)
    assert (failure.code, failure.verdict) == (NodeErrorCode.INVALID_REPLY, Verdict.RETRYABLE)
    assert reason in failure.message
    marked = failed(b"\xef\xbb\xbf" + SAID + rest)
    assert reason in marked.message, "the byte order mark is no column"


@pytest.mark.parametrize(
    ("rest", "code", "is_spared"),
    [
        (b'"result": %s}' % (b"7" * 200), NodeErrorCode.INVALID_REPLY, True),
        (b'"result": 1e999}', NodeErrorCode.INVALID_REPLY, False),
        (
            b'"status": "error", "error": "no", "z": %s}' % (b"7" * 200),
            NodeErrorCode.AGENT_ERROR,
            False,
        ),
        (b'"status": "error", "error": "no", "z": 1e999}', NodeErrorCode.INVALID_REPLY, False),
    ],
)
def test_a_long_integer_spares_no_reply_that_would_fail_without_it(
    rest: bytes, code: NodeErrorCode, is_spared: bool
) -> None:
    """An agent added one to each of its errors, and lost neither stake nor reputation."""
    failure = failed(b"{" + rest)
    assert (failure.code, failure.is_spared) == (code, is_spared)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON: empty"),
        (b"\xef\xbb\xbf \n", "not JSON: empty"),
        ("{}".encode("utf-16"), "not UTF-8, byte 0xff at line 1 column 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"result": ' + b"9" * 1_000_000 + b"}x", "extra data at line 1 column 1000013"),
    ],
)
def test_any_body_is_refused_with_a_bounded_reason(body: bytes, reason: str) -> None:
    failure = failed(body)
    assert failure.message.startswith(
        "the agent's reply cannot be used: HTTP 200 with application/json: "
    )
    assert reason in failure.message
    assert len(failure.message) < 300


def test_an_escaped_backslash_before_u0000_is_text() -> None:
    assert judged(rb'{"result": "\\u0000 \\\\u0000 \\ud800"}') == Success(r"\u0000 \\u0000 \ud800")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_error_is_retryable_and_honours_retry_after(status: int) -> None:
    failure = failed({"error": "later", "code": "BUSY"}, status, retry_after="7")
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
        (" 5 ", 5_000),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 7_000),
        ("Wednesday, 21-Oct-26 07:28:00 GMT", 7_000),
        ("Wed Oct 21 07:28:00 2026", 7_000),
        ("Sun Nov  1 07:28:00 2026", 30_000),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 30_000),
        ("Wed, 21 Oct 2026 07:28:00 +0200", 0),
        ("Wed, 32 Oct 2026 07:28:00 GMT", 0),
        ("x" * 99_999, 0),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after(header: str | None, wanted: int, status: int) -> None:
    assert failed(b"", status, retry_after=header).retry_after_ms == wanted


@pytest.mark.parametrize(
    "reply",
    [
        {"ok": False},
        {"status": "error"},
        {"status": "error", "error": {"message": "boom", "code": "E1"}},
        {"status": "error", "error": "file not found"},
        {"status": "error", "error": f"{CAPABILITY} failed: unknown error, please retry"},
        {"status": "error", "error": f"{CAPABILITY}: unknown host db.internal"},
        {"status": "error", "error": "unknown capability service host"},
        {"status": "error", "error": "the helper said: unknown capability cap.other.v1"},
        {"status": "error", "error": f"the helper said: unknown capability {CAPABILITY}0"},
        {"status": "error", "error": f"unknown capability my.{CAPABILITY}"},
        {"status": "error", "error": f"{CAPABILITY} is not supported at night", "code": "E1"},
        {"status": "error", "error": "boom", "code": "NOT_FOUND"},
        {"status": "ERROR", "error": "boom"},
    ],
)
def test_error_with_http_200_is_retryable(reply: dict[str, Any]) -> None:
    failure = failed(reply)
    assert (failure.code, failure.verdict) == (NodeErrorCode.AGENT_ERROR, Verdict.RETRYABLE)


@pytest.mark.parametrize(
    "reply",
    [
        {"eventId": EVENT, "status": "error", "error": f"Unknown capability: {CAPABILITY}"},
        {"status": "error", "error": f"{CAPABILITY} is not supported"},
        {"status": "error", "error": {"message": "unsupported", "code": "CAPABILITY_UNKNOWN"}},
        {"status": "error", "error": "sorry", "code": "unknown_capability"},
        {"status": "error", "error": "UNKNOWN_CAPABILITY"},
        {"error": f'ValueError: No such capability "{CAPABILITY}".'},
        {"error": f"Unsupported capability {CAPABILITY.upper()}"},
        {"error": f"{CAPABILITY} is an unknown capability here"},
        {"error": f"{CAPABILITY}: not implemented"},
        {"error": f"no handler for {CAPABILITY}"},
        {"error": f"this agent does not offer capability {CAPABILITY}"},
        {"error": "Unknown capability 'cap.text.sum'"},
        {"error": "capability not supported"},
    ],
)
def test_unknown_capability_with_http_200_is_final_for_this_agent(reply: dict[str, Any]) -> None:
    assert failed(reply).verdict is Verdict.FINAL_FOR_AGENT


def test_foreign_text_is_one_bounded_line() -> None:
    failure = failed({"status": "error", "error": "a\n\x00b" + "c" * 9_999})
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
    is_said = type(result) is dict and bool(result)
    assert find_verdict(result) is (wanted if is_said else None)


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
    assert line_steps(lambda: judged(body)) < 1_000
    assert peak_bytes(lambda: judged(body)) < 50 * len(key)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("member", ["error", "eventId", "status"])
def test_foreign_values_are_described_without_their_text(member: str, status: int) -> None:
    """An error of 1,000 levels exceeded the stack, and one of 1 MiB was written out whole."""
    deep = b"[" * 1_000 + b"]" * 1_000
    failed(b'{"%s":%s}' % (member.encode(), deep), status)
    assert len(failed({member: [0] * 100_000}, status).message) < 600


@pytest.mark.parametrize(
    ("status", "body", "retry_after", "is_declined"),
    [
        (429, b"", None, True),
        (503, b"", "2", True),
        (503, b"", "soon", True),
        (503, b"", None, False),
        (500, b"", "2", False),
        (503, b'{"error": "x", "code": "MISSING_INPUT"}', "2", False),
    ],
)
def test_rule_5_an_agent_declines_with_429_or_503_with_a_time(
    status: int, body: bytes, retry_after: str | None, is_declined: bool
) -> None:
    failure = judge_reply(
        status, "application/json", body, event_id="e", capability_id="c", retry_after=retry_after
    )
    assert isinstance(failure, Failure)
    assert failure.is_declined == is_declined
    assert failure.is_spared or not is_declined
