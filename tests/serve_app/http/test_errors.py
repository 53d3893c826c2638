"""The one table from codes to statuses, and the shape of a refusal."""

from __future__ import annotations

import orjson
import pytest

from core.errors import PROBLEMS_MAX, ErrorCode, Problem, ServiceError
from serve_app.http.errors import STATUS, problem, problem_headers

# Copied by hand: the table under test must not be its own expectation.
CONTRACT = {
    400: "INVALID_REQUEST INVALID_MANIFEST BUDGET_REQUIRED",
    401: "UNAUTHORIZED INVALID_SIGNATURE INSUFFICIENT_CREDITS",
    403: "FORBIDDEN INSUFFICIENT_SCOPE POLICY_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    406: "NOT_ACCEPTABLE",
    409: "CONFLICT ALREADY_REVOKED NAME_TAKEN ALREADY_SETTLED KEY_REUSED ESCROW_RELEASED"
    " STAKE_LOCKED NOT_CANCELLABLE",
    408: "REQUEST_TIMEOUT",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    422: "NO_CAPABILITY_MATCH",
    429: "RATE_LIMITED QUOTA_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "OVERLOADED LEDGER_UNAVAILABLE AGENT_UNAVAILABLE",
}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_the_status_of_the_contract(code: ErrorCode) -> None:
    expected = next(status for status, codes in CONTRACT.items() if code in codes.split())
    assert STATUS[code] == expected


def test_a_problem_carries_what_every_client_looks_for() -> None:
    error = ServiceError(
        ErrorCode.INVALID_MANIFEST, "one problem", (Problem("nodes.a", "x" * 999, "y"),)
    )
    body = problem(error, "r-1")
    assert body["type"].startswith("urn:")
    assert (body["status"], body["title"]) == (400, "Invalid manifest")
    assert body["code"] == body["error"] == "INVALID_MANIFEST"
    assert body["detail"] == body["message"] == "one problem"
    assert body["requestId"] == "r-1"
    assert body["errors"] == [{"path": "nodes.a", "got": "x" * 200, "expected": "y"}]


def test_a_refusal_is_small_however_many_and_long_its_problems_are() -> None:
    """A body of 512 KiB was answered with tens of MB, and below a long name with gigabytes."""
    name = "n" * 100_000
    many = tuple(Problem(f"nodes.{name}.m{number}", name, name) for number in range(1_000))
    body = problem(ServiceError(ErrorCode.INVALID_MANIFEST, f"1,000 of {name}", many), "r")
    assert len(body["errors"]) == PROBLEMS_MAX == 20
    assert body["detail"].endswith("; 980 problems are not listed")
    assert body["detail"] == body["message"]
    assert len(orjson.dumps(body)) < 64 * 1024


def test_as_many_problems_as_are_listed_are_listed_without_a_word() -> None:
    error = ServiceError(ErrorCode.INVALID_REQUEST, "x", (Problem("a", "b", "c"),) * PROBLEMS_MAX)
    body = problem(error, "r")
    assert (len(body["errors"]), body["detail"]) == (PROBLEMS_MAX, "x")


def test_a_problem_without_defects_has_no_errors_member() -> None:
    assert "errors" not in problem(ServiceError(ErrorCode.NOT_FOUND, "gone"), "r")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ServiceError(ErrorCode.RATE_LIMITED, "", retry_after_s=7), {b"retry-after": b"7"}),
        (ServiceError(ErrorCode.LEDGER_UNAVAILABLE, ""), {b"retry-after": b"1"}),
        (ServiceError(ErrorCode.NOT_FOUND, ""), {}),
    ],
)
def test_refusals_that_pass_say_when(error: ServiceError, expected: dict[bytes, bytes]) -> None:
    assert dict(problem_headers(error)) == expected


def test_every_401_carries_a_challenge() -> None:
    for code in (ErrorCode.UNAUTHORIZED, ErrorCode.INSUFFICIENT_CREDITS):
        headers = dict(problem_headers(ServiceError(code, "")))
        assert headers[b"www-authenticate"].startswith(b"Bearer")
