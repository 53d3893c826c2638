"""A process for each workflow: its end, its death, and the death of the one that made it.

Children are real owners in the same loop here; `test_isolation.py` has them as processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from actors.cluster.dedicated import Dedicated
from actors.cluster.health_check import Answer
from actors.engine.owner import Owner
from actors.shards.child_lease import Parentage
from actors.transport.messages import (
    CancelReply,
    CancelRequest,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    WatchReply,
    WatchRequest,
)
from core.errors import ErrorCode, ServiceError
from tests.faults.scene import DEADLINE_S, OWNER, Scene, request
from tests.platform.waiting import until

pytestmark = pytest.mark.slow

SLOTS = 12  # two digits: the name of slot 1 begins that of slot 10
WATCHER = "gateway"


class ChildInLoop:
    """A child of the same loop. Once ended it cannot be reached; its owner may still go on a while,
    as a frozen process does that wakes up again, and must be fenced off.
    """

    def __init__(self, scene: Scene, name: str, of: Parentage) -> None:
        self.name = name
        self.is_ended = False
        self._starting: asyncio.Task[Owner] = asyncio.create_task(scene.owner(name, parent=of))

    async def handle(self, batch: list[OwnerRequest]) -> Sequence[OwnerReply]:
        return await (await self._alive()).handle(batch)

    async def finished(self, watcher: str) -> Mapping[str, bytes | None]:
        names = await (await self._alive()).outboxes.take(watcher, 0.01)
        await self._alive()
        return names

    async def ask(self) -> Answer:
        return {"progress": (await self._alive()).steps}

    def end(self) -> None:
        self.is_ended = True

    async def ended(self) -> None:
        await (await self._starting).close()

    async def _alive(self) -> Owner:
        if self.is_ended:
            raise ConnectionError("the process has ended")
        return await self._starting


class Family:
    """A pooled owner and its children, those that have ended included."""

    def __init__(self, scene: Scene, owner: Owner, slots: int) -> None:
        self.owner = owner
        self.children: list[ChildInLoop] = []
        self.dedicated = Dedicated(
            owner, self._spawn, slots=slots, silence_ms_max=60_000, ask_interval_s=0.05
        )
        self._scene = scene

    async def settled(self) -> None:
        """Return when what children have left has been looked at."""
        await until(lambda: not self.dedicated._runs, DEADLINE_S)

    def _spawn(self, slot: int, of: Parentage) -> ChildInLoop:
        self.children.append(ChildInLoop(self._scene, f"{OWNER}.{slot}", of))
        return self.children[-1]


async def family(scene: Scene, slots: int = SLOTS) -> Family:
    """Start a pooled owner with no children yet."""
    return Family(scene, await scene.owner(OWNER), slots)


async def heard(owner: Owner, count: int) -> set[str]:
    """Return the workflows that the watcher was told of, once they are so many."""
    told: set[str] = set()
    async with asyncio.timeout(DEADLINE_S):
        while len(told) < count:
            told.update(await owner.outboxes.take(WATCHER, 0.2))
    return told


async def test_each_workflow_has_a_process_of_its_own_that_ends_with_it(scene: Scene) -> None:
    made = await family(scene)
    scene.gate.clear()
    replies = await made.dedicated.handle([request(n, watcher=WATCHER) for n in range(SLOTS)])
    assert all(isinstance(reply, PublishReply) for reply in replies)
    assert len(made.children) == SLOTS
    (refused,) = await made.dedicated.handle([request(99)])
    assert isinstance(refused, ServiceError)
    assert refused.code is ErrorCode.OVERLOADED
    scene.gate.set()
    ids = {reply.workflow_id for reply in replies if isinstance(reply, PublishReply)}
    assert await heard(made.owner, SLOTS) == ids
    assert scene.counts() == {"success": SLOTS}
    await until(lambda: all(child.is_ended for child in made.children), DEADLINE_S)
    assert scene.lost == [], "ending one child disturbed another"
    await made.settled()
    assert not made.owner._children


async def test_processes_of_single_workflows_share_an_agents_concurrency(scene: Scene) -> None:
    """Each of them had the whole of it."""
    scene.settings = replace(scene.settings, agent_concurrency=2)
    made = await family(scene)
    scene.gate.clear()
    await made.dedicated.handle([request(n, watcher=WATCHER) for n in range(5)])
    await until(
        lambda: scene.calls.open_now >= 2 and made.owner._dispatcher.waiting >= 3, DEADLINE_S
    )
    scene.gate.set()
    await heard(made.owner, 5)
    assert scene.counts() == {"success": 5}
    assert scene.calls.open_max == 2
    await made.settled()


async def test_what_a_killed_child_leaves_is_driven_on_and_told(scene: Scene) -> None:
    made = await family(scene)
    scene.gate.clear()
    replies = await made.dedicated.handle([request(n, watcher=WATCHER) for n in range(3)])
    made.children[1].end()
    scene.gate.set()
    assert len(await heard(made.owner, 3)) == 3
    assert scene.counts() == {"success": 3}
    assert made.owner.statistics()["restored"] == 1, "the pooled owner did not take over"
    assert len(replies) == 3
    await made.settled()


async def test_requests_reach_the_child_that_drives(scene: Scene) -> None:
    made = await family(scene)
    scene.gate.clear()
    (published,) = await made.dedicated.handle([request(1)])
    assert isinstance(published, PublishReply)
    workflow_id = published.workflow_id
    cancel = CancelRequest(
        workflow_id=workflow_id, reason="user_requested", details="", actor_did="did:x"
    )
    watch = WatchRequest(workflow_id=workflow_id, watcher=WATCHER)
    answers = await made.dedicated.handle([watch, cancel])
    assert answers[0] == WatchReply()
    assert isinstance(answers[1], CancelReply)
    assert await heard(made.owner, 1) == {workflow_id}
    assert scene.counts() == {"cancelled": 1}
    await made.settled()


async def test_children_of_an_owner_that_died_are_taken_over_by_its_successor(
    scene: Scene,
) -> None:
    made = await family(scene)
    scene.gate.clear()
    await made.dedicated.handle([request(n) for n in range(3)])
    await made.dedicated.close()
    for child in made.children:
        child.end()  # children end with the process that made them
    scene.gate.set()
    successor = await family(scene)
    await scene.wait_ended()
    assert scene.counts() == {"success": 3}
    await successor.settled()
