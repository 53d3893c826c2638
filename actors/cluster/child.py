"""The handle of a workflow's own process (`CALLBOARD_ISOLATION=dedicated`).

Implements `actors.cluster.dedicated.Child` with an actor handle; makes no decisions. `ray.kill`
marks an actor as dead at once, but the actor's process may run on for a moment. A process that is
stopped by SIGSTOP runs on for longer. The parent uses the same epoch as its child, so the parent
waits until the child's process has ended. Parent and child run on the same machine.
Decision workflow-owners-and-shards.
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

from actors.cluster.health_check import Answer, check_health
from actors.transport.messages import OwnerReply, OwnerRequest
from actors.transport.wire import REQUESTS, decode_reply

ENDED_POLL_S: Final = 0.1


class ActorChild:
    """A `WorkflowActor` that drives one workflow; it ends with its parent process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        # The pidfd of the child's process. Unlike a process id, it is never reused for a later
        # process. None before the first request and after the end of the process.
        self._process: int | None = None
        self._is_ending = False

    async def handle(self, batch: list[OwnerRequest]) -> Sequence[OwnerReply]:
        if self._process is None:
            pid = await self._actor.process_id.remote()
            if self._is_ending:
                raise ChildProcessError(f"process {pid} is being ended")
            if self._process is None:  # a concurrent request may have opened it
                self._process = os.pidfd_open(pid)
        bodies = [REQUESTS.encode(request) for request in batch]
        # `handle` could answer with the token of a late reply. The gateway would send the token to
        # the parent, but it is valid only at the child. `handle_bulk` returns no tokens.
        return [decode_reply(body) for body in await self._actor.handle_bulk.remote(bodies)]

    async def finished(self, watcher: str) -> Mapping[str, bytes | None]:
        ends: Mapping[str, bytes | None] = await self._actor.finished.remote(watcher)
        return ends

    async def ask(self) -> Answer:
        return await check_health(self._actor.ping.remote, self._actor.progress.remote)

    def end(self) -> None:
        self._is_ending = True
        ray.kill(self._actor)
        if self._process is not None:
            with suppress(ProcessLookupError):  # ray.kill does not end a stopped process
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
        if self._process is not None:  # else a concurrent call of `ended` has closed it
            os.close(self._process)
            self._process = None


def _has_ended(process: int) -> bool:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
