"""Maps each `ErrorCode` to an HTTP status, and builds problem-details bodies (RFC 9457).

A body contains only information that the caller can act on. It never contains a stack trace, a
file path or a secret.
"""

from __future__ import annotations

import json
from typing import Any, Final

from core.errors import PROBLEMS_MAX, ErrorCode, ServiceError

# The default of `Retry-After`, in seconds, for a temporary refusal.
RETRY_AFTER_S: Final = 1

PROBLEM_TYPE = b"application/problem+json"
# HAProxy replaces unknown methods by this method. HTTP servers know it, but no operation has it. So
# a replica refuses the request with problem details. A server's refusal of an unknown method would
# be plain text.
UNKNOWN_METHOD = "UNLINK"

STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.INVALID_MANIFEST: 400,
    ErrorCode.BUDGET_REQUIRED: 400,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.INVALID_SIGNATURE: 401,
    # The specification (Authentication 4) lists missing credits with invalid keys under 401.
    ErrorCode.INSUFFICIENT_CREDITS: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.INSUFFICIENT_SCOPE: 403,
    ErrorCode.POLICY_DENIED: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.NOT_ACCEPTABLE: 406,
    ErrorCode.CONFLICT: 409,
    ErrorCode.ALREADY_REVOKED: 409,
    ErrorCode.NAME_TAKEN: 409,
    ErrorCode.ALREADY_SETTLED: 409,
    ErrorCode.KEY_REUSED: 409,
    ErrorCode.ESCROW_RELEASED: 409,
    ErrorCode.STAKE_LOCKED: 409,
    ErrorCode.NOT_CANCELLABLE: 409,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.PAYLOAD_TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: 415,
    ErrorCode.NO_CAPABILITY_MATCH: 422,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.LEDGER_UNAVAILABLE: 503,
    ErrorCode.AGENT_UNAVAILABLE: 503,
}

_RETRY_LATER = frozenset({429, 503})
_GOT_MAX = 200
_PATH_MAX = 400
_SENTENCE_MAX = 2_000


def title(code: ErrorCode) -> str:
    """Return the `title` of an error code: the code in words."""
    return code.replace("_", " ").capitalize()


def problem_type(code: ErrorCode) -> str:
    """Return the `type` URI of an error code."""
    return f"urn:callboard:problem:{code.lower().replace('_', '-')}"


def problem(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return the problem details of a refusal, with the first `PROBLEMS_MAX` of its problems.

    Args:
        error: the refusal.
        request_id: the id of this request in the logs.
    """
    unlisted = len(error.problems) - PROBLEMS_MAX
    detail = error.detail[:_SENTENCE_MAX]
    if unlisted > 0:
        detail += f"; {unlisted} problem{'s are' if unlisted > 1 else ' is'} not listed"
    body: dict[str, Any] = {
        "type": problem_type(error.code),
        "title": title(error.code),
        "status": STATUS[error.code],
        "detail": detail,
        "code": error.code,
        "error": error.code,
        "message": detail,
        "requestId": request_id,
    }
    if error.problems:
        # `path` and `got` echo the caller's input. They are clipped to bound the reply.
        body["errors"] = [
            {
                "path": item.path[:_PATH_MAX],
                "got": item.got[:_GOT_MAX],
                "expected": item.expected[:_SENTENCE_MAX],
            }
            for item in error.problems[:PROBLEMS_MAX]
        ]
    return body


def problem_text(error: ServiceError, request_id: str) -> str:
    """Return the result of `problem` as JSON text, for a refusal that HAProxy itself sends."""
    return json.dumps(problem(error, request_id), separators=(",", ":"))


def problem_headers(error: ServiceError) -> list[tuple[bytes, bytes]]:
    """Return the headers of a refusal: `Retry-After`, `WWW-Authenticate` or none."""
    status = STATUS[error.code]
    headers: list[tuple[bytes, bytes]] = []
    if status in _RETRY_LATER:
        wait_s = RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        headers.append((b"retry-after", b"%d" % max(1, wait_s)))
    if status == 401:
        challenge = b'Bearer realm="callboard"'
        if error.code is not ErrorCode.INSUFFICIENT_CREDITS:
            challenge += b', error="invalid_token"'
        headers.append((b"www-authenticate", challenge))
    return headers
