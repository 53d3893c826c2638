"""Exceptions of a commit that returns no outcomes. Callers react differently to each class.

Reference: money.md (Commands and keys). Decision ledger-writer.
"""

from __future__ import annotations


class LedgerUnavailable(Exception):
    """The database cannot be used now, and the outcome of a batch is unknown. Reopen the store, and
    repeat the commands with their keys.

    Args:
        reason: what failed.
        is_servers: the server is the cause, so no command can be: another session's lock, a full
            disk, a shutdown.
    """

    def __init__(self, reason: str, is_servers: bool = False) -> None:
        super().__init__(reason, is_servers)
        self.reason = reason
        self.is_servers = is_servers

    def __str__(self) -> str:
        return f"ledger unavailable, outcome unknown: {self.reason}"


class SchemaTooNew(LedgerUnavailable):
    """The schema requires newer code than this. The store was not opened, and no writer was fenced
    off.

    Args:
        needed: the minimum version of code that the schema requires.
        version: the version of this code.
    """

    def __init__(self, needed: int, version: int) -> None:
        reason = f"the schema needs code of version {needed}, this is {version}: deploy newer code"
        super().__init__(reason, is_servers=True)


class BatchRefused(Exception):
    """A batch was rolled back because of one of its commands. The store can be used for the next
    batch.

    Args:
        reason: what failed.
        is_slow: a statement exceeded its timeout.
    """

    def __init__(self, reason: str, is_slow: bool = False) -> None:
        super().__init__(reason, is_slow)
        self.reason = reason
        self.is_slow = is_slow

    def __str__(self) -> str:
        return f"batch refused: {self.reason}"


class LedgerIntegrityError(Exception):
    """The writer's memory of the chain or the counters is wrong: the process must stop."""


class LedgerFenced(LedgerIntegrityError):
    """Another writer has taken over: this writer cannot commit any more."""
