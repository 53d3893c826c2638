"""The commands of the audited write path: their base class, and the outcome of one.

A command is a plain value that the one writer turns into rows. The same key twice returns the first
outcome, a rejection included. Each command is declared in the file of its feature, and
`@plans(…)` beside its plan says how it is handled. Nothing here knows SQL or Ray. Reference:
money.md (Settlement, Rules that the database enforces, Commands and keys).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import field

from core.errors import ErrorCode
from core.message import Message


class Command(Message, frozen=True, kw_only=True):
    """A change that the ledger is asked for.

    `key`: its idempotency key. A command with `request_hash` is the same request as another of its
    key only if the hashes are equal. A command with `shard_epoch` belongs to a workflow: it is
    stale unless its `member` holds the workflow's shard under that epoch.
    """

    key: str


def request_hash_of(command: Command) -> bytes | None:
    """Return the hash that a repeat of the command must carry too; None: the key alone decides."""
    request_hash: bytes | None = getattr(command, "request_hash", None)
    return request_hash


class OutcomeStatus(StrEnum):
    """How a command ended. `stale`: its member does not hold the shard under its epoch
    (nothing stored, never retried)."""

    APPLIED = "applied"
    REPEATED = "repeated"
    REJECTED = "rejected"
    STALE = "stale"


class Outcome(Message, frozen=True):
    """What became of a command. `error` and `detail` are set when it was rejected; a repeat returns
    the first outcome's `result`, `error` and `detail`."""

    status: OutcomeStatus
    result: dict[str, Any] = field(default_factory=dict)
    error: ErrorCode | None = None
    detail: str = ""
