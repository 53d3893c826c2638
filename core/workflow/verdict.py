"""Judges an agent's HTTP reply: a result, an acceptance, or a failure and its kind.

Pure: takes bytes, returns the judgement. Only this module knows the reply formats of agents.

Order of the checks: 1. the size of the body; 2. redirects; 3. other HTTP statuses from 400;
4. the content coding, the JSON and its bounds; 5. `eventId`; 6. `status`, `error`,
`result`/`output` and `metrics`. A reply 202 is an acceptance unless its body has an error.
Reference: features.md (Dispatch, Agent interface), http.md (Errors).
"""

from __future__ import annotations

import codecs
import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from core.errors import NodeErrorCode
from core.json_bounds import DEPTH_MAX, is_deeper_than
from core.json_text import NotJson, UnreadNumber, read_foreign_json, write_json
from core.records.bounds import METRICS_BYTES_MAX
from core.schemas.json_defects import find_json_defect, find_nul
from core.timestamps import unix_ms
from core.wording import kind_of
from core.workflow.events import Failure, Verdict
from core.workflow.rules.retry import RETRY_AFTER_MS_MAX

MESSAGE_CHARS_MAX = 500
# Only this many characters of a foreign text are read for a message. Blanks among them are removed.
_READ_CHARS_MAX = 4 * MESSAGE_CHARS_MAX

# Temporary client errors. All other client errors are final for the agent.
_TOO_MANY_REQUESTS = 429
_SERVICE_UNAVAILABLE = 503
_RETRYABLE_CLIENT_ERRORS = frozenset({408, 425, _TOO_MANY_REQUESTS})
# HTTP statuses, and codes of the agent kit, by which an agent refuses the inputs explicitly.
_REFUSING_STATUSES: Final = frozenset({400, 413, 422})
_REFUSING_CODES: Final = frozenset({"MISSING_INPUT", "INVALID_INPUT"})
# Error codes of an agent that does not have the capability. The forms of its error texts follow
# below. `ID` in a form stands for the capability's id.
_UNKNOWN_CAPABILITY_CODES: Final = frozenset(
    {
        "UNKNOWN_CAPABILITY", "CAPABILITY_UNKNOWN", "UNSUPPORTED_CAPABILITY", "NO_SUCH_CAPABILITY",
        "CAPABILITY_UNSUPPORTED", "CAPABILITY_NOT_SUPPORTED", "CAPABILITY_NOT_FOUND",
        "CAPABILITY_NOT_OFFERED", "CAPABILITY_NOT_IMPLEMENTED",
    }
)  # fmt: skip
_UNKNOWN: Final = (
    r"(?:unknown|unsupported|unrecogni[sz]ed"
    r"|not (?:supported|found|known|offered|implemented|registered))"
)
_UNKNOWN_CAPABILITY_FORMS: Final = (
    rf"(?:{_UNKNOWN}|no such) capability\W{{0,4}}ID",
    rf"ID\W{{0,3}}(?:is |was )?(?:an? )?{_UNKNOWN}(?: capability)?(?! (?!by\b|here\b)\w)",
    r"(?:no handler for|(?:does not|doesn't) (?:support|offer|implement|know)) (?:capability )?ID",
    # A text without the id, or with the agent's own name for it, must contain nothing else.
    rf"\A(?:{_UNKNOWN}|no such) capability\W{{0,4}}(?:cap\.[\w.-]*+)?\W*\Z",
    rf"\A(?:the |this )?capability (?:is )?{_UNKNOWN}\W*\Z",
)
_DATE_CHARS_MAX: Final = 40
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Success(Struct, frozen=True):
    """The agent returned a result. Metrics, signature and key are not checked yet.

    `signature` is None if the result is not signed.
    """

    result: Any
    metrics: dict[str, Any] = field(default_factory=dict)
    signature: Any = None
    public_key: Any = None


class Accepted(Struct, frozen=True):
    """The agent works on the node and sends its result to `POST /v1/workflows/nodeResult`."""


