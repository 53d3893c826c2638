"""Refusals: problem details, as every error is answered. Spec: Errors; contract.md section 1."""

from __future__ import annotations

from typing import Annotated

from core.errors import ErrorCode
from core.records.api.kinds import words
from core.records.api.record import Record
from core.records.api.shape import Maybe

Code = Annotated[str, words(ErrorCode)]


class Defect(Record):
    """One defect of a request: where it is, what was got, what was expected."""

    path: str
    got: str
    expected: str


class Problem(Record):
    """Why a request was refused; `error` is `code` and `message` is `detail`."""

    type: str
    title: str
    status: int
    detail: str
    code: Code
    error: Code
    message: str
    request_id: str
    errors: Maybe[list[Defect]]
