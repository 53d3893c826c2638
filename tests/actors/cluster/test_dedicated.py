"""What a pooled owner asks of a workflow's own process, and how long it waits for the answer."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from actors.cluster.child import ActorChild
from actors.cluster.dedicated import Dedicated
from actors.shards.child_lease import Parentage
from actors.shards.held_shards import HeldShards
from actors.transport.late_replies import LATE_AFTER_S, LateReplies
from actors.transport.messages import OwnerReply, OwnerRequest, PublishReply
from actors.transport.wire import answer_requests
from core.shards.shard import shard_of
from tests.actors.gateway.served import STORED, request

pytestmark = pytest.mark.anyio


class SlowActor:
    """A `WorkflowActor` whose commit takes longer than others' replies wait for it."""

    def __init__(self) -> None:
        self.handle = SimpleNamespace(remote=self._handle)
        self.handle_bulk = SimpleNamespace(remote=self._handle_bulk)
        self.finished = SimpleNamespace(remote=self._finished)
        self._late = LateReplies()

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

    def end(self) -> None:
        """Note the end."""
        self.is_ended = True


async def test_slow_commit_of_a_child_does_not_end_it() -> None:
    """Its reply came late, which was taken for a workflow that the child did not drive."""
    children: list[Child] = []

    def spawn(slot: int, of: Parentage) -> Child:
        children.append(Child(SlowActor()))
        return children[-1]

    held = HeldShards("here~1")
    held.add(shard_of(request().workflow_id), 1)
    owner: Any = SimpleNamespace(held=held)  # is asked for nothing else
    dedicated = Dedicated(owner, spawn, slots=1)
    (reply,) = await dedicated.handle([request()])
    assert isinstance(reply, PublishReply), reply
    await asyncio.sleep(0)  # the task that would end the child has had a turn
    await asyncio.sleep(0)
    assert not children[0].is_ended
    await dedicated.close()
