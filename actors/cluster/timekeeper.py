"""The timekeeper's actor: keeps one workflow actor per machine alive and gives orphans an owner.

A wrapper only: `actors/cluster/liveness.py` decides. design.md section 3 (Starting and owning).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict

import ray
from ray.exceptions import RayError

from actors.cluster.escrow_watch import EscrowWatch
from actors.cluster.ledger_watch import LedgerWatch
from actors.cluster.liveness import Claim, OwnerWatch
from actors.cluster.names import LEDGER
from actors.cluster.owner_actors import OwnerActors
from actors.dispatch.probes import Prober
from actors.process.arguments import settings_from
from actors.process.logs import configure_logging
from actors.transport.actor_calls import BatchCall, is_unknown_outcome
from actors.transport.ledger_client import LedgerClient
from ledger.owners.owner_commands import ClaimWorkflows
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.timekeeper")

ROUND_S = 0.5
PING_TIMEOUT_S = 2.0
CLAIM_TIMEOUT_S = 10.0


@ray.remote
class Timekeeper:
    """Reconciles what should run with what runs, twice a second."""

    async def __init__(self, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        settings = settings_from(values)
        configure_logging(settings, "timekeeper")
        self._reader = LedgerReader(settings.database_url, pool_size=1, timeout_s=PING_TIMEOUT_S)
        self._ledger = LedgerClient(
            BatchCall(settings.run_folder, LEDGER, "submit"),
            is_unknown_outcome,
            capacity=settings.ledger_queue_max,
            batch_size=settings.batch_commands_max,
        )
        self._watch = OwnerWatch(silence_ms_max=settings.owner_silence_ms)
        self._owners = OwnerActors(settings)
        self._rounds = 0
        self._prober = Prober(settings, self._reader)
        watches = (LedgerWatch(settings), EscrowWatch(self._reader))
        loops = (self._prober.run, *(watch.run for watch in watches), self._run)
        self._loops = [asyncio.create_task(loop()) for loop in loops]

    async def owners(self) -> list[str]:
        """Return the names of owners that answered lately."""
        return self._watch.live(_now_ms())

    async def ping(self) -> int:
        """Return how many rounds have been made."""
        return self._rounds

    async def process_id(self) -> int:
        """Return this process's id, for tests and operators."""
        return os.getpid()

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except Exception:  # the edge of the loop: one bad round must not end the watch
                log.exception("round failed")
            self._rounds += 1
            await asyncio.sleep(ROUND_S)

    async def _round(self) -> None:
        """1. actors for machines; 2. who answers; 3. who is silent; 4. who took orphans over;
        5. who knows whom."""
        made, gone = self._owners.ensure(await asyncio.to_thread(_machines))
        for name in gone:
            self._watch.forget(name)
        for name in made:
            self._watch.expected(name, _now_ms())
        await asyncio.gather(*(self._ping(name) for name in self._owners.names()))
        now_ms = _now_ms()
        # Before rows are read: a silent owner is replaced while Postgres is away, too.
        for name in self._watch.silent():
            log.warning("owner is silent and is restarted owner=%s", name)
            self._owners.restart(name)
            self._watch.expected(name, now_ms)
        stored = {item.name: item.epoch for item in await self._reader.owners()}
        for claim in self._watch.claims(stored, now_ms):
            await self._claim(claim)
        for name in self._watch.to_adopt(now_ms):
            if await self._owners.tell(name, "adopt"):
                self._watch.adopted(name)
        for name, peers in self._watch.news_of_peers(now_ms):
            if not await self._owners.tell(name, "know_peers", peers):
                self._watch.untold(name)

    async def _ping(self, name: str) -> None:
        try:
            reply = await self._owners.ping(name)
        except RayError as error:
            # Ended, or being started: that is Ray's business, and takes its time.
            log.info("owner is not there owner=%s error=%s", name, type(error).__name__)
            self._watch.ended(name, _now_ms())
            return
        if isinstance(reply, int):
            if self._watch.is_busy(name, reply, _now_ms()):
                log.warning("owner is busy owner=%s progress=%d", name, reply)
            else:
                self._watch.unanswered(name, _now_ms())
        elif reply is None:
            self._watch.unanswered(name, _now_ms())
        else:
            self._prober.name(reply["openCircuits"])
            progress = reply["progress"]
            if reply["isReady"]:
                self._watch.answered(name, int(reply["epoch"]), _now_ms(), progress)
            else:
                self._watch.starting(name, _now_ms(), progress)

    async def _claim(self, claim: Claim) -> None:
        key = f"claim:{claim.from_owner}:{claim.from_epoch}"
        command = ClaimWorkflows(key=key, **asdict(claim))
        outcome = await self._ledger.commit(command, timeout_s=CLAIM_TIMEOUT_S)
        log.warning("workflows claimed claim=%s outcome=%s", claim, outcome)
        if outcome.error is None:
            self._watch.claimed(claim)


def _machines() -> list[str]:
    return [one["NodeID"] for one in ray.nodes() if one["Alive"]]  # type: ignore[no-untyped-call]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
