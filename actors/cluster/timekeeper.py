"""The timekeeper's actor: keeps workflow actors alive and assigns lost owners' workflows.

A wrapper only: `actors/cluster/process_watch.py` decides. design.md section 3.
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

from actors.cluster.asking import Answered, Busy, Silent
from actors.cluster.escrow_watch import EscrowWatch
from actors.cluster.ledger_watch import LedgerWatch
from actors.cluster.owner_actors import OwnerActors
from actors.cluster.process_watch import Claim, OwnerWatch
from actors.dispatch.probes import Prober
from actors.process.arguments import parse_settings_argument
from actors.process.logs import configure_logging
from actors.transport.actor_calls import BatchCall, is_unknown_outcome
from actors.transport.ledger_client import LedgerClient
from actors.transport.names import LEDGER
from federation.name_resolver import NameResolver
from ledger.owners.owner_commands import ClaimWorkflows
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.timekeeper")

ROUND_S = 1.0
PING_TIMEOUT_S = 2.0
CLAIM_TIMEOUT_S = 10.0


@ray.remote
class Timekeeper:
    """Reconciles the target state of the actors with the observed one, once a second."""

    async def __init__(self, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        settings = parse_settings_argument(values)
        configure_logging(settings, "timekeeper")
        self._reader = LedgerReader(settings.database_url, pool_size=1, timeout_s=PING_TIMEOUT_S)
        self._ledger = LedgerClient(
            BatchCall(settings, LEDGER, "submit"),
            is_unknown_outcome,
            capacity=settings.ledger_queue_max,
            batch_size=settings.batch_commands_max,
        )
        self._watch = OwnerWatch(silence_ms_max=settings.owner_silence_ms)
        self._owners = OwnerActors(settings)
        self._rounds = 0
        self._prober = Prober(settings, self._reader, NameResolver())
        watches = (LedgerWatch(settings), EscrowWatch(self._reader))
        loops = (self._prober.run, *(watch.run for watch in watches), self._run)
        self._loops = [asyncio.create_task(loop()) for loop in loops]

    async def owners(self) -> list[str]:
        """Return the names of the live owners."""
        return self._watch.live_owners(_now_ms())

    async def ping(self) -> int:
        """Return how many rounds were run."""
        return self._rounds

    async def process_id(self) -> int:
        """Return this process's id, for tests and operators."""
        return os.getpid()

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except Exception:  # the edge of the loop: a failed round must not end the watch
                log.exception("round failed")
            self._rounds += 1
            await asyncio.sleep(ROUND_S)

    async def _round(self) -> None:
        """Run one round: 1. create and end actors; 2. ping owners; 3. restart silent owners;
        4. claim and adopt lost owners' workflows; 5. send peer updates."""
        made, gone = self._owners.ensure_actors(await asyncio.to_thread(_machines))
        for name in gone:
            self._watch.remove_owner(name)
        for name in made:
            self._watch.note_created(name, _now_ms())
        await asyncio.gather(*(self._ping(name) for name in self._owners.names()))
        now_ms = _now_ms()
        # Before the read of rows, so that a silent owner is replaced without Postgres too.
        for name in self._watch.silent_owners():
            log.warning("owner is silent and is restarted owner=%s", name)
            self._owners.restart(name)
            self._watch.note_replaced(name, now_ms)
        stored = {item.name: item.epoch for item in await self._reader.owners()}
        for claim in self._watch.list_claims(stored, now_ms):
            await self._claim(claim)
        for name in self._watch.owners_to_adopt(now_ms):
            if await self._owners.call_owner(name, "adopt"):
                self._watch.note_adopted(name)
        for name, peers in self._watch.pending_peer_updates(now_ms):
            if not await self._owners.call_owner(name, "know_peers", peers):
                self._watch.note_peer_update_failed(name)

    async def _ping(self, name: str) -> None:
        try:
            reply = await self._owners.ping(name)
        except RayError as error:
            # It has ended or is starting: Ray restarts it.
            log.info("owner is not there owner=%s error=%s", name, type(error).__name__)
            self._watch.note_ended(name, _now_ms())
            return
        now_ms = _now_ms()
        match reply:
            case Answered(counters):
                self._prober.request_probes(counters["openCircuits"])
                progress = counters["progress"]
                if counters["isReady"]:
                    self._watch.note_answered(name, int(counters["epoch"]), now_ms, progress)
                else:
                    self._watch.note_starting(name, now_ms, progress)
            case Busy(progress) if self._watch.note_progress(name, progress, now_ms):
                log.warning("owner is busy owner=%s progress=%d", name, progress)
            case Busy() | Silent():
                self._watch.note_unanswered(name, now_ms)

    async def _claim(self, claim: Claim) -> None:
        key = f"claim:{claim.from_owner}:{claim.from_epoch}"
        command = ClaimWorkflows(key=key, **asdict(claim))
        outcome = await self._ledger.commit(command, timeout_s=CLAIM_TIMEOUT_S)
        log.warning("workflows claimed claim=%s outcome=%s", claim, outcome)
        if outcome.error is None:
            self._watch.note_claimed(claim)


def _machines() -> list[str]:
    return [one["NodeID"] for one in ray.nodes() if one["Alive"]]  # type: ignore[no-untyped-call]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
