"""Replaces a ledger actor that has stopped answering, or that has died for good.

Ray starts a dead actor anew by itself, unless it was killed for good; one that is frozen, or whose
loop is stuck, it leaves alone, and every commit of the cluster waits behind it.
`actors/cluster/liveness.py` judges, this file asks and acts. The successor takes a new epoch from
the database, which fences the old one off should it wake up. A ping does not touch Postgres: its
absence is no silence. A ping that is late while the actor's counter of progress moves is no silence
either. Decisions 0056 and 0092.
"""

from __future__ import annotations

import asyncio
import logging
import time

import ray
from ray.exceptions import RayError

from actors.cluster.ledger_actor import LedgerActor
from actors.cluster.liveness import Silence
from actors.cluster.named_actors import ensure_actor
from actors.cluster.names import LEDGER, NAMESPACE
from actors.cluster.owner_actors import progress_of
from actors.transport.actor_calls import actor_call
from core.settings import Settings

log = logging.getLogger("callboard.timekeeper")

LOOK_S = 1.0
PING_TIMEOUT_S = 2.0


class LedgerWatch:
    """Asks the ledger actor every second whether it is there.

    Args:
        settings: the deployment's; `ledger_silence_ms`: how long the actor may say nothing before
            it is replaced.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._silence = Silence(settings.ledger_silence_ms, now_ms=_now_ms())
        self._ping = actor_call(LEDGER, "ping")
        self._progress = actor_call(LEDGER, "progress")

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            try:
                await self._look()
            except Exception:  # the edge of the loop: one bad look must not end the watch
                log.exception("the ledger was not looked at")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        try:
            statistics = await asyncio.wait_for(self._ping(), PING_TIMEOUT_S)
        except TimeoutError:
            progress = await progress_of(self._progress)
            if progress is not None and self._silence.is_busy(progress, _now_ms()):
                log.warning("the ledger is busy progress=%d", progress)
            elif self._silence.is_too_long(_now_ms()):
                await self._replace()
        except (RayError, ValueError) as error:
            # It has ended, or is being started: that is Ray's business, and takes its time. Only
            # when it died for good there is none of its name, and this makes another.
            log.info("the ledger is not there error=%s", type(error).__name__)
            self._silence.began(_now_ms())
            await asyncio.to_thread(ensure_actor, LedgerActor, LEDGER, self._settings)
        else:
            self._silence.ended(_now_ms(), statistics["progress"])

    async def _replace(self) -> None:
        log.warning("the ledger is silent and is started anew")
        handle = ray.get_actor(LEDGER, namespace=NAMESPACE)
        await asyncio.to_thread(ray.kill, handle, no_restart=False)
        self._silence.began(_now_ms())


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
