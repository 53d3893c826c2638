"""How a refusal looks over HTTP: the one table from `ErrorCode` to a status, and problem details.

A body carries what the caller can act on and never a stack trace, a path or a secret.
"""

from __future__ import annotations

import json
from typing import Any, Final

from core.errors import PROBLEMS_MAX, ErrorCode, ServiceError

# Seconds, for a refusal that passes by itself but names no time.
RETRY_AFTER_S: Final = 1

PROBLEM_TYPE = b"application/problem+json"
# A method that HTTP servers know and no operation has: HAProxy puts it in the place of any that
# they do not know, and would refuse without problem details.
UNKNOWN_METHOD = "UNLINK"

STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.INVALID_MANIFEST: 400,
    ErrorCode.BUDGET_REQUIRED: 400,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.INVALID_SIGNATURE: 401,
    # The specification's own words (Authentication 4) put missing credits beside a bad key.
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
    """Return the code in words: the same for every occurrence of the problem."""
    return code.replace("_", " ").capitalize()


def problem_type(code: ErrorCode) -> str:
    """Return the URI that names a kind of problem."""
    return f"urn:callboard:problem:{code.lower().replace('_', '-')}"


def problem(error: ServiceError, request_id: str) -> dict[str, Any]:
    """Return the problem details of a refusal: at most `PROBLEMS_MAX` of its problems, clipped.

    Args:
        error: what was refused, and why.
        request_id: the id under which the logs know this request.
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
        # Path and `got` echo the caller's own input: clipped, so that no reply outgrows it.
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
    """Return the JSON text of `problem`, for a refusal that a replica does not write itself."""
    return json.dumps(problem(error, request_id), separators=(",", ":"))


def problem_headers(
    error: ServiceError, *, retry_after_s: int = RETRY_AFTER_S
) -> list[tuple[bytes, bytes]]:
    """Return the headers that belong to a refusal.

    Args:
        error: what was refused.
        retry_after_s: seconds, for a refusal that passes by itself but names no time.
    """
    status = STATUS[error.code]
    headers: list[tuple[bytes, bytes]] = []
    if status in _RETRY_LATER:
        wait_s = error.retry_after_s if error.retry_after_s is not None else retry_after_s
        headers.append((b"retry-after", b"%d" % max(1, wait_s)))
    if status == 401:
        challenge = b'Bearer realm="callboard"'
        if error.code is not ErrorCode.INSUFFICIENT_CREDITS:
            challenge += b', error="invalid_token"'
        headers.append((b"www-authenticate", challenge))
    return headers
