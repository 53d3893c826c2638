"""Writers of one ledger with the queue in front of them, their clock, and what disturbs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from core.errors import ErrorCode, ServiceError
from ledger.commands import Command, Outcome
from ledger.writer.group_commit import GroupCommit
from tests.ledger.checking import Auditor
from tests.ledger.making import hold_all, join

DEADLINE_S = 60.0

# Starts a writer, with other constants of its module.
Start = Callable[..., Any]


class WatchedWriter(GroupCommit):
    """A writer under test: a command that gets no outcome fails its test, and does not hang it."""

    async def submit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Return the outcomes of commands, within the deadline."""
        async with asyncio.timeout(DEADLINE_S):
            return await super().submit(commands)


class Clock:
    """The monotonic clock of the writers, which goes on when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


async def one(commits: GroupCommit, command: Command) -> Outcome:
    """Return the outcome of one command."""
    return (await commits.submit([command]))[0]


async def start_held(start: Start, *others: str) -> tuple[GroupCommit, int]:
    """Start a writer whose member holds every shard; return the shards' epoch, too."""
    commits: GroupCommit = await start()
    epoch = await hold_all(commits)
    for member in others:
        await one(commits, join(member))
    return commits, epoch


async def insist(commits: GroupCommit, *commands: Command) -> list[Outcome]:
    """Submit until there are outcomes, as the ledger's client does: always with the same keys."""
    while True:
        try:
            return await commits.submit(commands)
        except ServiceError as error:
            if error.code is not ErrorCode.LEDGER_UNAVAILABLE:
                raise
            await asyncio.sleep(0)


def unavailable() -> Any:
    """Expect the refusal of a ledger that cannot answer now."""
    return pytest.raises(
        ServiceError, check=lambda error: error.code is ErrorCode.LEDGER_UNAVAILABLE
    )


def kill_backends(auditor: Auditor) -> int:
    """End every writer's backend, as a crash of the connection does; return how many ended."""
    return int(
        auditor.one(
            "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity"
            " WHERE application_name = 'callboard-ledger' AND datname = current_database()"
        )
    )


def disturb(auditor: Auditor, statement: str, on: str, when: str = "true") -> None:
    """Let the database execute a statement of PL/pgSQL for each row that is written.

    Args:
        auditor: whose connection adds the trigger.
        statement: what is executed.
        on: the event and the table, such as `AFTER INSERT ON account`.
        when: for which rows, in SQL.
    """
    auditor.connection.execute(
        "CREATE FUNCTION callboard.disturb() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
        f" AS $$ BEGIN {statement}; RETURN NULL; END $$;"
        f" CREATE TRIGGER disturbance {on} FOR EACH ROW WHEN ({when})"
        " EXECUTE FUNCTION callboard.disturb()"
    )
