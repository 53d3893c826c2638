"""How the writer handles each type of command: `@plans(…)` beside a plan registers it here.

`ledger/registry.py` imports the plans. Decision ledger-writer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg

from ledger.commands import Command
from ledger.writer.batch import Batch, Result
from ledger.writer.read_set import ReadSet

Connection = psycopg.AsyncConnection[Any]
C = TypeVar("C", bound=Command)
Plan = Callable[[C, Batch], Result]
Load = Callable[[Connection, C, ReadSet], Awaitable[Any]]


def reads_nothing(command: Any, read_set: ReadSet) -> None:
    """Add nothing: what the writer always knows is enough."""


def always(command: Any) -> bool:
    """Say that each command of a type is a batch of its own, if it loads rows at all."""
    return True


def is_client_s(command: Any) -> bool:
    """Say that the key of a command may have been used before: a client repeats a request."""
    return True


@dataclass(frozen=True, slots=True)
class CommandKind:
    """How the commands of one type are handled; the arguments are those of `plans`.

    `is_fenced`: it is of a workflow, and stale if its member does not hold the workflow's shard.
    """

    plan: Callable[[Any, Batch], Result]
    reads: Callable[[Any, ReadSet], None] = reads_nothing
    may_repeat: Callable[[Any], bool] = is_client_s
    is_fenced: bool = False
    load: Load[Any] | None = None
    alone_when: Callable[[Any], bool] = always
    is_asked_again: bool = False
    outlives_credential: bool = False

    def is_barrier(self, command: Any) -> bool:
        """Say whether a command of this kind is a batch of its own."""
        return self.load is not None and self.alone_when(command)


KINDS: Final[dict[type[Command], CommandKind]] = {}


def plans(
    command_type: type[C],
    *,
    reads: Callable[[C, ReadSet], None] = reads_nothing,
    may_repeat: Callable[[C], bool] = is_client_s,
    load: Load[C] | None = None,
    alone_when: Callable[[C], bool] = always,
    is_asked_again: bool = False,
    outlives_credential: bool = False,
) -> Callable[[Plan[C]], Plan[C]]:
    """Register the decorated function as the plan of a command's type.

    A plan adds the rows and audit events of a command to a batch and returns its result. It never
    waits.

    Args:
        reads: adds to a read set what has to be in the state cache before the plan runs.
        may_repeat: whether its key may have been used before, so that it is looked up. The keys of
            a member's steps and of publishes without a client's key are new, except after a crash:
            then the conflict of keys shows it.
        load: reads rows that other commands may change, so the command is a batch of its own.
            The plan finds what it returns in `batch.loaded`. It may add to the read set.
        alone_when: whether a command needs that; the others are planned without `batch.loaded`.
        is_asked_again: the service repeats it, or it happens once under a key of its subject.
        outlives_credential: its effect lasts longer than the credential that it came with, so the
            credential must not have ended (`ledger/features/credentials.py`).
    """

    def register(plan: Plan[C]) -> Plan[C]:
        assert command_type not in KINDS, f"{command_type.__name__} has two plans"
        KINDS[command_type] = CommandKind(
            plan,
            reads,
            may_repeat,
            is_fenced="shard_epoch" in command_type.__struct_fields__,
            load=load,
            alone_when=alone_when,
            is_asked_again=is_asked_again,
            outlives_credential=outlives_credential,
        )
        return plan

    return register
