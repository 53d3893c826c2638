"""Every failure of the service, as three closed enums and one exception family.

This file names failures and knows nothing of HTTP: `serve_app/http/errors.py` holds the one table
from `ErrorCode` to a status. All fields are in `args`, so that an error survives Ray's pickling.
Reference: http.md (Errors).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Most defects of one input that a reply names; 512 KiB of JSON can have 100,000 of them.
PROBLEMS_MAX: Final = 20


class ErrorCode(StrEnum):
    """The error codes of the API. Closed: a new way to fail is a new member here."""

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
    """Why a node failed, as `node.error.code`. Closed."""

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
    """Why a workflow is quarantined, as `quarantine.code`. Closed.

    STEP_REFUSED: the ledger could not apply a step. STEP_TOO_SLOW: a step exceeded its statement
    timeout alone. ALREADY_SETTLED: a step settles what is settled. STEP_FAILED: the owner failed
    while it worked on the workflow. NOT_RESTORABLE: its rows cannot be read back.
    """

    STEP_REFUSED = "STEP_REFUSED"
    STEP_TOO_SLOW = "STEP_TOO_SLOW"
    ALREADY_SETTLED = "ALREADY_SETTLED"
    STEP_FAILED = "STEP_FAILED"
    NOT_RESTORABLE = "NOT_RESTORABLE"


@dataclass(frozen=True, slots=True)
class Problem:
    """One defect of an input: its path, the value got, the value expected."""

    path: str
    got: str
    expected: str

    @property
    def sentence(self) -> str:
        """The defect in words; without the path of an input as a whole."""
        place = "" if self.path in ("", "$") else f"{self.path}: "
        return f"{place}got {self.got}, expected {self.expected}"


class ProblemList:
    """The defects of one input: all are counted, the first `PROBLEMS_MAX` are kept."""

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
        """Return the sentence of the only problem; of several their count and the first one.

        A client that prints `detail` and `errors` leaves out the first one: `detail` ends with it.
        """
        first, count = self._kept[0].sentence, len(self)
        if count == 1:
            return first
        shown = f", the first {PROBLEMS_MAX} are shown" if count > PROBLEMS_MAX else ""
        return f"the {of} has {count} problems{shown}: {first}"

    def append(self, problem: Problem) -> None:
        """Count a problem, and keep it while there is room."""
        self._count += 1
        if len(self._kept) < PROBLEMS_MAX:
            self._kept.append(problem)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add several problems."""
        for problem in problems:
            self.append(problem)

    def add_unnamed(self, count: int) -> None:
        """Count problems beyond those that are kept."""
        assert count == 0 or len(self._kept) == PROBLEMS_MAX, (count, self._kept)
        self._count += count


class ServiceError(Exception):
    """A request is refused; the caller sees `code`, `detail` and `problems`, nothing else.

    Args:
        code: the reason.
        detail: one sentence for people, with the values got and expected, without secrets.
        problems: the defects found, at most `PROBLEMS_MAX`, for validation errors.
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
    """A state machine was given an event that its table does not allow; the state is unchanged."""

    def __init__(self, machine: str, state: str, trigger: str) -> None:
        super().__init__(machine, state, trigger)
        self.machine = machine
        self.state = state
        self.trigger = trigger

    def __str__(self) -> str:
        return f"{self.machine} in state {self.state!r} does not take {self.trigger!r}"
