"""The handle of a workflow's own process (`CALLBOARD_ISOLATION=dedicated`).

A wrapper only: implements `actors.cluster.dedicated.Child` over a handle. design.md section 3
(isolation).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError, RayError

from actors.transport.messages import OwnerReply, OwnerRequest
from actors.transport.wire import REQUESTS, decode_reply

ENDED_POLL_S: Final = 0.1


class ActorChild:
    """A `WorkflowActor` that drives one workflow; it ends with its parent process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def handle(self, batch: list[OwnerRequest]) -> Sequence[OwnerReply]:
        bodies = [REQUESTS.encode(request) for request in batch]
        # As a bulk, of which no reply comes late: a token would be the child's, and the gateway
        # asks the parent.
        return [decode_reply(body) for body in await self._actor.handle_bulk.remote(bodies)]

    async def finished(self, watcher: str) -> Mapping[str, bytes | None]:
        ends: Mapping[str, bytes | None] = await self._actor.finished.remote(watcher)
        return ends

    def end(self) -> None:
        ray.kill(self._actor)

    async def ended(self) -> None:
        # Ray says so of a process that it has seen end; anything else leaves it open.
        while True:
            try:
                await asyncio.wait_for(self._actor.process_id.remote(), ENDED_POLL_S)
            except ActorDiedError:
                return
            except (RayError, TimeoutError):
                pass
            await asyncio.sleep(ENDED_POLL_S)
