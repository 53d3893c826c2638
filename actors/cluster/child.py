"""The handle of a workflow's own process (`CALLBOARD_ISOLATION=dedicated`).

A wrapper only: implements `actors.cluster.dedicated.Child` over a handle. Ray calls an actor dead
as soon as it is told to end it, while its process drives on for a moment, or for longer if it is
stopped. The parent, which works under the same epoch, waits for the process itself; both are on one
machine. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError, RayError

from actors.cluster.asking import Answer, ask
from actors.transport.messages import OwnerReply, OwnerRequest
from actors.transport.wire import REQUESTS, decode_reply

ENDED_POLL_S: Final = 0.1


class ActorChild:
    """A `WorkflowActor` that drives one workflow; it ends with its parent process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        # A descriptor of its process, which no later process with its number is taken for. None
        # before anything is asked of it, when it drives nothing, and after its end.
        self._process: int | None = None
        self._is_ending = False

    async def handle(self, batch: list[OwnerRequest]) -> Sequence[OwnerReply]:
        if self._process is None:
            pid = await self._actor.process_id.remote()
            if self._is_ending:
                raise ChildProcessError(f"process {pid} is being ended")
            if self._process is None:  # another request may have asked as well
                self._process = os.pidfd_open(pid)
        bodies = [REQUESTS.encode(request) for request in batch]
        # As a bulk, of which no reply comes late: a token would be the child's, and the gateway
        # asks the parent.
        return [decode_reply(body) for body in await self._actor.handle_bulk.remote(bodies)]

    async def finished(self, watcher: str) -> Mapping[str, bytes | None]:
        ends: Mapping[str, bytes | None] = await self._actor.finished.remote(watcher)
        return ends

    async def ask(self) -> Answer:
        return await ask(self._actor.ping.remote, self._actor.progress.remote)

    def end(self) -> None:
        self._is_ending = True
        ray.kill(self._actor)
        if self._process is not None:
            with suppress(ProcessLookupError):  # Ray's way does not reach a process that is stopped
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    async def ended(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._actor.process_id.remote(), ENDED_POLL_S)
            except ActorDiedError:
                if self._process is None or _has_ended(self._process):
                    break
            except (RayError, TimeoutError):
                pass
            await asyncio.sleep(ENDED_POLL_S)
        if self._process is not None:  # else another has waited as well
            os.close(self._process)
            self._process = None


def _has_ended(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
