"""The errors of the client; each class requires a different reaction of the caller.

| Class | Reaction of the caller |
|---|---|
| AuthenticationError | use another key or signature |
| PermissionDenied | obtain the permission, such as a scope |
| NotFound | check the id; records of other callers are not found either |
| Conflict | read the record: its state has changed (settled, revoked, locked, finished) |
| InvalidRequest | correct the members that `errors` names |
| InsufficientCredits | deposit credits |
| RateLimited | wait `retry_after_s` |
| Unavailable | try later: the request changed nothing |
| OutcomeUnknown | repeat the request with its idempotency key, or read whether it was applied |
| WorkflowFailed | read `record`: the workflow ended without success |
| StillRunning | continue to wait: the workflow did not end in time |

A plain `CallboardError` is a defect of the service. The client raises errors after its last retry.
Reference: http.md (Errors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNREACHABLE = "UNREACHABLE"
NO_DEPLOYMENT = "NO_DEPLOYMENT"
STILL_RUNNING = "STILL_RUNNING"


class CallboardError(Exception):
    """The service refused a request, or could not be reached (`code` UNREACHABLE, `status` 0).

    Args:
        code: the service's error code.
        status: the HTTP status, 0 when no reply came.
        detail: one sentence for people.
        errors: every defect that the service found, each `{path, got, expected}`.
        request_id: the id of this request in the service's logs.
        retry_after_s: the reply's `Retry-After` in seconds, None if it is absent.
    """

    def __init__(
        self,
        code: str,
        status: int,
        detail: str,
        errors: tuple[Mapping[str, Any], ...] = (),
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        # All fields are in `args`, because unpickling calls the class with `args`.
        super().__init__(code, status, detail, errors, request_id, retry_after_s)
        self.code = code
        self.status = status
        self.detail = detail
        self.errors = errors
        self.request_id = request_id
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        places = [_sentence(error) for error in self.errors]
        if places and self.detail.endswith(places[0]):  # the detail already has the first defect
            del places[0]
        return "\n  ".join([f"{self.code}: {self.detail}", *places])


def _sentence(error: Mapping[str, Any]) -> str:
    place = "" if error.get("path") in ("", "$") else f"{error.get('path')}: "
    return f"{place}got {error.get('got')}, expected {error.get('expected')}"


class AuthenticationError(CallboardError):
    """The key or signature is missing, wrong, expired or revoked."""


class PermissionDenied(CallboardError):
    """The credential is valid, but does not permit this request."""


class NotFound(CallboardError):
    """The record does not exist, or the caller may not see it."""


class Conflict(CallboardError):
    """The record's state forbids the request, or the idempotency key belongs to another request."""


class InvalidRequest(CallboardError):
    """The request is malformed or cannot be fulfilled; `errors` names the members."""


class InsufficientCredits(CallboardError):
    """The wallet holds less than the workflow may cost."""


class RateLimited(CallboardError):
    """The caller sent too many requests, or has exhausted a quota."""


class Unavailable(CallboardError):
    """The service cannot be reached, or cannot serve now; the request changed nothing."""


class OutcomeUnknown(Unavailable):
    """A write got no conclusive reply, so it may or may not have been applied."""


class WorkflowFailed(CallboardError):
    """A workflow ended without success.

    Args:
        code: the error code of the workflow, else of the first failed node, else the workflow's
            status in upper case.
        status: 200, the status of the reply with the record.
        detail: one sentence for people.
        record: the workflow record.
    """

    def __init__(self, code: str, status: int, detail: str, record: Mapping[str, Any]) -> None:
        super().__init__(code, status, detail)
        self.args = (code, status, detail, record)
        self.record = record


class StillRunning(CallboardError):
    """A workflow did not end in the time that the caller wanted to wait."""


# The codes whose class is not the class of their HTTP status.
_BY_CODE: Mapping[str, type[CallboardError]] = {"INSUFFICIENT_CREDITS": InsufficientCredits}
_BY_STATUS: Mapping[int, type[CallboardError]] = {
    **dict.fromkeys((400, 405, 406, 413, 415, 422), InvalidRequest),
    401: AuthenticationError,
    403: PermissionDenied,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    429: RateLimited,
    **dict.fromkeys((502, 503, 504), Unavailable),
}
# After these statuses and codes, a write may have been applied: a proxy, or the service's wait for
# the ledger, has timed out.
_OPEN_STATUSES = frozenset({502, 504})
_OPEN_CODES = frozenset({"LEDGER_UNAVAILABLE"})


def error_class(code: str, status: int, *, is_write: bool) -> type[CallboardError]:
    """Return the error class for a refusal.

    Args:
        code: the service's error code.
        status: the HTTP status.
        is_write: whether the request may change something.
    """
    if is_write and (status in _OPEN_STATUSES or code in _OPEN_CODES):
        return OutcomeUnknown
    return _BY_CODE.get(code) or _BY_STATUS.get(status, CallboardError)
