"""Does what is due about identity: names that have expired are released.

Found in rows and done by commands whose keys say what is due: a command that is sent again, by
whichever process, changes nothing, so it does not matter where a timekeeper ends. The ledger
decides whether it is due; this module only asks. Spec: Name. Decision 0231.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from actors.transport.actor_calls import is_unknown_outcome
from actors.transport.ledger_client import LedgerClient
from actors.transport.ledger_route import LedgerRoute
from actors.transport.names import TIMEKEEPER
from core.settings import Settings
from ledger.commands import Command
from ledger.identity.identity_reads import expired_names
from ledger.identity.name_commands import ReleaseName
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.identity")

ROUND_S: Final = 1.0
# Of each kind, in one round: what is left is due in the next.
DUE_MAX: Final = 100
COMMIT_TIMEOUT_S: Final = 10.0


class IdentityWatch:
    """Looks once a second for what is due.

    Args:
        settings: the deployment's.
        reader: of the committed rows.
    """

    def __init__(self, settings: Settings, reader: LedgerReader) -> None:
        self._reader = reader
        self._ledger = LedgerClient(
            LedgerRoute(settings).call("submit"),
            is_unknown_outcome,
            capacity=settings.ledger_queue_max,
            batch_size=settings.batch_commands_max,
        )
        self._done = 0

    def __repr__(self) -> str:
        return f"<IdentityWatch done={self._done}>"

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.round(now_ms())
            except Exception:  # the edge of the loop: a failed round must not end the watch
                log.exception("identity not looked at")
            await asyncio.sleep(ROUND_S)

    async def round(self, at_ms: int) -> None:
        """Do what is due at a time, Unix ms."""
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

    async def _commit(self, commands: Iterable[Command]) -> None:
        """Commit these together; what is refused was done before, or is not due any more."""
        due = list(commands)
        committed = (self._ledger.commit(one, timeout_s=COMMIT_TIMEOUT_S) for one in due)
        for command, outcome in zip(due, await asyncio.gather(*committed), strict=True):
            if outcome.error is None:
                self._done += 1
                log.info("done what was due key=%s", command.key)
            else:
                log.warning("not done what was due key=%s error=%s", command.key, outcome.error)


def now_ms() -> int:
    """Return the wall time, Unix ms."""
    return time.time_ns() // 1_000_000
