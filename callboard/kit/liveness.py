"""The heartbeats of a registered agent, from its registration to its end.

1. While it runs, the agent sends heartbeats with its status and load.
2. When it begins to end, it sends `draining`, so that it gets no new work.
3. At the end it sends `stopped`, or deregisters.

All these requests are best effort. If they fail, the agent continues to work, and the coordinator
checks the agent's `/health` instead. Reference: features.md (Heartbeats and health).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable

from callboard.client import AsyncClient
from callboard.errors import CallboardError
from callboard.kit.dispatch_replies import AnsweringAgent

# An agent that is about to end must not wait long for a coordinator that does not reply.
TELL_TIMEOUT_S = 5.0

_log = logging.getLogger("callboard.agent")


class Liveness:
    """Heartbeats of one registered agent.

    Args:
        agent: the agent whose load the heartbeats report.
        client: sends the heartbeats.
        token: the `heartbeatToken` from the registration; None sends no heartbeats.
    """

    def __init__(self, agent: AnsweringAgent, client: AsyncClient, token: str | None) -> None:
        self._agent = agent
        self._client = client
        self._token = token

    @contextlib.asynccontextmanager
    async def beating(self, period_s: float) -> AsyncIterator[None]:
        """Send a heartbeat now and every `period_s` seconds while the block runs."""
        beats = asyncio.create_task(self._beat(period_s))
        try:
            yield
        finally:
            beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beats

    async def tell(self, status: str | None = None) -> None:
        """Send one heartbeat; a failure is logged.

        Args:
            status: the status to send; None sends `healthy`, or `busy` at full load.
        """
        if self._token is None:
            return
        statistics = self._agent.statistics()
        load = min(1.0, statistics.in_flight / self._agent.max_concurrency)
        beat = self._client.heartbeat(
            self._agent.did,
            status=status or ("busy" if load >= 1.0 else "healthy"),
            load=round(load, 3),
            token=self._token,
        )
        await self._tried("heartbeat", beat)

    async def deregister(self) -> None:
        """Deregister the agent; a failure is logged."""
        await self._tried("deregistration", self._client.deregister_agent(self._agent.did))

    async def _tried(self, what: str, told: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await told
        except (CallboardError, TimeoutError) as error:
            _log.warning("%s of %s failed: %s", what, self._agent.did, error or "no answer")

    async def _beat(self, period_s: float) -> None:
        while True:
            await self.tell()
            await asyncio.sleep(period_s)
