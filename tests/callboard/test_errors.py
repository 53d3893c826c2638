"""The client's errors: one class per way a caller can react."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from callboard import errors
from callboard.errors import CallboardError, WorkflowFailed, error_class
from core.errors import ErrorCode
from serve_app.http.errors import STATUS

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CallboardError) and kind is not WorkflowFailed
]


def test_every_field_is_in_the_text() -> None:
    places = ({"path": "$.nodes", "got": "{}", "expected": "at least one"},)
    error = CallboardError("INVALID_MANIFEST", 400, "no nodes", places, "req-1", 2.0)
    assert str(error) == "INVALID_MANIFEST: no nodes\n  $.nodes: got {}, expected at least one"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_field_survives_pickling(kind: type[CallboardError]) -> None:
    error = kind("CODE", 400, "no nodes", ({"path": "$"},), "req-1", 2.0)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert vars(back) == vars(error)


def test_the_record_of_a_failed_workflow_survives_pickling() -> None:
    error = WorkflowFailed("AGENT_ERROR", 200, "it failed", {"id": "w"})
    back = pickle.loads(pickle.dumps(error))
    assert (back.code, back.detail, back.record) == ("AGENT_ERROR", "it failed", {"id": "w"})


REACTIONS: dict[type[CallboardError], set[str]] = {
    errors.AuthenticationError: {"UNAUTHORIZED", "INVALID_SIGNATURE"},
    errors.PermissionDenied: {"FORBIDDEN", "INSUFFICIENT_SCOPE", "POLICY_DENIED"},
    errors.NotFound: {"NOT_FOUND"},
    errors.Conflict: {
        "CONFLICT",
        "ALREADY_REVOKED",
        "NAME_TAKEN",
        "ALREADY_SETTLED",
        "KEY_REUSED",
        "ESCROW_RELEASED",
        "STAKE_LOCKED",
        "NOT_CANCELLABLE",
    },
    errors.InvalidRequest: {
        "INVALID_REQUEST",
        "INVALID_MANIFEST",
        "BUDGET_REQUIRED",
        "METHOD_NOT_ALLOWED",
        "NOT_ACCEPTABLE",
        "PAYLOAD_TOO_LARGE",
        "UNSUPPORTED_MEDIA_TYPE",
        "NO_CAPABILITY_MATCH",
    },
    errors.InsufficientCredits: {"INSUFFICIENT_CREDITS"},
    errors.RateLimited: {"RATE_LIMITED", "QUOTA_EXCEEDED"},
    errors.Unavailable: {
        "OVERLOADED",
        "LEDGER_UNAVAILABLE",
        "AGENT_UNAVAILABLE",
        "REQUEST_TIMEOUT",
    },
    CallboardError: {"INTERNAL_ERROR"},
}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_of_the_service_has_its_class(code: ErrorCode) -> None:
    (expected,) = [kind for kind, codes in REACTIONS.items() if code in codes]
    assert error_class(code, STATUS[code], is_write=False) is expected


@pytest.mark.parametrize(
    ("code", "status", "is_write", "kind"),
    [
        ("LEDGER_UNAVAILABLE", 503, True, errors.OutcomeUnknown),
        ("HTTP_504", 504, True, errors.OutcomeUnknown),
        ("HTTP_504", 504, False, errors.Unavailable),
        ("OVERLOADED", 503, True, errors.Unavailable),
        ("HTTP_418", 418, True, CallboardError),
    ],
)
def test_a_write_whose_answer_is_lost_has_an_unknown_outcome(
    code: str, status: int, is_write: bool, kind: type[Any]
) -> None:
    assert error_class(code, status, is_write=is_write) is kind


@pytest.mark.parametrize(
    ("detail", "error", "times"),
    [
        ("a: got 1, expected 0 to 5", ("a", "1", "0 to 5"), 1),
        ("the request has 2 problems: a: got 1, expected 0 to 5", ("a", "1", "0 to 5"), 1),
        ("got no body, expected a JSON object", ("$", "no body", "a JSON object"), 1),
        ("limit 1 is exceeded", ("$", "1", "0"), 2),
    ],
)
def test_one_problem_is_printed_once(detail: str, error: tuple[str, str, str], times: int) -> None:
    place = dict(zip(("path", "got", "expected"), error, strict=True))
    text = str(CallboardError("INVALID_REQUEST", 400, detail, (place,)))
    assert len(text.splitlines()) == times
