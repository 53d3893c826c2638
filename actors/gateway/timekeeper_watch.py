"""Replaces a timekeeper that makes no progress, or that Ray no longer restarts.

Ray restarts a timekeeper whose process has ended. Ray does not notice a timekeeper that is frozen,
or that answers but completes no rounds. Without a working timekeeper, no process watches the owners
and the ledger. Every replica checks the timekeeper, so one living replica is enough. Two replicas
may act at the same time: creating a timekeeper is idempotent, and a timekeeper that is ended twice
only restarts once more. Decisions process-liveness-and-standby and workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from actors.cluster.process_watch import Silence
from actors.cluster.runtime import ensure_timekeeper, restart_timekeeper
from actors.process.loop_clock import every, monotonic_ms
from actors.transport.actor_calls import ActorCall, is_unknown_outcome
from actors.transport.names import TIMEKEEPER
from core.metric_families import Report
from core.settings import Settings

log = logging.getLogger("callboard.gateway")

CHECK_INTERVAL_S: Final = 1.0
PING_TIMEOUT_S: Final = 2.0


class TimekeeperWatch:
    """Checks every second that the timekeeper completes rounds, and replaces a silent timekeeper.

    Args:
        settings: the deployment's settings, passed to a new timekeeper. A timekeeper that completes
            no round for `timekeeper_silence_ms` is replaced.
        report: returns the metrics that this replica reports to the timekeeper.
    """

    def __init__(self, settings: Settings, report: Callable[[], Report]) -> None:
        self._settings = settings
        self._report = report
        self._ping = ActorCall(TIMEKEEPER, "ping")
        self._silence = Silence(settings.timekeeper_silence_ms, now_ms=monotonic_ms())

    async def run(self) -> None:
        """Check the timekeeper until cancelled."""
        await every(CHECK_INTERVAL_S, self._check_once, "check of the timekeeper")

    async def _check_once(self) -> None:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                told = await self._ping(self._report())
        except TimeoutError:
            is_silent = self._silence.note_miss(monotonic_ms())
        except Exception as error:  # the edge to another process
            log.info("the timekeeper is not reachable error=%s", type(error).__name__)
            self._silence.reset(monotonic_ms())
            if is_unknown_outcome(error):
                await asyncio.to_thread(ensure_timekeeper, self._settings)
            return
        else:
            is_silent = self._silence.note_work(told["rounds"], monotonic_ms())
        if is_silent:
            log.warning("the timekeeper makes no progress and is restarted")
            await asyncio.to_thread(restart_timekeeper)
            self._silence.note_replaced(monotonic_ms())
