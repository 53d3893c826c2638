"""Examples of the document: bodies and replies of the contract tests, recorded.

`examples.json` is written by `python -m scripts.record_examples`; tests hold every example against
the schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from core.errors import ErrorCode, ServiceError
from core.json_text import read_json
from serve_app.http.errors import problem

EXAMPLES = Path(__file__).with_name("examples.json")
_REQUEST_ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"


@dataclass(frozen=True, slots=True)
class Examples:
    """What was recorded: by operation its body and its reply, by code a refusal."""

    operations: Mapping[str, Mapping[str, Any]]
    problems: Mapping[str, Any]

    def body(self, method: str, path: str) -> Any:
        """Return the body of an operation's example, None where it has none."""
        return self.operations.get(f"{method} {path}", {}).get("body")

    def reply(self, method: str, path: str) -> Any:
        """Return the reply of an operation's example, None where it has none."""
        return self.operations.get(f"{method} {path}", {}).get("reply")

    def problem(self, code: ErrorCode) -> Any:
        """Return a refusal with this code: a recorded one, else what one looks like."""
        made = problem(ServiceError(code, "what was got and what was expected"), _REQUEST_ID)
        return self.problems.get(code, made)


@cache
def recorded_examples() -> Examples:
    """Return the examples that are kept beside this file."""
    kept = read_json(EXAMPLES.read_bytes())
    return Examples(kept["operations"], kept["problems"])
