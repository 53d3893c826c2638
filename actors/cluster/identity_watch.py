"""Sends the due commands about identity: release names, run inheritances, complete recoveries.

The due work is found in stored rows. Each command's key names the due work, so a repeated command
changes nothing, whichever process sends it. A timekeeper may therefore end at any step. The ledger
checks again whether the work is due. Reference: features.md (Names, Inheritance, Recovery).
Decision agent-identity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from actors.process.loop_clock import every, wall_ms
from actors.transport.ledger_route import LedgerRoute
from actors.transport.names import TIMEKEEPER
from core.settings import Settings
from ledger.commands import Command
from ledger.features.identity_reads import due_recoveries, expired_names
from ledger.features.inheritance import RunInheritance, due_switches
from ledger.features.names import ReleaseName
from ledger.features.readiness import ReadinessStore
from ledger.features.recovery import CompleteRecovery
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.identity")

ROUND_S: Final = 2.0
# The most commands of each kind in one round. Commands beyond it stay due for the next round.
DUE_MAX: Final = 100
COMMIT_TIMEOUT_S: Final = 10.0


class IdentityWatch:
    """Notes every few seconds that the service is ready, and sends the due commands.

    Args:
        settings: the deployment's settings.
        reader: reads committed rows.
        is_ready: says whether the service is ready: a replica runs, and the ledger has a writer.
    """

    def __init__(
        self, settings: Settings, reader: LedgerReader, is_ready: Callable[[], bool]
    ) -> None:
        self._reader = reader
        self._is_ready = is_ready
        self._readiness = ReadinessStore(settings.database_url)
        self._ledger = LedgerRoute(settings).client()
        self._looked_to = ""  # the last agent whose inheritance was checked

    async def run(self) -> None:
        """Run rounds until cancelled."""
        await every(ROUND_S, lambda: self.round(wall_ms()), "round of identity")

    async def round(self, at_ms: int) -> None:
        """Note that the service is ready, and send the commands that are due.

        Inheritances run after an agent's silence, and recoveries after a delay. Times in which the
        service was not ready do not count, so both run only in a round that has noted readiness.
        The note comes first: a failure of a later step must not look like an outage.

        Args:
            at_ms: the time, Unix milliseconds.
        """
        is_ready = self._is_ready()
        if is_ready:
            await self._readiness.note_ready()
        await self._commit(
            ReleaseName(
                key=f"release:{name}:{expired_ms}",
                actor_did=TIMEKEEPER,
                is_admin=False,
                name=name,
                expired_ms=expired_ms,
            )
            for name, expired_ms in await expired_names(self._reader, at_ms=at_ms, limit=DUE_MAX)
        )
        if not is_ready:
            return
        due_now, self._looked_to = await due_switches(
            self._reader, after=self._looked_to, limit=DUE_MAX
        )
        await self._commit(
            RunInheritance(
                key=f"inherit:{due['agent_did']}:{due['revision']}",
                actor_did=TIMEKEEPER,
                did=due["agent_did"],
                revision=due["revision"],
                owner_did=due["owner_did"],
                heir_did=due["heir_did"],
            )
            for due in due_now
        )
        await self._commit(
            CompleteRecovery(
                key=f"recover:{due['id']}",
                actor_did=TIMEKEEPER,
                recovery_id=str(due["id"]),
                did=due["agent_did"],
                new_key=due["new_key"],
            )
            for due in await due_recoveries(self._reader, limit=DUE_MAX)
        )

    async def _commit(self, commands: Iterable[Command]) -> None:
        """Commit commands together. The ledger refuses a command that is no longer due."""
        due = list(commands)
        committed = (self._ledger.commit(one, timeout_s=COMMIT_TIMEOUT_S) for one in due)
        for command, outcome in zip(due, await asyncio.gather(*committed), strict=True):
            if outcome.error is None:
                log.info("done what was due key=%s", command.key)
            else:
                log.warning("not done what was due key=%s error=%s", command.key, outcome.error)
