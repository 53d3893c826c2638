"""The timekeeper's actor: runs the deployment's periodic tasks, and keeps the owners running.

It starts the workflow actors of every machine and restarts silent actors. The other periodic tasks
are the watches that the constructor lists. This module makes no decisions: for example,
`actors/cluster/process_watch.py` decides whether a process is silent. The timekeeper moves no
shards: members take and give shards on their own, so workflows continue without a timekeeper.
Decision workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from actors.cluster.due.event_deliveries import EventDeliveries
from actors.cluster.due.event_follower import EventFollower
from actors.cluster.due.event_triggers import EventRuns
from actors.cluster.due.run_starter import RunStarter
from actors.cluster.due.schedules import ScheduleWatch
from actors.cluster.due.webhook_deliveries import WebhookSender
from actors.cluster.escrow_watch import EscrowWatch
from actors.cluster.health_check import is_silent
from actors.cluster.identity_watch import IdentityWatch
from actors.cluster.ledgers.ledger_watch import LedgerWatch
from actors.cluster.owner_actors import OwnerActors, cores_of_machines
from actors.cluster.peers.peer_watch import PeerWatch
from actors.cluster.process_watch import Silence
from actors.cluster.reporting.audit_log_watch import AuditLogWatch
from actors.cluster.reporting.books_watch import BooksResult, BooksWatch
from actors.cluster.reporting.metric_totals import MetricTotals
from actors.cluster.scaling.machine_watch import MachineWatch
from actors.cluster.serve_watch import ServeWatch
from actors.dispatch.probes import Prober
from actors.process.loop_clock import every, monotonic_ms
from actors.process.startup import configure_logging, parse_settings_argument, raise_file_limit
from core.metric_families import Key, Report
from core.shards.shard import SHARDS
from federation.name_resolver import NameResolver
from ledger.features.webhooks import DeliveryStore
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.timekeeper")

ROUND_S = 1.0
READ_TIMEOUT_S = 2.0
LARGE_READ_TIMEOUT_S = 30.0
# Every replica pings the timekeeper each second. If no ping arrives in this time, no replica works.
ASKED_MS = 5_000


@ray.remote
class Timekeeper:
    """Runs the periodic tasks. Once a second it makes the running owners match the wanted ones."""

    async def __init__(self, values: Mapping[str, object]) -> None:  # type: ignore[misc]
        settings = parse_settings_argument(values)
        configure_logging(settings, "timekeeper")
        raise_file_limit()
        self._generation = settings.generation
        self._reader = LedgerReader(settings.database_url, pool_size=1, timeout_s=READ_TIMEOUT_S)
        self._silence_ms_max = settings.owner_silence_ms
        self._silences: dict[str, Silence] = {}  # of the owners that should run
        self._owners = OwnerActors(settings)
        self._rounds = 0
        self._asked_ms = monotonic_ms() - ASKED_MS
        self._prober = Prober(settings, self._reader, NameResolver())
        # A separate reader, because its large reads would delay the other watches.
        reader = LedgerReader(settings.database_url, pool_size=1, timeout_s=LARGE_READ_TIMEOUT_S)
        self._totals, self._books = MetricTotals(reader), BooksWatch(reader)
        self._audit_log = AuditLogWatch(settings, self._reader)
        ledgers = LedgerWatch(settings, self._totals.note)
        due_reader = LedgerReader(settings.database_url, pool_size=2)
        deliveries = DeliveryStore(settings.database_url)
        starter = RunStarter(settings)
        starter.follow()
        self._machines = MachineWatch(settings, lambda: ledgers.writers_machine)
        watches = (
            ledgers,
            ServeWatch(settings.serve_silence_ms),
            EscrowWatch(self._reader),
            self._audit_log,
            IdentityWatch(
                settings, self._reader, lambda: self._is_asked() and bool(ledgers.writers_machine)
            ),
            self._machines,
            self._totals,
            self._books,
            ScheduleWatch(settings, due_reader, starter),
            PeerWatch(settings, due_reader),
            EventFollower(due_reader, deliveries),
            EventDeliveries(
                due_reader,
                deliveries,
                WebhookSender(settings, due_reader),
                EventRuns(settings, due_reader, starter),
            ),
        )
        loops = (self._prober.run, *(watch.run for watch in watches), self._run)
        if settings.otlp_endpoint:  # imported only here: its packages are an optional extra
            from actors.cluster.reporting.trace_export import TraceExport

            loops = (*loops, TraceExport(settings).run)
        self._loops = [asyncio.create_task(loop()) for loop in loops]

    async def ping(self, report: Report | None = None) -> dict[str, Any]:
        """Return the number of rounds so far, and the problem of each component, or None.

        Each replica calls this every second. A problem of the books names only the table of the
        wrong row, because the health endpoint is public.

        Args:
            report: the metrics report of the calling replica.
        """
        self._asked_ms = monotonic_ms()
        if report is not None:
            self._totals.note(report, self._asked_ms)
        wrong = self._books.result.problem
        problems = {
            "books": None if wrong is None else f"a row of {wrong.table} is wrong",
            "audit": self._audit_log.problem(self._asked_ms),
        }
        return {"rounds": self._rounds, "problems": problems}

    async def metrics(self) -> dict[Key, float]:
        """Return the series of the whole deployment."""
        sums = self._totals.sums(monotonic_ms())
        held = sums.get(("callboard_shards", "held"), 0)
        sums["callboard_shards", "unheld"] = max(0, SHARDS - held)
        return {**sums, **self._books.series()}

    async def books(self) -> BooksResult:
        """Return the newest result of the check of the books."""
        return self._books.result

    async def check_books(self) -> int:
        """Request a check of the books; return the time of the request, Unix milliseconds."""
        return self._books.request()

    def _is_asked(self) -> bool:
        return monotonic_ms() - self._asked_ms < ASKED_MS

    async def generation(self) -> str:
        """Return the generation of this actor and of the owners that it starts.

        Each upgrade has a new generation.
        """
        return self._generation

    async def process_id(self) -> int:
        """Return this process's id, for tests and operators."""
        return os.getpid()

    async def _run(self) -> None:
        await every(ROUND_S, self._round, "round of owners")

    async def _round(self) -> None:
        """Run one round: 1. create and end actors; 2. ping owners, and restart silent ones."""
        self._rounds += 1
        machines = await asyncio.to_thread(cores_of_machines)
        released = self._machines.released
        made, gone = self._owners.ensure_actors(
            {one: cores for one, cores in machines.items() if one not in released}
        )
        for name in gone:
            self._silences.pop(name, None)
        for name in made:
            self._silences[name] = Silence(self._silence_ms_max, now_ms=monotonic_ms())
        await asyncio.gather(*(self._ping(name) for name in self._owners.names()))

    async def _ping(self, name: str) -> None:
        silence = self._silences[name]
        try:
            reply = await self._owners.ping(name)
        except RayError as error:
            # The owner has ended or is starting; Ray restarts it.
            log.info("owner is not reachable owner=%s error=%s", name, type(error).__name__)
            is_late = silence.note_ended(monotonic_ms())
        else:
            if isinstance(reply, dict):
                self._totals.note(reply["report"], monotonic_ms())
                self._prober.request_probes(reply["openCircuits"])
            is_late = is_silent(name, silence, reply, monotonic_ms())
        if is_late:
            log.warning("owner is silent and is restarted owner=%s", name)
            self._owners.restart(name)
            silence.note_replaced(monotonic_ms())
