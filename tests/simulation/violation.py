"""A promise that was broken."""

from __future__ import annotations

from typing import Any


class Violation(BaseException):
    """The engine broke one of its promises.

    No `Exception`: the code under test catches those at its edges, and must not hide this one.
    """


def require(holds: bool, *what: Any) -> None:
    """Raise `Violation`, saying what, unless it holds."""
    if not holds:
        raise Violation(" ".join(map(str, what)))
