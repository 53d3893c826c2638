"""How the writer handles each type of command. `@plans(…)` above a plan registers the plan here.

`ledger/registry.py` imports the plans. Decision ledger-writer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar

import psycopg

from ledger.commands import Command
from ledger.writer.batch import Batch, Result
from ledger.writer.read_set import ReadSet

Connection = psycopg.AsyncConnection[Any]
C = TypeVar("C", bound=Command)
Plan = Callable[[C, Batch], Result]


def keys_of(**parts: str) -> Callable[[Any, ReadSet], None]:
    """Return a `reads` that adds values of a command's fields to the read set.

    Args:
        parts: by part of the read set, the field; several fields, separated by spaces, are a tuple.
    """
    getters = {part: attrgetter(*fields.split()) for part, fields in parts.items()}

    def reads(command: Any, read_set: ReadSet) -> None:
        for part, value_of in getters.items():
            getattr(read_set, part).add(value_of(command))

    return reads


_NO_KEYS: Final = keys_of()


def always(command: Any) -> bool:
    """Return True for every command."""
    return True


@dataclass(frozen=True, slots=True)
class CommandKind:
    """How the writer handles the commands of one type.

    Args:
        plan: adds the rows and audit events of a command to a batch and returns the result. It
            never waits.
        reads: adds to a read set the keys that must be in the state cache before the plan runs.
        may_repeat: says whether the command's key may have been used before; if so, the writer
            looks it up. The keys of a member's steps and of publishes without a client's key are
            new, except after a crash. After a crash such a key may cause a key conflict in the
            commit, and the writer looks it up then.
        load: reads rows that other commands may change, so the command is a batch of its own.
            The plan finds the return value in `batch.loaded`. `load` may add to the read set.
        alone_when: says whether a command needs `load`. A command that does not need it is planned
            without it, in a batch with others.
        reuses_key: True if later attempts use the same key, because the service repeats the
            command or the key names the command's subject. An unexpected failure is then not stored
            under the key.
        outlives_credential: True if the effect lasts longer than the caller's credential, so the
            credential must still be valid at the commit (`ledger/features/credentials.py`).
        is_fenced: the command belongs to a workflow. It is stale if its member does not hold the
            workflow's shard.
    """

    plan: Callable[[Any, Batch], Result]
    reads: Callable[[Any, ReadSet], None] = _NO_KEYS
    may_repeat: Callable[[Any], bool] = always
    load: Callable[[Connection, Any, ReadSet], Awaitable[Any]] | None = None
    alone_when: Callable[[Any], bool] = always
    reuses_key: bool = False
    outlives_credential: bool = False
    is_fenced: bool = False

    def is_barrier(self, command: Any) -> bool:
        """Say whether a command of this kind is a batch of its own."""
        return self.load is not None and self.alone_when(command)


KINDS: Final[dict[type[Command], CommandKind]] = {}


def plans(command_type: type[C], **options: Any) -> Callable[[Plan[C]], Plan[C]]:
    """Register the decorated function as the plan of a command type.

    Args:
        options: fields of `CommandKind`.
    """

    def register(plan: Plan[C]) -> Plan[C]:
        assert command_type not in KINDS, f"{command_type.__name__} has two plans"
        is_fenced = "shard_epoch" in command_type.__struct_fields__
        KINDS[command_type] = CommandKind(plan, is_fenced=is_fenced, **options)
        return plan

    return register
