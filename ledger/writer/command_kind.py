"""What the writer needs to know of a kind of command; `ledger/registry.py` has one for each.

No command is named here. Decision ledger-writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ledger.commands import Outcome
from ledger.writer.batch import Batch
from ledger.writer.read_set import ReadSet

# A stored row with its index entries, as bytes of a batch.
ROW_WEIGHT: Final = 400
# Rows that a command writes besides those of its own: its key, audit entries, entries.
_ROWS_OF_A_COMMAND: Final = 4


def rows_weight(rows: int = 0) -> int:
    """Return what a command with so many rows of its own adds to a transaction, in bytes."""
    return (_ROWS_OF_A_COMMAND + rows) * ROW_WEIGHT


def texts_weight(command: Any) -> int:
    """Return what a command of few rows and perhaps a large text (a card, evidence) adds."""
    values = (getattr(command, name) for name in getattr(command, "__struct_fields__", ()))
    return rows_weight() + sum(len(value) for value in values if isinstance(value, str))


def reads_nothing(command: Any, read_set: ReadSet) -> None:
    """Add nothing: what the writer always knows is enough."""


@dataclass(frozen=True, slots=True)
class CommandKind:
    """How the commands of one type are handled.

    A client asks again under its key, and some things happen once however often they are asked for.
    The keys of a member's steps and of publishes without a client's key are new, except after a
    crash: then a conflict tells.

    Args:
        plan: adds its rows and audit events to a batch and returns its outcome. Never waits.
        add_reads: adds its read set, what has to be in the state cache before it is planned.
        weight: how much of a transaction it takes, estimated, in bytes.
        may_repeat: whether its key may well have been used before, so that it is looked up.
        is_hashed: a repeat must be the same request (`request_hash`); else the key alone decides.
        is_barrier: it looks at rows that others of its batch may change: it is a batch of its own.
        is_asked_again: the service repeats it, or it happens once under a key of its subject.
        outlives_credential: what it does lasts beyond the credential that it came with, so that one
            must not have ended (`ledger/identity/credentials.py`).
        is_fenced: it is of a workflow (`workflow_id`), and its `member` must hold that one's shard
            under its `shard_epoch`; else it is stale.
    """

    plan: Callable[[Any, Batch], Outcome]
    add_reads: Callable[[Any, ReadSet], None] = reads_nothing
    weight: Callable[[Any], int] = texts_weight
    may_repeat: Callable[[Any], bool] = lambda command: True
    is_hashed: bool = False
    is_barrier: bool = False
    is_asked_again: bool = False
    is_fenced: bool = False
    outlives_credential: bool = False
