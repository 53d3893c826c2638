"""Replaces Serve's controller when it has stopped answering.

Ray starts a controller anew that has ended, but not one that is frozen; requests are served on
without one, but no replica or proxy that ends after it is replaced. Its successor finds the
replicas and proxies by what Serve has stored. `actors/cluster/process_watch.py` judges.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from actors.cluster.process_watch import Silence
from actors.process.loop_clock import every, monotonic_ms

log = logging.getLogger("callboard.timekeeper")

# Of the silence: between two questions, and until one counts as unanswered.
QUESTION_PART: Final = 1 / 6


class ServeWatch:
    """Asks Serve's controller again and again whether it is there.

    Args:
        silence_ms_max: silence after which it is replaced, milliseconds.
    """

    def __init__(self, silence_ms_max: int) -> None:
        self._silence = Silence(silence_ms_max, now_ms=monotonic_ms())
        self._question_s = silence_ms_max * QUESTION_PART / 1_000

    async def run(self) -> None:
        """Ask until cancelled."""
        await every(self._question_s, self._check_once, "check of Serve's controller")

    async def _check_once(self) -> None:
        try:
            controller: Any = await asyncio.to_thread(
                ray.get_actor, SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE
            )
        except ValueError:  # this cluster has no Serve, or its controller has died for good
            self._silence.reset(monotonic_ms())
            return
        try:
            async with asyncio.timeout(self._question_s):
                await controller.check_alive.remote()
        except TimeoutError:
            if self._silence.note_miss(monotonic_ms()):
                log.warning("Serve's controller is silent and is started anew")
                await asyncio.to_thread(ray.kill, controller, no_restart=False)
                self._silence.note_replaced(monotonic_ms())
        except RayError as error:
            # It has ended, or is starting: Ray sees to that.
            log.info("Serve's controller is not there error=%s", type(error).__name__)
            self._silence.reset(monotonic_ms())
        else:
            self._silence.note_answer(monotonic_ms())
