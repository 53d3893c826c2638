"""Checks the ledger's processes: replaces a silent process, keeps a standby on another machine.

Ray restarts an actor whose process has ended, unless the actor was ended permanently. Ray does not
restart a frozen actor, or an actor whose event loop is stuck. In a cluster of several machines, a
standby gets the lock of a frozen writer after 3 s (`ledger/features/head_row.py`). The process that
replaces the frozen writer becomes the next standby. On a single machine, every commit waits until
this module has replaced the writer.

A ping does not use Postgres, so an actor answers pings even if Postgres is down. An actor whose
ping is late is not silent while its progress counter moves. `actors/cluster/process_watch.py` and
`core/shards/standby_place.py` decide; this module makes the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from actors.cluster.health_check import check_health, is_silent
from actors.cluster.ledgers.ledger_handover import is_writer
from actors.cluster.ledgers.ledger_slots import (
    end_ledger,
    ensure_ledger,
    existing_ledgers,
    make_ledger,
)
from actors.cluster.process_watch import Silence
from actors.cluster.scaling.ray_machines import working_machines
from actors.process.loop_clock import every, monotonic_ms
from actors.transport.names import LEDGERS
from core.metric_families import Report
from core.settings import Settings
from core.shards.standby_place import LedgerProcess, standby_move

log = logging.getLogger("callboard.timekeeper")

CHECK_INTERVAL_S = 1.0


class LedgerWatch:
    """Checks the ledger's actors every second.

    Args:
        settings: the deployment's settings. An actor that is silent for `ledger_silence_ms` is
            replaced.
        note: receives an actor's metrics report and the monotonic time in milliseconds.
    """

    def __init__(self, settings: Settings, note: Callable[[Report, int], None]) -> None:
        self._settings = settings
        self._note = note
        now_ms = monotonic_ms()
        self._silences = {
            name: Silence(settings.ledger_silence_ms, now_ms=now_ms) for name in LEDGERS
        }
        # Ray's id of the machine of the ledger's writer, "" while it is unknown.
        self.writers_machine = ""

    async def run(self) -> None:
        """Check until cancelled."""
        await every(CHECK_INTERVAL_S, self._check_once, "check of the ledger")

    async def _check_once(self) -> None:
        handles = await asyncio.to_thread(existing_ledgers)
        for name in LEDGERS:
            if name not in handles:
                self._silences[name].reset(monotonic_ms())
        if not handles:
            # Every ledger actor was ended permanently, and none was created again.
            log.warning("there is no ledger, and one is started")
            await asyncio.to_thread(ensure_ledger, self._settings)
            return
        found = await asyncio.gather(*(self._check(*item) for item in handles.items()))
        writers = [one.machine for one in found if one is not None and one.is_writer]
        self.writers_machine = writers[0] if len(writers) == 1 else ""
        machines = await asyncio.to_thread(working_machines)
        move = standby_move(LEDGERS, dict(zip(handles, found, strict=True)), machines)
        if move is None:
            return
        if move.machine:
            log.info("a standby of the ledger is started name=%s %s", move.name, move.machine)
            await asyncio.to_thread(make_ledger, move.name, self._settings, machine=move.machine)
        elif await is_writer(handles[move.name]) is False:  # it may have become the writer since
            log.info("a standby of the ledger is ended name=%s", move.name)
            await asyncio.to_thread(end_ledger, move.name)

    async def _check(self, name: str, handle: Any) -> LedgerProcess | None:
        """Check one actor, replace it if it is silent, and return its state; None: unknown."""
        silence = self._silences[name]
        try:
            reply = await check_health(handle.ping.remote, handle.progress.remote)
        except RayError as error:
            # It has ended or is starting: Ray restarts it.
            log.info(
                "the ledger's process is not reachable name=%s error=%s", name, type(error).__name__
            )
            silence.reset(monotonic_ms())
            return None
        if is_silent(name, silence, reply, monotonic_ms()):
            log.warning("the ledger makes no progress and is restarted name=%s", name)
            await asyncio.to_thread(ray.kill, handle, no_restart=False)
            silence.note_replaced(monotonic_ms())
        if not isinstance(reply, dict):
            return None
        self._note(reply["report"], monotonic_ms())
        return LedgerProcess(machine=reply["machine"], is_writer=reply["isWriter"])
