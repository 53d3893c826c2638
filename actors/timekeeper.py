"""The timekeeper's actor: keeps one workflow actor per machine alive and gives orphans an owner.

A wrapper only: `actors/watch.py` decides. design.md section 3 (Starting and owning).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import asdict
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.calls import BatchCall, is_unknown_outcome
from actors.escrow_watch import EscrowWatch
from actors.ledger_client import LedgerClient
from actors.ledger_watch import LedgerWatch
from actors.logs import configure_logging
from actors.names import LEDGER, NAMESPACE, workflow_actor
from actors.probes import Prober
from actors.watch import Claim, OwnerWatch
from actors.workflow_actor import WorkflowActor
from core.settings import Settings
from ledger.commands import ClaimWorkflows
from ledger.queries.reader import LedgerReader

log = logging.getLogger("callboard.timekeeper")

ROUND_S = 0.5
PING_TIMEOUT_S = 2.0
CLAIM_TIMEOUT_S = 10.0


@ray.remote
class Timekeeper:
    """Reconciles what should run with what runs, twice a second."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        configure_logging(settings, "timekeeper")
        self._settings = settings
        self._reader = LedgerReader(settings.database_url, pool_size=1, patience_s=PING_TIMEOUT_S)
        self._ledger = LedgerClient(
            BatchCall(settings.run_folder, LEDGER, "submit"),
            is_unknown_outcome,
            capacity=settings.ledger_queue_max,
            batch_size=settings.batch_commands_max,
        )
        self._watch = OwnerWatch(silence_ms_max=settings.owner_silence_ms)
        self._handles: dict[str, Any] = {}
        self._rounds = 0
        self._prober = Prober(settings, self._reader)
        watches = (LedgerWatch(settings.ledger_silence_ms), EscrowWatch(self._reader))
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
        """1. actors for machines; 2. who answers; 3. who took orphans over; 4. who knows whom."""
        self._ensure_actors(await asyncio.to_thread(_machines))
        await asyncio.gather(*(self._ping(name) for name in self._handles))
        now_ms = _now_ms()
        # An owner without an address was claimed before: it has nothing left.
        stored = {item.name: item.epoch for item in await self._reader.owners() if item.address}
        for name in self._watch.silent(now_ms):
            log.warning("owner is silent and is restarted owner=%s", name)
            ray.kill(self._handles[name], no_restart=False)
            self._watch.expected(name, now_ms)
        for claim in self._watch.claims(stored, now_ms):
            await self._claim(claim)
        for name in self._watch.to_adopt(now_ms):
            await asyncio.wait_for(self._handles[name].adopt.remote(), CLAIM_TIMEOUT_S)
            self._watch.adopted(name)
        for name, peers in self._watch.news_of_peers(now_ms):
            await asyncio.wait_for(self._handles[name].know_peers.remote(peers), PING_TIMEOUT_S)

    def _ensure_actors(self, machines: list[str]) -> None:
        wanted = {
            workflow_actor(node_id, index): node_id
            for node_id in machines
            for index in range(self._settings.workflow_actors_per_machine)
        }
        for name in set(self._handles) - set(wanted):
            log.warning("machine is gone owner=%s", name)
            ray.kill(self._handles.pop(name))
            self._watch.forget(name)
        for name in set(wanted) - set(self._handles):
            self._handles[name] = WorkflowActor.options(  # type: ignore[attr-defined]
                name=name,
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=1_000,
                scheduling_strategy=NodeAffinitySchedulingStrategy(wanted[name], soft=False),
            ).remote(name, self._settings)
            self._watch.expected(name, _now_ms())

    async def _ping(self, name: str) -> None:
        try:
            reply = await asyncio.wait_for(self._handles[name].ping.remote(), PING_TIMEOUT_S)
        except Exception as error:  # any failure of another process is silence, nothing more
            log.info("no answer owner=%s error=%s", name, type(error).__name__)
            return
        self._prober.name(reply["openCircuits"])
        if reply["isReady"]:
            self._watch.answered(name, int(reply["epoch"]), _now_ms())
        else:
            self._watch.restoring(name, _now_ms())

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
