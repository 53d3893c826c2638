"""The ledger's actor: one per cluster, in front of the one writer of the audited tables.

A wrapper only: it receives batches, `ledger/writer/group_commit.py` decides and commits. When the
writer finds that what it planned cannot be true (an integrity error), the process ends at once and
Ray starts a new one that reloads everything. design.md section 3; money.md section 4.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

import ray

from actors.process.arguments import parse_settings_argument
from actors.process.garbage import collect_rarely
from actors.process.logs import configure_logging
from actors.process.metrics import start_loop_watchdog
from actors.transport.actor_calls import BatchServer
from actors.transport.ledger_client import RETRY_DELAY_S_MAX, RETRY_DELAY_S_MIN
from actors.transport.names import LEDGER, LIVENESS
from actors.transport.wire import answer_commands, answer_renewals
from ledger.errors import LedgerIntegrityError, LedgerUnavailable
from ledger.writer.group_commit import GroupCommit
from ledger.writer.store import Genesis

log = logging.getLogger("callboard.ledger")


@ray.remote(concurrency_groups=LIVENESS)  # type: ignore[call-overload]
class LedgerActor:
    """Commits batches of commands for every process of the cluster."""

    async def __init__(self, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        settings = parse_settings_argument(values)
        configure_logging(settings, "ledger")
        self._generation = settings.generation
        collect_rarely()
        self._watchdog = start_loop_watchdog(LEDGER, "ledger")
        self._commits = GroupCommit(
            settings.database_url,
            genesis=Genesis(origin=f"callboard/{settings.region}", fee_bps=settings.fee_bps),
            on_fatal=_stop,
            batch_max=settings.batch_commands_max,
            queue_max=settings.ledger_queue_max,
        )
        self._batches = BatchServer(settings, LEDGER)
        # Not awaited: an absent Postgres must not make the creation of the actor fail for good.
        self._start = asyncio.create_task(self._open())

    async def _open(self) -> None:
        await self._batches.start({"submit": self.submit, "renew": self.renew})
        delay_s = RETRY_DELAY_S_MIN
        while True:
            try:
                await self._commits.start()
            except LedgerUnavailable as error:
                log.warning("ledger cannot be opened reason=%s", error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_DELAY_S_MAX)
            except Exception as error:
                # The edge of the process, which may have been fenced off at its start. The watch
                # would not replace an actor that answers pings and never opens the ledger.
                log.exception("ledger not opened")
                _stop(LedgerIntegrityError(f"opening: {error!r}"))
            else:
                log.info("ledger opened %s", self._commits.statistics())
                return

    async def submit(self, bodies: list[bytes]) -> list[bytes]:
        """Commit commands in their order; raise LEDGER_UNAVAILABLE when the outcome is unknown."""
        if not self._start.done():
            await asyncio.shield(self._start)
        return await answer_commands(self._commits.submit, bodies)

    async def renew(self, bodies: list[bytes]) -> list[bytes]:
        """Renew leases of members; raise LEDGER_UNAVAILABLE while Postgres does not answer."""
        return answer_renewals(self._commits.renew, bodies)

    async def ping(self) -> dict[str, Any]:
        """Return the counters of the writer and of its event loop, and the progress counter."""
        commits, turns = self._commits.statistics(), self._watchdog.statistics()
        return {"progress": turns.turns, "turns": turns, "commits": commits}

    @ray.method(concurrency_group="liveness")
    async def progress(self) -> int:
        """Return the progress counter of this process, from a thread of its own."""
        return self._watchdog.turns

    async def endpoint(self) -> str:
        """Return where other machines' processes reach this actor over TCP; "": nowhere."""
        return self._batches.endpoint

    async def generation(self) -> str:
        """Return which upgrade has made this actor, once the ledger is open."""
        await asyncio.shield(self._start)
        return self._generation

    async def process_id(self) -> int:
        """Return this process's id, for tests and operators."""
        return os.getpid()


def _stop(error: LedgerIntegrityError) -> None:
    """End this process without cleaning up, because its memory cannot be trusted."""
    log.critical("ledger stops reason=%s", error)
    logging.shutdown()
    os._exit(1)
