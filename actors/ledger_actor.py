"""The ledger's actor: one per cluster, in front of the one writer of the audited tables.

A wrapper only: it receives batches, `ledger/group_commit.py` decides and commits. When the writer
finds that what it planned cannot be true (an integrity error), the process ends at once and Ray
starts a new one that reloads everything. design.md section 3; money.md section 4.
"""

from __future__ import annotations

import logging
import os

import ray

from actors.logs import configure_logging
from core.settings import Settings
from ledger.commands import Command, Outcome
from ledger.group_commit import GroupCommit, GroupCommitStatistics

log = logging.getLogger("callboard.ledger")


@ray.remote
class LedgerActor:
    """Commits batches of commands for every process of the cluster."""

    async def __init__(self, settings: Settings) -> None:
        configure_logging(settings, "ledger")
        self._commits = GroupCommit(settings, on_fatal=_stop)
        self._commits.start()

    async def submit(self, commands: list[Command]) -> list[Outcome]:
        """Commit commands in their order; raises LEDGER_UNAVAILABLE when the outcome is unknown."""
        return await self._commits.submit(commands)

    async def ping(self) -> GroupCommitStatistics:
        """Return the writer's counters; that it answers at all is the point."""
        return self._commits.statistics()

    async def process_id(self) -> int:
        """Return this process's id, for tests and operators."""
        return os.getpid()


def _stop(reason: str) -> None:
    """End this process without cleaning up: its memory is what cannot be trusted."""
    log.critical("ledger stops reason=%s", reason)
    logging.shutdown()
    os._exit(1)
