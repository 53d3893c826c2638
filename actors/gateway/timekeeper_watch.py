"""Makes a new timekeeper when the one that was there has died for good.

Ray starts it anew otherwise. Every replica watches, so that one is made while any replica lives;
making it is idempotent. design.md section 3 (Starting and owning). Decisions 0056 and 0202.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from actors.cluster.runtime import ensure_timekeeper
from actors.transport.actor_calls import actor_call, is_unknown_outcome
from actors.transport.names import TIMEKEEPER
from core.settings import Settings

log = logging.getLogger("callboard.gateway")

CHECK_INTERVAL_S: Final = 1.0
PING_TIMEOUT_S: Final = 2.0


class TimekeeperWatch:
    """Asks the timekeeper every second whether it is there.

    Args:
        settings: the deployment's, which a new timekeeper gets.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ping = actor_call(TIMEKEEPER, "ping")

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                await self._check_once()
            except Exception:  # the edge of the loop: a failed check must not end the watch
                log.exception("timekeeper not checked")
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check_once(self) -> None:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await self._ping()
        except Exception as error:  # the edge to another process
            log.info("the timekeeper is not there error=%s", type(error).__name__)
            if is_unknown_outcome(error):
                await asyncio.to_thread(ensure_timekeeper, self._settings)