def judge_reply(
    http_status: int,
    content_type: str,
    body: bytes | None,
    *,
    event_id: str,
    capability_id: str,
    retry_after: str | None = None,
    coding_problem: str | None = None,
    location: str | None = None,
    at_ms: int = 0,
) -> Success | Accepted | Failure:
    """Judge an agent's reply.

    Args:
        body: the whole body, or None when it was larger than the limit.
        event_id: the id of the attempt; `eventId` in the reply must be equal to it if present.
        capability_id: the capability of the node.
        retry_after: the value of the `Retry-After` header: seconds or an HTTP date. A longer delay
            than 30 s counts as 30 s.
        coding_problem: why the body could not be decoded (`body` is empty then), else None.
        location: the value of the `Location` header.
        at_ms: when the reply arrived, Unix milliseconds.

    Reference: features.md (Dispatch).
    """
    if body is None:
        return Failure(NodeErrorCode.RESULT_TOO_LARGE, "the reply is larger than the limit")
    if 300 <= http_status < 400:
        return _judge_redirect(http_status, location)
    if http_status >= 400:
        return _judge_http_error(http_status, body, retry_after, at_ms)
    is_accepted = http_status == 202
    unread = None
    try:
        if coding_problem is not None:
            raise ValueError(_clean_text(coding_problem))
        reply = _parse(body)
    except UnreadNumber as error:
        unread, reply = error, error.value
    except ValueError as error:
        if is_accepted:
            return Accepted()
        kind = _clean_text(content_type) or "no Content-Type"
        return _invalid_reply(f"HTTP {http_status} with {kind}: {error}")
    if unread is not None and reply is None:
        return _invalid_reply(_clean_text(str(unread)))
    if is_accepted and not (type(reply) is dict and _says_error(reply)):
        return Accepted()
    if type(reply) is not dict:
        return _invalid_reply(f"got {kind_of(reply)}, expected an object")
    # The depth is at most the number of brackets. Counting them is cheaper than walking the reply.
    if body.count(b"{") + body.count(b"[") > DEPTH_MAX and is_deeper_than(reply, DEPTH_MAX):
        return _invalid_reply(f"more than {DEPTH_MAX} levels, expected at most {DEPTH_MAX}")
    echoed = reply.get("eventId")
    if echoed is not None and echoed != event_id:
        return _invalid_reply(f"eventId {_described(echoed)!r}, expected {event_id!r}")
    verdict = _judge_object(reply, capability_id)
    if unread is not None and type(verdict) is not Failure:
        # JSON itself does not limit the digits of a number, so the agent is not to blame.
        return replace(_invalid_reply(_clean_text(str(unread))), is_spared=True)
    # PostgreSQL cannot store NUL. In the message of a failure, NUL is replaced already.
    if type(verdict) is Success and (defect := find_nul(body)) is not None:
        return _invalid_reply(defect)
    return verdict


def is_approved(result: Any) -> bool:
    """Say whether a verifier's result approves: `approved` or `valid` is exactly `true`."""
    return type(result) is dict and (result.get("approved") is True or result.get("valid") is True)


def find_verdict(result: Any) -> bool | None:
    """Return whether a verifier's result approves; None if it contains no verdict.

    A result without `approved` and `valid` contains no verdict. The node's result is then rejected,
    but its agent is not blamed.
    """
    is_said = type(result) is dict and ("approved" in result or "valid" in result)
    return is_approved(result) if is_said else None


def _parse(body: bytes) -> Any:
    """Return the JSON value of a body.

    Raises:
        UnreadNumber: a number in the body is beyond the bounds.
        ValueError: the body is not JSON; the message says why and where.
    """
    text = body.removeprefix(codecs.BOM_UTF8)
    try:
        return read_foreign_json(text)
    except UnreadNumber:
        raise
    except NotJson as error:
        raise ValueError(find_json_defect(text, str(error))) from None


def _says_error(reply: dict[str, Any]) -> bool:
    """Say whether a reply names an error. An empty, false or null `error` does not count."""
    return _status_of(reply) == "error" or bool(reply.get("error")) or reply.get("ok") is False


def _status_of(reply: dict[str, Any]) -> Any:
    status = reply.get("status")
    return status.lower() if type(status) is str else status


def _judge_object(reply: dict[str, Any], capability_id: str) -> Success | Accepted | Failure:
    status = _status_of(reply)
    has_error = bool(reply.get("error"))
    has_result = "result" in reply or "output" in reply
    if status in ("success", "ok") or (status is None and not has_error and has_result):
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
    if reply.get("ok") is True and reply.keys() <= {"ok", "eventId"}:
        return Accepted()
    if status == "error" or (status is None and _says_error(reply)):
        text, code = _error_of(reply)
        is_refusal = code in _REFUSING_CODES
        is_final = is_refusal or _names_unknown_capability(text, code, capability_id)
        return Failure(
            NodeErrorCode.AGENT_ERROR,
            f"the agent says: {text}",
            Verdict.FINAL_FOR_AGENT if is_final else Verdict.RETRYABLE,
            is_refusal=is_refusal,
        )
    if status is None:
        return _invalid_reply("expected a status or a result")
    return _invalid_reply(f"status {_described(status)!r}, expected success or error")


