"""Replaces a ledger actor that has stopped answering, or that has died for good.

Ray restarts a dead actor unless it was killed for good, but not one that is frozen or whose event
loop is stuck; every commit of the cluster would wait for it. `actors/cluster/process_watch.py`
judges, this module asks and acts. The successor takes a new epoch from the database, which fences
off the old actor should it wake up. A ping does not touch Postgres, so an unavailable Postgres is
no silence. A late ping is no silence either while the actor's progress counter moves.
Decisions 0056 and 0092.
"""

from __future__ import annotations

import asyncio
import logging
import time

import ray
from ray.exceptions import RayError

from actors.cluster.asking import Answered, Busy, Silent, ask
from actors.cluster.ledger_actor import LedgerActor
from actors.cluster.process_watch import Silence
from actors.process.arguments import settings_argument
from actors.transport.actor_calls import actor_call
from actors.transport.names import LEDGER, NAMESPACE, ensure_actor
from core.settings import Settings

log = logging.getLogger("callboard.timekeeper")

CHECK_INTERVAL_S = 1.0


class LedgerWatch:
    """Asks the ledger actor every second whether it is there.

    Args:
        settings: the deployment's; `ledger_silence_ms`: timeout of the actor's answers, after which
            it is replaced.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._silence = Silence(settings.ledger_silence_ms, now_ms=_now_ms())
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
            reply = await ask(self._ping, self._progress)
        except (RayError, ValueError) as error:
            # It has ended or is starting: Ray restarts it. Only when it died for good is there no
            # actor of its name, and this call creates one.
            log.info("the ledger is not there error=%s", type(error).__name__)
            self._silence.reset(_now_ms())
            argument = settings_argument(self._settings)
            await asyncio.to_thread(ensure_actor, LedgerActor, LEDGER, argument)
            return
        match reply:
            case Answered(counters):
                self._silence.note_answer(_now_ms(), counters["progress"])
            case Busy(progress) if self._silence.note_progress(progress, _now_ms()):
                log.warning("the ledger is busy progress=%d", progress)
            case Busy() | Silent():
                if self._silence.note_miss(_now_ms()):
                    await self._replace()

    async def _replace(self) -> None:
        log.warning("the ledger is silent and is started anew")
        handle = ray.get_actor(LEDGER, namespace=NAMESPACE)
        await asyncio.to_thread(ray.kill, handle, no_restart=False)
        self._silence.note_replaced(_now_ms())


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
