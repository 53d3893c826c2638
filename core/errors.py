"""The error codes of the service, as three closed enums, and its exceptions.

This file does not know HTTP: `serve_app/http/errors.py` has the table of the HTTP status of each
`ErrorCode`. All fields of an exception are in `args`, so that Ray can pickle it.
Reference: http.md (Errors).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# The most problems that a reply lists. 512 KiB of JSON can have 100,000 problems.
PROBLEMS_MAX: Final = 20


class ErrorCode(StrEnum):
    """The error codes of the API. A closed list."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_MANIFEST = "INVALID_MANIFEST"
    BUDGET_REQUIRED = "BUDGET_REQUIRED"
    UNAUTHORIZED = "UNAUTHORIZED"
    INVALID_SIGNATURE = "INVALID_SIGNATURE"
    INSUFFICIENT_CREDITS = "INSUFFICIENT_CREDITS"
    FORBIDDEN = "FORBIDDEN"
    INSUFFICIENT_SCOPE = "INSUFFICIENT_SCOPE"
    POLICY_DENIED = "POLICY_DENIED"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    NOT_ACCEPTABLE = "NOT_ACCEPTABLE"
    CONFLICT = "CONFLICT"
    ALREADY_REVOKED = "ALREADY_REVOKED"
    NAME_TAKEN = "NAME_TAKEN"
    ALREADY_SETTLED = "ALREADY_SETTLED"
    KEY_REUSED = "KEY_REUSED"
    ESCROW_RELEASED = "ESCROW_RELEASED"
    STAKE_LOCKED = "STAKE_LOCKED"
    NOT_CANCELLABLE = "NOT_CANCELLABLE"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    NO_CAPABILITY_MATCH = "NO_CAPABILITY_MATCH"
    RATE_LIMITED = "RATE_LIMITED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    OVERLOADED = "OVERLOADED"
    LEDGER_UNAVAILABLE = "LEDGER_UNAVAILABLE"
    AGENT_UNAVAILABLE = "AGENT_UNAVAILABLE"


class NodeErrorCode(StrEnum):
    """Why a node failed: the values of `node.error.code`. A closed list."""

    AGENT_UNAVAILABLE = "AGENT_UNAVAILABLE"
    NO_CANDIDATE = "NO_CANDIDATE"
    AGENT_ERROR = "AGENT_ERROR"
    AGENT_TIMEOUT = "AGENT_TIMEOUT"
    INVALID_REPLY = "INVALID_REPLY"
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE"
    INPUT_TOO_LARGE = "INPUT_TOO_LARGE"
    INPUT_MAPPING_FAILED = "INPUT_MAPPING_FAILED"
    INPUT_SCHEMA = "INPUT_SCHEMA"
    OUTPUT_SCHEMA = "OUTPUT_SCHEMA"
    VERIFICATION_REJECTED = "VERIFICATION_REJECTED"
    VERIFIER_UNAVAILABLE = "VERIFIER_UNAVAILABLE"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    REVOKED = "REVOKED"
    POLICY_DENIED = "POLICY_DENIED"
    CANCELLED = "CANCELLED"
    WORKFLOW_TIMEOUT = "WORKFLOW_TIMEOUT"
    UPSTREAM_FAILED = "UPSTREAM_FAILED"


class QuarantineCode(StrEnum):
    """Why a workflow is quarantined: the values of `quarantine.code`. A closed list.

    STEP_REFUSED: the ledger could not apply a step. STEP_TOO_SLOW: a step exceeded the statement
    timeout in a batch without other commands. ALREADY_SETTLED: a step pays for a node that is
    already paid. STEP_FAILED: the owner had an unexpected error in a step of the workflow.
    NOT_RESTORABLE: the workflow cannot be restored from its rows.
    """

    STEP_REFUSED = "STEP_REFUSED"
    STEP_TOO_SLOW = "STEP_TOO_SLOW"
    ALREADY_SETTLED = "ALREADY_SETTLED"
    STEP_FAILED = "STEP_FAILED"
    NOT_RESTORABLE = "NOT_RESTORABLE"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of an input: the path, the value found there, and the value expected there."""

    path: str
    got: str
    expected: str

    @property
    def sentence(self) -> str:
        """The problem in words. The path is omitted if it is the path of the whole input."""
        place = "" if self.path in ("", "$") else f"{self.path}: "
        return f"{place}got {self.got}, expected {self.expected}"


class ProblemList:
    """The problems of one input. All are counted, the first `PROBLEMS_MAX` are stored."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def kept(self) -> tuple[Problem, ...]:
        """The first problems, in the order in which they were found."""
        return tuple(self._kept)

    def summary(self, of: str) -> str:
        """Return the sentence of the only problem, or the number of problems and the first problem.

        A client that prints `detail` and `errors` leaves out the first problem of `errors`, because
        `detail` ends with it.
        """
        first, count = self._kept[0].sentence, len(self)
        if count == 1:
            return first
        shown = f", the first {PROBLEMS_MAX} are shown" if count > PROBLEMS_MAX else ""
        return f"the {of} has {count} problems{shown}: {first}"

    def append(self, problem: Problem) -> None:
        """Count a problem; store it if fewer than `PROBLEMS_MAX` are stored."""
        self._count += 1
        if len(self._kept) < PROBLEMS_MAX:
            self._kept.append(problem)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add several problems."""
        for problem in problems:
            self.append(problem)

    def add_unnamed(self, count: int) -> None:
        """Count further problems without storing them."""
        assert count == 0 or len(self._kept) == PROBLEMS_MAX, (count, self._kept)
        self._count += count


class ServiceError(Exception):
    """A request is refused. The caller sees only `code`, `detail` and `problems`.

    Args:
        code: the error code.
        detail: one sentence for people, with the values got and expected, without secrets.
        problems: the problems of the input, at most `PROBLEMS_MAX`, for validation errors.
        retry_after_s: seconds after which a retry makes sense, or None.
    """

    def __init__(
        self,
        code: ErrorCode,
        detail: str,
        problems: tuple[Problem, ...] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(code, detail, problems, retry_after_s)
        self.code = code
        self.detail = detail
        self.problems = problems
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class IllegalTransition(Exception):
    """A state machine got an event that its table does not allow. The state is unchanged."""

    def __init__(self, machine: str, state: str, trigger: str) -> None:
        super().__init__(machine, state, trigger)
        self.machine = machine
        self.state = state
        self.trigger = trigger

    def __str__(self) -> str:
        return f"{self.machine} in state {self.state!r} does not take {self.trigger!r}"