def _metrics_defect(metrics: dict[str, Any]) -> str | None:
    """Return why metrics cannot be stored, or None.

    If the metrics are too large, the whole reply is invalid. The metrics are not dropped, because
    the payment is computed from their token counts. Decision ledger-writer.
    """
    text = write_json(metrics)
    if len(text) > METRICS_BYTES_MAX:
        return f"got {len(text)} bytes, expected at most {METRICS_BYTES_MAX}"
    return None


def _judge_redirect(http_status: int, location: str | None) -> Failure:
    """Return the failure of a redirect. A moved agent is not to blame."""
    if location:
        place = f" to {_clean_text(location)!r}"
        advice = "redirects are not followed: register the new address"
    else:
        place, advice = " without a Location", "redirects are not followed"
    message = f"HTTP {http_status}{place}: {advice}"
    return Failure(NodeErrorCode.INVALID_REPLY, message, is_spared=True)


def _judge_http_error(
    http_status: int, body: bytes, retry_after: str | None, at_ms: int
) -> Failure:
    try:
        reply = _parse(body)
    except ValueError:
        reply = None
    message, code = f"HTTP {http_status}", ""
    if type(reply) is dict and (reply.get("error") or reply.get("code")):
        text, code = _error_of(reply)
        message += f": {text}"
    is_refusal = http_status in _REFUSING_STATUSES or code in _REFUSING_CODES
    # The agent is full and has not taken the work (money.md, Full agents).
    is_declined = http_status == _TOO_MANY_REQUESTS or (
        http_status == _SERVICE_UNAVAILABLE and bool(retry_after)
    )
    is_final = is_refusal or (http_status < 500 and http_status not in _RETRYABLE_CLIENT_ERRORS)
    return Failure(
        NodeErrorCode.AGENT_ERROR,
        message,
        Verdict.FINAL_FOR_AGENT if is_final else Verdict.RETRYABLE,
        retry_after_ms=0 if is_final else retry_after_ms(retry_after, at_ms),
        is_spared=is_declined,
        is_refusal=is_refusal,
        is_declined=is_declined and not is_final,
    )


def _error_of(reply: dict[str, Any]) -> tuple[str, str]:
    """Return the agent's error text, from any accepted shape, and its code in capitals.

    Without a code, the text is returned as the code, because some agents put the code there.
    """
    error = reply.get("error")
    code = reply.get("code")
    if type(error) is dict:
        code = error.get("code", code)
        error = error.get("message", code)
    text = _described(error) if error else "no reason"
    code_text = _clean_text(code) if type(code) is str else ""
    shown = f"{text} ({code_text})" if code_text and code_text != text else text
    return _clean_text(shown), (code_text or text).upper().replace("-", "_")


def _names_unknown_capability(text: str, code: str, capability_id: str) -> bool:
    """Say whether an error says that the agent does not have this capability.

    The error must be about this capability: an agent may also report an unknown host, an unknown
    file, or an unknown capability of another agent that it calls.
    """
    if code in _UNKNOWN_CAPABILITY_CODES:
        return True
    # Match only the whole id, in quotes or not: `cap.a.v1` must not match in `cap.a.v10`.
    named = rf"(?<![\w.-])['\"`<]?{re.escape(capability_id)}['\"`>]?(?![\w-]|\.\w)"
    return any(
        re.search(form.replace("ID", named), text, re.IGNORECASE)
        for form in _UNKNOWN_CAPABILITY_FORMS
    )


def retry_after_ms(header: str | None, at_ms: int) -> int:
    """Return the delay that a `Retry-After` asks for, ms; 0 if it is no number and no date."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        # Nine digits are enough, and bound the cost of the conversion.
        return min(int(text[:9]) * 1_000, RETRY_AFTER_MS_MAX)
    try:
        due = parsedate_to_datetime(text[:_DATE_CHARS_MAX])
    except (ValueError, OverflowError):
        return 0
    due_ms = unix_ms(due if due.tzinfo is not None else due.replace(tzinfo=UTC))
    return min(max(due_ms - at_ms, 0), RETRY_AFTER_MS_MAX)


def _described(value: Any) -> str:
    """Return a foreign value as one bounded line; an object or array only by its kind and size.

    The text of a deep object or array could exceed the stack: the depth is not checked here.
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
