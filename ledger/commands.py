"""The base class of the ledger's commands, and their outcomes.

A command is a plain value that the writer turns into rows. A repeated key returns the first
outcome, even if it is a rejection. Each command is declared in the file of its feature, and
`@plans(…)` above its plan says how it is handled. Nothing here knows SQL or Ray. Reference:
money.md (Settlement, Rules that the database enforces, Commands and keys).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import field

from core.errors import ErrorCode
from core.message import Message


class Command(Message, frozen=True, kw_only=True):
    """A requested change of the ledger.

    `key`: the idempotency key. If a command has `request_hash`, another command with the same key
    repeats it only if the hashes are equal. A command with `shard_epoch` belongs to a workflow: it
    is stale unless its `member` holds the workflow's shard in that epoch.
    """

    key: str


def request_hash_of(command: Command) -> bytes | None:
    """Return the hash that a repeat must have too, None if the key alone identifies the command."""
    request_hash: bytes | None = getattr(command, "request_hash", None)
    return request_hash


class OutcomeStatus(StrEnum):
    """How a command ended. `STALE`: its member does not hold the shard in its epoch; nothing is
    stored, and the command must not be sent again."""

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
