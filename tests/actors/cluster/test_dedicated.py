"""What a pooled owner asks of a workflow's own process, and how long it waits for the answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from actors.cluster.child import ENDED_POLL_S, ActorChild
from actors.cluster.dedicated import Dedicated
from actors.cluster.health_check import Answer
from actors.engine.outbox import Outboxes
from actors.shards.held_shards import HeldShards
from actors.transport.late_replies import LATE_AFTER_S, LateReplies
from actors.transport.messages import OwnerReply, OwnerRequest
from actors.transport.wire import answer_requests
from core.shards.shard import shard_of
from tests.actors.gateway.served import STORED, request
from tests.platform.waiting import until


class SlowActor:
    """A `WorkflowActor` whose commit takes longer than others' replies wait for it."""

    def __init__(self) -> None:
        self.process_id = SimpleNamespace(remote=self._process_id)
        self.handle = SimpleNamespace(remote=self._handle)
        self.handle_bulk = SimpleNamespace(remote=self._handle_bulk)
        self.finished = SimpleNamespace(remote=self._finished)
        self._late = LateReplies()

    async def _process_id(self) -> int:
        return os.getpid()

    async def _handle(self, bodies: list[bytes]) -> list[bytes]:
        return await answer_requests(partial(self._answer, late=self._late), bodies)

    async def _handle_bulk(self, bodies: list[bytes]) -> list[bytes]:
        return await answer_requests(self._answer, bodies)

    async def _answer(
        self, batch: list[OwnerRequest], late: LateReplies | None = None
    ) -> list[OwnerReply]:
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[OwnerReply]] = [loop.create_future() for _ in batch]
        for reply in replies:
            loop.call_later(2 * LATE_AFTER_S, reply.set_result, STORED)
        if late is not None:
            return await late.settled(replies)
        return list(await asyncio.gather(*replies))

    async def _finished(self, watcher: str) -> list[str]:
        await asyncio.Event().wait()
        return []


class Child(ActorChild):
    """The handle of that actor, whose end is noted."""

    is_ended = False

    async def ask(self) -> Answer:
        """Answer."""
        return {"progress": 1}

    def end(self) -> None:
        """Note the end."""
        self.is_ended = True


class FrozenChild(Child):
    """A child that answers once and then never again, until it is ended."""

    def __init__(self, *, is_busy: bool) -> None:
        super().__init__(SlowActor())
        self._is_busy = is_busy
        self.asked = 0
        self._end = asyncio.Event()

    async def ask(self) -> Answer:
        self.asked += 1
        if self.asked == 1 or not self._is_busy:
            return {"progress": 1} if self.asked == 1 else None
        return self.asked

    async def finished(self, watcher: str) -> dict[str, bytes | None]:
        await self._end.wait()
        raise ActorDiedError

    def end(self) -> None:
        self.is_ended = True
        self._end.set()

    async def ended(self) -> None:
        await self._end.wait()


@pytest.mark.parametrize("is_busy", [False, True], ids=["silent", "busy"])
async def test_a_child_that_is_silent_is_ended_and_its_workflow_driven_on(*, is_busy: bool) -> None:
    """It kept its shard and its workflow for ever: nothing watched it."""
    child = FrozenChild(is_busy=is_busy)
    restored = asyncio.Event()
    ended: list[str] = []

    async def restore_now(workflow_id: str) -> None:
        restored.set()

    async def handle(batch: list[OwnerRequest]) -> list[OwnerReply]:
        return [None] * len(batch)

    held = HeldShards("here~1")
    held.add(shard_of(request().workflow_id), 1)
    owner: Any = SimpleNamespace(
        held=held, child_began=lambda *_: None, child_ended=ended.append,
        restore_now=restore_now, handle=handle, outboxes=Outboxes(),
    )  # fmt: skip
    dedicated = Dedicated(owner, lambda *_: child, slots=1, silence_ms_max=1, ask_interval_s=0.005)
    await dedicated.handle([request()])
    await until(lambda: child.asked >= 10 or child.is_ended)
    assert child.is_ended is not is_busy
    if not is_busy:
        await until(restored.is_set)
        assert ended == [f"{held.member}/0"], "its dispatches are dropped"
        await until(lambda: dedicated._free)
    await dedicated.close()


class StoppedActor(SlowActor):
    """An actor in a process of its own, of which Ray says that it has died."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self.is_dead = False

    async def _process_id(self) -> int:
        if self.is_dead:
            raise ActorDiedError
        return self._pid


async def test_a_child_has_ended_when_its_process_has_and_not_when_ray_says_so() -> None:
    """Ray says so when it is told to end it: the process drove on for 60 ms, and longer if stopped.

    Its parent drove the same workflow on under the same epoch, which no fence tells apart.
    """
    program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = await asyncio.create_subprocess_exec(*program, stdin=asyncio.subprocess.PIPE)
    actor = StoppedActor(process.pid)
    child = Child(actor)
    try:
        await child.handle([request()])
        os.kill(process.pid, signal.SIGSTOP)
        actor.is_dead = True
        ended = asyncio.create_task(child.ended())
        for _ in range(3):
            await asyncio.sleep(ENDED_POLL_S)
        assert not ended.done()
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            await ended
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_child_that_was_never_asked_anything_has_ended_when_ray_says_so() -> None:
    actor = StoppedActor(0)
    actor.is_dead = True
    async with asyncio.timeout(60):
        await Child(actor).ended()
