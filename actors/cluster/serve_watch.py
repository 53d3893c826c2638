"""Replaces Ray Serve's controller when it has stopped answering.

Ray restarts a controller whose process has ended, but does not notice a frozen controller. Without
a working controller, requests are still served, but ended replicas and proxies are not replaced. A
new controller finds the running replicas and proxies from the state that Serve has stored.
`actors/cluster/process_watch.py` decides whether the controller is silent.
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

# The interval of the checks, and the timeout of each check, as a part of the silence timeout.
QUESTION_PART: Final = 1 / 6


class ServeWatch:
    """Checks Serve's controller periodically.

    Args:
        silence_ms_max: the silence after which the controller is replaced, milliseconds.
    """

    def __init__(self, silence_ms_max: int) -> None:
        self._silence = Silence(silence_ms_max, now_ms=monotonic_ms())
        self._question_s = silence_ms_max * QUESTION_PART / 1_000

    async def run(self) -> None:
        """Check until cancelled."""
        await every(self._question_s, self._check_once, "check of Serve's controller")

    async def _check_once(self) -> None:
        try:
            controller: Any = await asyncio.to_thread(
                ray.get_actor, SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE
            )
        except ValueError:  # Serve does not run, or its controller was ended permanently
            self._silence.reset(monotonic_ms())
            return
        try:
            async with asyncio.timeout(self._question_s):
                await controller.check_alive.remote()
        except TimeoutError:
            if self._silence.note_miss(monotonic_ms()):
                log.warning("Serve's controller does not answer and is restarted")
                await asyncio.to_thread(ray.kill, controller, no_restart=False)
                self._silence.note_replaced(monotonic_ms())
        except RayError as error:
            # The controller has ended or is starting; Ray restarts it.
            log.info("Serve's controller is not reachable error=%s", type(error).__name__)
            self._silence.reset(monotonic_ms())
        else:
            self._silence.note_answer(monotonic_ms())
