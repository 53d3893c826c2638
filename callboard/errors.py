"""The one exception of the client side.

Spec: Errors; contract.md section 1 (problem details).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNREACHABLE = "UNREACHABLE"


class CallboardError(Exception):
    """The service refused a request, or could not be reached (`code` UNREACHABLE, `status` 0).

    Args:
        code: the service's error code.
        status: the HTTP status, 0 when no reply came.
        detail: one sentence for people.
        errors: every defect the service found, each `{path, got, expected}`.
        request_id: the service's name for this request, for its logs.
    """

    def __init__(
        self,
        code: str,
        status: int,
        detail: str,
        errors: tuple[Mapping[str, Any], ...] = (),
        request_id: str | None = None,
    ) -> None:
        # Everything in args: pickling calls the class with them again.
        super().__init__(code, status, detail, errors, request_id)
        self.code = code
        self.status = status
        self.detail = detail
        self.errors = errors
        self.request_id = request_id

    def __str__(self) -> str:
        places = "".join(
            f"\n  {error.get('path')}: got {error.get('got')}, expected {error.get('expected')}"
            for error in self.errors
        )
        return f"{self.code}: {self.detail}{places}"
