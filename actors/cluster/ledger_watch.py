"""Replaces a ledger actor that has stopped answering without having ended.

Ray restarts a dead actor, but not one that is frozen or whose event loop is stuck; every commit of
the cluster would wait for it. `actors/cluster/process_watch.py` judges, this module asks and acts.
The successor takes a new epoch from the database, which fences off the old actor should it wake up.
A ping does not touch Postgres, so an unavailable Postgres is no silence. A late ping is no silence
either while the actor's progress counter moves. Decisions 0056 and 0092.
"""

from __future__ import annotations

import asyncio
import logging
import time

import ray
from ray.exceptions import RayError

from actors.cluster.names import LEDGER, NAMESPACE
from actors.cluster.owner_actors import read_progress
from actors.cluster.process_watch import Silence
from actors.transport.actor_calls import actor_call

log = logging.getLogger("callboard.timekeeper")

CHECK_INTERVAL_S = 1.0
PING_TIMEOUT_S = 2.0


class LedgerWatch:
    """Asks the ledger actor every second whether it is there.

    Args:
        silence_ms_max: timeout of its answers, after which it is replaced.
    """

    def __init__(self, silence_ms_max: int) -> None:
        self._silence = Silence(silence_ms_max, now_ms=_now_ms())
        self._ping = actor_call(LEDGER, "ping")
        self._progress = actor_call(LEDGER, "progress")

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                await self._check_once()
            except Exception:  # the edge of the loop: a failed check must not end the watch
                log.exception("ledger not checked")
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check_once(self) -> None:
        try:
            statistics = await asyncio.wait_for(self._ping(), PING_TIMEOUT_S)
        except TimeoutError:
            progress = await read_progress(self._progress)
            if progress is not None and self._silence.note_progress(progress, _now_ms()):
                log.warning("the ledger is busy progress=%d", progress)
            elif self._silence.note_miss(_now_ms()):
                await self._replace()
        except (RayError, ValueError) as error:
            # It has ended or is starting: Ray restarts it.
            log.info("the ledger is not there error=%s", type(error).__name__)
            self._silence.reset(_now_ms())
        else:
            self._silence.note_answer(_now_ms(), statistics["progress"])

    async def _replace(self) -> None:
        log.warning("the ledger is silent and is started anew")
        handle = ray.get_actor(LEDGER, namespace=NAMESPACE)
        await asyncio.to_thread(ray.kill, handle, no_restart=False)
        self._silence.reset(_now_ms())


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
