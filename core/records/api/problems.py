"""Refusals: problem details, as every error is answered. Reference: http.md (Errors)."""

from __future__ import annotations

from typing import Annotated

from core.errors import ErrorCode
from core.records.api.kinds import words
from core.records.api.record import Record
from core.records.api.shape import Maybe

Code = Annotated[str, words(ErrorCode)]


class Defect(Record):
    """One defect of a request."""

    path: Annotated[str, "Member that is wrong, such as `nodes.a.timeoutMs`."]
    got: Annotated[str, "Value that was sent."]
    expected: Annotated[str, "Value that was expected."]


class Problem(Record):
    """Why a request was refused (RFC 9457)."""

    type: Annotated[str, "URI of the kind of problem."]
    title: Annotated[str, "The code in words."]
    status: Annotated[int, "HTTP status."]
    detail: Annotated[str, "One sentence with the values got and expected."]
    code: Annotated[Code, "Error code."]
    error: Annotated[Code, "The same as `code`."]
    message: Annotated[str, "The same as `detail`."]
    request_id: Annotated[str, "Id of the request in the service's logs."]
    errors: Annotated[Maybe[list[Defect]], "The defects of the request, at most 20."]
