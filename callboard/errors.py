"""What can go wrong, as one class per way a caller can react.

| Class | What a caller does |
|---|---|
| AuthenticationError | give another key |
| PermissionDenied | ask for a right |
| NotFound | check the id; what belongs to others is not found either |
| Conflict | read the record: it has moved on (settled, revoked, locked, finished) |
| InvalidRequest | correct what `errors` names |
| InsufficientCredits | deposit |
| RateLimited | wait `retry_after_s` |
| Unavailable | try later: nothing has happened |
| OutcomeUnknown | send the same again with its idempotency key, or look: it may have happened |
| WorkflowFailed | read `record`: the workflow ended without success |
| StillRunning | wait on: the workflow has not ended in the time given |

Anything else is a plain `CallboardError`: a defect of the service. Retries are over by then.
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
        errors: every defect the service found, each `{path, got, expected}`.
        request_id: the service's name for this request, for its logs.
        retry_after_s: seconds after which the service asks to try again, None when it does not say.
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
        # Everything in args: pickling calls the class with them again.
        super().__init__(code, status, detail, errors, request_id, retry_after_s)
        self.code = code
        self.status = status
        self.detail = detail
        self.errors = errors
        self.request_id = request_id
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        places = [_sentence(error) for error in self.errors]
        if places and self.detail.endswith(places[0]):  # the service's detail ends with the first
            del places[0]
        return "\n  ".join([f"{self.code}: {self.detail}", *places])


def _sentence(error: Mapping[str, Any]) -> str:
    place = "" if error.get("path") in ("", "$") else f"{error.get('path')}: "
    return f"{place}got {error.get('got')}, expected {error.get('expected')}"


class AuthenticationError(CallboardError):
    """The key or signature is missing, wrong, expired or revoked."""


class PermissionDenied(CallboardError):
    """The key is valid and may not do this."""


class NotFound(CallboardError):
    """There is no such thing for this caller."""


class Conflict(CallboardError):
    """The record's state does not allow it any more, or the idempotency key has another body."""


class InvalidRequest(CallboardError):
    """The request cannot be understood or fulfilled as it is; `errors` names the places."""


class InsufficientCredits(CallboardError):
    """The wallet does not hold what the workflow may cost."""


class RateLimited(CallboardError):
    """Too many requests, or a quota is used up."""


class Unavailable(CallboardError):
    """The service cannot be reached or cannot do it now; the request has changed nothing."""


class OutcomeUnknown(Unavailable):
    """No answer came to a request that changes something: it may have happened."""


class WorkflowFailed(CallboardError):
    """A workflow has ended and did not succeed.

    `code` is the error code of the workflow, else of its first node with one, else its status.

    Args:
        code: why.
        status: 200, that of the reply with the record.
        detail: one sentence for people.
        record: the workflow record.
    """

    def __init__(self, code: str, status: int, detail: str, record: Mapping[str, Any]) -> None:
        super().__init__(code, status, detail)
        self.args = (code, status, detail, record)
        self.record = record


class StillRunning(CallboardError):
    """A workflow has not ended in the time that the caller wanted to wait."""


# Codes that ask for another reaction than their status does.
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
# After these a write may have happened: a proxy gave up, or the ledger did not answer in time.
_OPEN_STATUSES = frozenset({502, 504})
_OPEN_CODES = frozenset({"LEDGER_UNAVAILABLE"})


def error_class(code: str, status: int, *, is_write: bool) -> type[CallboardError]:
    """Return the class for a refusal.

    Args:
        code: the service's error code.
        status: the HTTP status.
        is_write: whether the request changes something.
    """
    if is_write and (status in _OPEN_STATUSES or code in _OPEN_CODES):
        return OutcomeUnknown
    return _BY_CODE.get(code) or _BY_STATUS.get(status, CallboardError)
