"""A process for each workflow (`CALLBOARD_ISOLATION=dedicated`), behind an owner of many.

The pooled owner stays the address of everything: it hands a publish to a child, an owner of the
same class in a process of its own, and passes on what concerns that workflow. Children live in
slots, whose names are their owner names, so that their number is bounded and the table of owners
does not grow. A child dies with the process that made it; whatever it leaves unfinished, however it
ended, the pooled owner claims and drives itself. design.md section 3 (isolation).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from actors.cluster.names import dedicated_owner
from actors.engine.owner import Owner
from actors.transport.messages import (
    NotYet,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    PublishRequest,
    WatchRequest,
)
from core.errors import ErrorCode, ServiceError

log = logging.getLogger("callboard.owner")

# The name under which this owner itself waits for its children's workflows.
PARENT = "parent"


class Child(Protocol):
    """The process of one workflow; its calls raise when it is gone."""

    async def handle(self, batch: list[OwnerRequest]) -> Sequence[OwnerReply]: ...

    async def finished(self, watcher: str) -> Sequence[str]: ...

    def end(self) -> None: ...


@dataclass(slots=True)
class _Driving:
    slot: int
    name: str
    child: Child
    watchers: set[str]


class Dedicated:
    """One machine's children.

    Args:
        owner: the pooled owner.
        name: its name.
        spawn: starts a child that registers under the name it is given.
        slots: children at once, at most; beyond it a publish is refused with OVERLOADED.
    """

    def __init__(
        self, owner: Owner, name: str, spawn: Callable[[str], Child], *, slots: int
    ) -> None:
        self._owner = owner
        self._name = name
        self._spawn = spawn
        self._free = list(range(slots))
        self._driving: dict[str, _Driving] = {}
        self._following: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Dedicated {self._name} driving={len(self._driving)} free={len(self._free)}>"

    async def start(self) -> None:
        """Drive on what children of an earlier process left: they ended with it."""
        children = dedicated_owner(self._name, "")
        await self._owner.take_over(lambda name: name.startswith(children))

    async def close(self) -> None:
        """End every task; children end with their process."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    async def handle(self, batch: Sequence[OwnerRequest]) -> list[OwnerReply]:
        """Answer a batch of requests, each after its commit, in their order."""
        return list(await asyncio.gather(*(self._answer(request) for request in batch)))

    async def _answer(self, request: OwnerRequest) -> OwnerReply:
        driving = self._driving.get(request.workflow_id)
        if driving is not None and isinstance(request, WatchRequest):
            driving.watchers.add(request.watcher)
            return None
        if driving is not None:
            return await _asked(driving.child, request)
        if isinstance(request, PublishRequest) and not request.is_dry_run:
            return await self._publish(request)
        return (await self._owner.handle([request]))[0]

    async def _publish(self, request: PublishRequest) -> OwnerReply:
        if not self._free:
            return ServiceError(
                ErrorCode.OVERLOADED,
                f"{len(self._driving)} workflows run here in a process each, which is the limit",
                retry_after_s=1,
            )
        slot = self._free.pop(0)
        name = dedicated_owner(self._name, str(slot))
        driving = _Driving(slot, name, self._spawn(name), {request.watcher} - {""})
        self._driving[request.workflow_id] = driving
        reply = await _asked(driving.child, replace(request, watcher=PARENT))
        is_driven = isinstance(reply, PublishReply) and not reply.is_repeat
        task = asyncio.create_task(self._follow(request.workflow_id, driving, is_driven))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return reply

    async def _follow(self, workflow_id: str, driving: _Driving, is_driven: bool) -> None:
        """Wait for the workflow's end or the child's; then nothing may be left undriven."""
        is_finished = False
        try:
            while is_driven and not is_finished:
                is_finished = workflow_id in await driving.child.finished(PARENT)
        except Exception as error:  # the edge to another process
            log.warning("child ended owner=%s error=%s", driving.name, type(error).__name__)
        if is_finished:
            self._owner.outboxes.put(workflow_id, driving.watchers)
        driving.child.end()
        await self._owner.take_over(lambda name: name == driving.name)
        del self._driving[workflow_id]
        self._free.append(driving.slot)
        watches = [WatchRequest(workflow_id=workflow_id, watcher=w) for w in driving.watchers]
        if watches and not is_finished:
            await self._owner.handle(watches)


async def _asked(child: Child, request: OwnerRequest) -> OwnerReply:
    try:
        return (await child.handle([request]))[0]
    except Exception as error:  # the edge to another process: outcome unknown, the same key again
        return NotYet(
            ErrorCode.OVERLOADED,
            f"the workflow's process has ended ({type(error).__name__}), another takes it over",
            retry_after_s=1,
        )
