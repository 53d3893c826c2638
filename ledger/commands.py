"""The base class of the ledger's commands, and their outcomes.

A command is a plain value that the writer turns into rows. A command with a stored key gets the
first outcome of the key, even if it is a rejection. Each command is declared in the file of its
feature. `@plans(…)` above its plan says how the writer handles it. Reference: money.md (Settlement,
Rules that the database enforces, Commands and keys).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import field

from core.errors import ErrorCode
from core.message import Message


class Command(Message, frozen=True, kw_only=True):
    """A requested change of the ledger.

    `key`: the idempotency key. If the command has `request_hash`, a command with the same key is a
    repeat only if its hash is equal. A command with `shard_epoch` belongs to a workflow. It is
    stale unless its `member` holds the workflow's shard in that epoch.
    """

    key: str


def request_hash_of(command: Command) -> bytes | None:
    """Return a command's request hash, which a repeat must have too; None: the key alone
    decides."""
    request_hash: bytes | None = getattr(command, "request_hash", None)
    return request_hash


class OutcomeStatus(StrEnum):
    """How a command ended. `STALE`: the member that sent it does not hold the shard in its epoch.
    Nothing is stored, and the member must not send the command again."""

    APPLIED = "applied"
    REPEATED = "repeated"
    REJECTED = "rejected"
    STALE = "stale"


class Outcome(Message, frozen=True):
    """The result of a command. `error` and `detail` are set if it was rejected. A repeat has the
    `result`, `error` and `detail` of the first outcome."""

    status: OutcomeStatus
    result: dict[str, Any] = field(default_factory=dict)
    error: ErrorCode | None = None
    detail: str = ""
