"""Requests as data (`Call`), the operations that yield them, and the rules for retrying them.

Rules of this file: no I/O and no choice of HTTP library. An operation is a generator that yields
`Call`s, receives a `Reply` for each and returns the JSON of the result. `transport.py` runs the
generator, in the blocking or the asynchronous client. Reference: http.md (Endpoints).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec
from urllib.parse import quote

from callboard.errors import (
    UNREACHABLE,
    CallboardError,
    OutcomeUnknown,
    Unavailable,
    error_class,
)
from core.records.api.shape import Json

P = ParamSpec("P")

ATTEMPTS_MAX = 5
RETRY_DELAY_S_MAX = 30.0
PREFER_WAIT_S_MAX = 60
AUDIT_PAGE = 1000
_FIRST_RETRY_DELAY_S = 0.2
# The largest share by which a random jitter lengthens a pause. Without jitter, callers that were
# refused at the same time would also retry at the same time.
_JITTER_SHARE = 0.5
_RETRIED_STATUSES = frozenset({429, 502, 503, 504})
# A quota stays exceeded until its day ends. No retry delay is so long, so there is no retry.
_LASTING_CODES = frozenset({"QUOTA_EXCEEDED"})


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request.

    Args:
        repeatable: sending the request twice has the same effect as sending it once. This holds for
            reads, and for writes that carry an idempotency key or replace a record.
        wait_s: how long the service may hold its reply, in seconds.
        pause_s: how long the client waits before it sends the request, in seconds.
        is_limited: the pause is for a rate limit.
        any_status: a reply with an error status is a result too, not an error.
        done: the result's body for a repeated attempt that gets 404, if an earlier attempt may have
            removed the record; None: the 404 is an error.
    """

    method: str
    path: str
    query: Mapping[str, str | float] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    wait_s: float = 0.0
    pause_s: float = 0.0
    is_limited: bool = False
    any_status: bool = False
    done: Json | None = None

    @property
    def is_write(self) -> bool:
        """Whether the request may change something."""
        return self.method != "GET"


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP reply with its JSON body; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class NoReply:
    """A request without a reply, because the connection failed.

    `sent` is true if the request may have reached the service.
    """

    reason: str
    sent: bool


Steps = Generator[Call, Reply, Json]
Attempts = Generator[Call, Reply | NoReply, Json]


def with_retries(
    steps: Steps,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    jitter: Callable[[], float] = random.random,
) -> Attempts:
    """Run an operation, and retry each of its calls where a retry is safe.

    Args:
        steps: the operation.
        attempts_max: the most times that one call is sent.
        jitter: returns a random number from 0 to 1, which lengthens a pause; see `retry_delay_s`.

    Raises:
        CallboardError: the service refused a call, or could not be reached.
    """
    try:
        call = next(steps)
        while True:
            call = steps.send((yield from _answered(call, attempts_max, jitter)))
    except StopIteration as end:
        result: Json = end.value
        return result


def _answered(
    call: Call, attempts_max: int, jitter: Callable[[], float]
) -> Generator[Call, Reply | NoReply, Reply]:
    attempt, is_open, may_be_done = 1, False, False
    while True:
        outcome = yield call
        # A write without a reply may have been applied. This stays open whatever later attempts do.
        is_open = is_open or (call.is_write and isinstance(outcome, NoReply) and outcome.sent)
        if may_be_done and call.done is not None and _is_nothing_left(outcome):
            return Reply(200, {}, dict(call.done))
        may_be_done = may_be_done or _may_have_worked(outcome)
        delay_s = retry_delay_s(call, attempt, outcome, jitter=jitter())
        if delay_s is None or attempt >= attempts_max:
            break
        attempt += 1
        is_limited = isinstance(outcome, Reply) and outcome.status == 429
        call = replace(call, pause_s=delay_s, is_limited=is_limited)
    if isinstance(outcome, NoReply):
        raise (OutcomeUnknown if is_open else Unavailable)(UNREACHABLE, 0, outcome.reason)
    if _is_not_ready(outcome):
        raise Unavailable(UNREACHABLE, outcome.status, "the service is not ready yet")
    is_redirect = 300 <= outcome.status < 400
    is_answer = outcome.status < 300 or (call.any_status and not is_redirect)
    if is_answer and isinstance(outcome.body, dict):
        return outcome
    raise error_from(outcome, is_write=call.is_write)


