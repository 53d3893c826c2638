"""The three ways a commit ends without an outcome, by what the caller can do about it.

Spec: none; design.md section 3, money.md section 4.
"""

from __future__ import annotations


class LedgerUnavailable(Exception):
    """The connection is lost, the batch's outcome unknown: reopen, repeat with the same keys."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"ledger unavailable, outcome unknown: {self.reason}"


class LedgerIntegrityError(Exception):
    """The database refused a batch that planning accepted: memory and database disagree, stop."""

    def __init__(self, reason: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(reason, keys)
        self.reason = reason
        self.keys = keys

    def __str__(self) -> str:
        return f"ledger integrity: {self.reason} (keys: {', '.join(self.keys[:5]) or 'none'})"


class LedgerFenced(LedgerIntegrityError):
    """Another writer has taken over: this one may write nothing any more."""
