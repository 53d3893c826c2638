"""Judges an agent's HTTP reply: a result, an acceptance, or a failure and its kind.

Pure: bytes in, judgement out. Only this module knows the dialects of agents.

Order of judgement: 1. a body that was too large; 2. redirects; 3. a refused or failed request by
HTTP status; 4. 202; 5. the content coding, JSON and its bounds; 6. `eventId`; 7. `status`, `error`,
`result`/`output`, `metrics`.
Spec: Dispatch response, Agent rules, Errors; contract.md section 5.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from core.errors import NodeErrorCode
from core.json_bounds import DEPTH_MAX, holds_nul, is_deeper_than
from core.json_text import NotJson, UnreadNumber, read_foreign_json, write_json
from core.records.bounds import METRICS_BYTES_MAX
from core.wording import kind_of
from core.workflow.events import Failure, Verdict
from core.workflow.rules.retry import RETRY_AFTER_MS_MAX

MESSAGE_CHARS_MAX = 500
# Of a foreign text that becomes a message: its start, with room for blanks that are left out.
_READ_CHARS_MAX = 4 * MESSAGE_CHARS_MAX

# Client errors that are temporary. All others are final for the agent.
_TOO_MANY_REQUESTS = 429
_RETRYABLE_CLIENT_ERRORS = frozenset({408, 425, _TOO_MANY_REQUESTS})
_UNKNOWN_CAPABILITY = re.compile(
    r"unknown|unsupported|not[ _](?:supported|found|known|offered|implemented)|no such|no handler",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Success(Struct, frozen=True):
    """The agent returned a result. `metrics`, signature and key are unchecked.

    `signature` None: the result is not signed.
    """

    result: Any
    metrics: dict[str, Any] = field(default_factory=dict)
    signature: Any = None
    public_key: Any = None


class Accepted(Struct, frozen=True):
    """The agent works on the node; the result follows by `POST /v1/workflows/nodeResult`."""


def judge_reply(
    http_status: int,
    content_type: str,
    body: bytes | None,
    *,
    event_id: str,
    capability_id: str,
    retry_after: str | None = None,
    coding_problem: str | None = None,
) -> Success | Accepted | Failure:
    """Judge an agent's reply.

    Args:
        body: the whole body, or None when it was larger than the limit.
        retry_after: the header's text; seconds count up to 30, dates are ignored.
        coding_problem: why the body could not be decoded (`body` is empty then), else None.

    Spec: Dispatch response; contract.md section 5 (reply, retry by HTTP status).
    """
    if body is None:
        return Failure(NodeErrorCode.RESULT_TOO_LARGE, "the reply is larger than the limit")
    if 300 <= http_status < 400:
        return _invalid_reply(f"HTTP {http_status}: redirects are not followed")
    if http_status >= 400:
        return _judge_http_error(http_status, body, retry_after)
    if http_status == 202:
        return Accepted()
    if coding_problem is not None:
        return _invalid_reply(_clean_text(coding_problem))
    try:
        reply = read_foreign_json(body)
    except UnreadNumber as error:
        # Its digits are bounded here, and nowhere in JSON: no fault of the agent's.
        return replace(_invalid_reply(_clean_text(str(error))), is_spared=True)
    except NotJson:
        return _invalid_reply(
            f"HTTP {http_status} with {_clean_text(content_type) or 'no type'}, not JSON"
        )
    if type(reply) is not dict:
        return _invalid_reply(f"got {kind_of(reply)}, expected an object")
    # The number of brackets bounds the depth; counting them is cheaper than walking the reply.
    if body.count(b"{") + body.count(b"[") > DEPTH_MAX and is_deeper_than(reply, DEPTH_MAX):
        return _invalid_reply(f"more than {DEPTH_MAX} levels, expected at most {DEPTH_MAX}")
    echoed = reply.get("eventId")
    if echoed is not None and echoed != event_id:
        return _invalid_reply(f"eventId {_described(echoed)!r}, expected {event_id!r}")
    return _judge_object(reply, capability_id)


def is_approved(result: Any) -> bool:
    """Say whether a verifier's result approves: `approved` or `valid` is true, exactly.

    contract.md section 5 (verification).
    """
    return type(result) is dict and (result.get("approved") is True or result.get("valid") is True)


def _judge_object(reply: dict[str, Any], capability_id: str) -> Success | Accepted | Failure:
    status = reply.get("status")
    error = reply.get("error")
    has_result = "result" in reply or "output" in reply
    if status in ("success", "ok") or (status is None and error is None and has_result):
        result = reply["result"] if "result" in reply else reply.get("output", {})
        metrics = reply.get("metrics")
        if type(metrics) is not dict:
            metrics = {}
        defect = _metrics_defect(metrics)
        if defect is not None:
            return _invalid_reply(f"metrics: {defect}")
        return Success(
            result,
            metrics,
            reply.get("signature"),
            reply.get("publicKey"),
        )
    if reply == {"ok": True}:
        return Accepted()
    if status == "error" or (status is None and (error is not None or reply.get("ok") is False)):
        text, code = _error_of(reply)
        verdict = Verdict.RETRYABLE
        if _names_unknown_capability(text, code, capability_id):
            verdict = Verdict.FINAL_FOR_AGENT
        return Failure(NodeErrorCode.AGENT_ERROR, f"the agent says: {text}", verdict)
    if status is None:
        return _invalid_reply("neither status nor result")
    return _invalid_reply(f"status {_described(status)!r}, expected success or error")


def _metrics_defect(metrics: dict[str, Any]) -> str | None:
    """Return why metrics cannot be stored, or None.

    The reply is refused, because the metrics carry the token counts that are paid and the agent
    must see the refusal. Decision 0105.
    """
    text = write_json(metrics)
    if len(text) > METRICS_BYTES_MAX:
        return f"got {len(text)} bytes, expected at most {METRICS_BYTES_MAX}"
    # An escaped backslash before "u0000" has the same bytes, so a match is checked again.
    if b"\\u0000" in text and holds_nul(metrics):
        return "got U+0000, expected text without it"
    return None


def _judge_http_error(http_status: int, body: bytes, retry_after: str | None) -> Failure:
    try:
        reply = read_foreign_json(body)
    except NotJson:
        reply = None
    message = f"HTTP {http_status}"
    if type(reply) is dict and reply.get("error") is not None:
        message += f": {_error_of(reply)[0]}"
    is_final = http_status < 500 and http_status not in _RETRYABLE_CLIENT_ERRORS
    return Failure(
        NodeErrorCode.AGENT_ERROR,
        message,
        Verdict.FINAL_FOR_AGENT if is_final else Verdict.RETRYABLE,
        retry_after_ms=0 if is_final else _retry_after_ms(retry_after),
        is_spared=http_status == _TOO_MANY_REQUESTS,
    )


def _error_of(reply: dict[str, Any]) -> tuple[str, str]:
    """Return the agent's error text and code, from any accepted shape."""
    error = reply.get("error")
    code = reply.get("code")
    if type(error) is dict:
        code = error.get("code", code)
        error = error.get("message", code)
    text = "no reason" if error is None else _described(error)
    code_text = _clean_text(code) if type(code) is str else ""
    shown = f"{text} ({code_text})" if code_text and code_text != text else text
    return _clean_text(shown), code_text