def retry_delay_s(
    call: Call, attempt: int, outcome: Reply | NoReply, *, jitter: float = 0.0
) -> float | None:
    """Return the seconds to wait before a call is sent again; None: do not send it again.

    Args:
        call: the call that was sent.
        attempt: how many times the call has been sent, at least 1.
        outcome: the outcome of the latest attempt.
        jitter: 0 to 1; 0 gives the shortest pause, 1 gives 1.5 times this pause.
    """
    if attempt >= ATTEMPTS_MAX:
        return None
    delay_s = _FIRST_RETRY_DELAY_S * 2.0 ** (attempt - 1)
    longer = 1.0 + _JITTER_SHARE * jitter
    if isinstance(outcome, NoReply):
        return delay_s * longer if call.repeatable or not outcome.sent else None
    if _is_not_ready(outcome):
        return delay_s * longer
    if outcome.status not in _RETRIED_STATUSES or call.any_status or not call.repeatable:
        return None
    if _code(outcome) in _LASTING_CODES:
        return None
    return min(max(delay_s, _retry_after_s(outcome) or 0.0) * longer, RETRY_DELAY_S_MAX)


def _retry_after_s(reply: Reply) -> float | None:
    asked = reply.headers.get("retry-after", "")
    return float(asked) if asked.isdecimal() else None


def _code(reply: Reply) -> str:
    problem = reply.body if isinstance(reply.body, dict) else {}
    return str(problem.get("code") or problem.get("error") or f"HTTP_{reply.status}")


def _may_have_worked(outcome: Reply | NoReply) -> bool:
    if isinstance(outcome, NoReply):
        return outcome.sent
    return outcome.status >= 500


def _is_nothing_left(outcome: Reply | NoReply) -> bool:
    return isinstance(outcome, Reply) and outcome.status == 404 and _code(outcome) == "NOT_FOUND"


def _is_not_ready(reply: Reply) -> bool:
    """Say whether a proxy sent this 404: a 404 of the service itself has a JSON body."""
    return reply.status == 404 and reply.body is None


def error_from(reply: Reply, *, is_write: bool = False) -> CallboardError:
    """Return the error for a refusal.

    A body that is not problem details, such as a proxy's page, gives an error that names the
    status.
    """
    problem = reply.body if isinstance(reply.body, dict) else {}
    code = _code(reply)
    detail = problem.get("detail") or problem.get("message") or problem.get("title")
    if 300 <= reply.status < 400:
        location = reply.headers.get("location", "nowhere")[:200]
        code = f"HTTP_{reply.status}"
        detail = f"the service answered with a redirect to {location}, which is not followed"
    return error_class(code, reply.status, is_write=is_write)(
        code,
        reply.status,
        str(detail or f"the service answered with status {reply.status}"),
        tuple(error for error in problem.get("errors") or () if isinstance(error, dict)),
        problem.get("requestId") or reply.headers.get("x-request-id"),
        _retry_after_s(reply),
    )


def single(call: Call) -> Steps:
    """Return the steps of an operation of one call; the body of its reply is the result."""
    reply = yield call
    assert isinstance(reply.body, dict), "the driver lets JSON objects through only"
    return reply.body


def post(path: str, /, **members: Any) -> Steps:
    """Return the steps of a POST with a new idempotency key; members that are None are left out."""
    body = {name: value for name, value in members.items() if value is not None}
    return single(Call("POST", path, body=body, headers=keyed(None)))


def segment(value: str) -> str:
    """Return a value quoted for a segment of a URL path."""
    return quote(value, safe=":")


def keyed(idempotency_key: str | None) -> dict[str, str]:
    """Return the header with an idempotency key; None makes a new key."""
    return {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}


def publish(
    client: object,
    manifest: Mapping[str, Any],
    *,
    wait_s: float | None = None,
    idempotency_key: str | None = None,
) -> Steps:
    """Publish a workflow; safe to retry, because every call carries an idempotency key.

    Args:
        manifest: the workflow manifest.
        wait_s: the longest time, at most 60 seconds, for which the service holds its reply until
            the workflow ends. If it ends in time, the reply contains the finished record.
        idempotency_key: the key to use instead of a new one.

    Reference: features.md (Workflows).
    """
    headers = keyed(idempotency_key)
    held_s = min(wait_s or 0.0, PREFER_WAIT_S_MAX)
    if held_s > 0:
        headers["Prefer"] = f"wait={held_s:g}"
    path = "/v1/workflows/publish"
    return single(Call("POST", path, body=dict(manifest), headers=headers, wait_s=held_s))