def _names_unknown_capability(text: str, code: str, capability_id: str) -> bool:
    if not _UNKNOWN_CAPABILITY.search(text):
        return False
    return capability_id in text or "capability" in text.lower() or "capability" in code.lower()


def _retry_after_ms(header: str | None) -> int:
    if header is None or not header.strip().isascii() or not header.strip().isdigit():
        return 0
    # The length bounds the number before it is converted.
    seconds = int(header.strip()[:9])
    return min(seconds * 1_000, RETRY_AFTER_MS_MAX)


def _described(value: Any) -> str:
    """Return a foreign value as one bounded line; of an object or array, what it is and its size.

    The depth of an error's value is not checked: its text could exceed the stack.
    """
    if type(value) is dict:
        return f"an object with {len(value)} members"
    if type(value) is list:
        return f"an array of {len(value)}"
    return _clean_text(str(value))


def _clean_text(text: str) -> str:
    """Return foreign text as one bounded line."""
    line = _CONTROL.sub(" ", text[:_READ_CHARS_MAX]).strip()
    return line if len(line) <= MESSAGE_CHARS_MAX else line[: MESSAGE_CHARS_MAX - 1] + "…"


def _invalid_reply(got: str) -> Failure:
    return Failure(NodeErrorCode.INVALID_REPLY, f"the agent's reply cannot be used: {got}")
