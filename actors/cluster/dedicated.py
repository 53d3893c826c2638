"""A process for each workflow (`CALLBOARD_ISOLATION=dedicated`), behind a pooled owner.

All requests go to the pooled owner. It hands a publish to a child, an owner of the same class in a
process of its own, and forwards that workflow's requests. Children occupy slots, whose names are
their owner names, so that their number is bounded and the owner table does not grow. A child ends
with its parent process; the pooled owner claims and drives the workflows that an ended child leaves
unfinished. design.md section 3 (isolation).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from actors.engine.owner import Owner
from actors.transport.messages import (
    NotYet,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    PublishRequest,
    WatchReply,
    WatchRequest,
)
from actors.transport.names import dedicated_owner
from core.errors import ErrorCode, ServiceError

log = logging.getLogger("callboard.owner")

# The watcher name under which this owner waits for its children's workflows.
PARENT = "parent"


class Child(Protocol):
    """The process of one workflow; its calls raise when it is gone."""

    async def handle(self, batch: list[OwnerRequest]) -> Sequence[OwnerReply]: ...

    async def finished(self, watcher: str) -> Mapping[str, bytes | None]: ...

    def end(self) -> None: ...


@dataclass(slots=True)
class _ChildRun:
    slot: int
    name: str
    child: Child
    watchers: set[str]


class Dedicated:
    """One machine's children.

    Args:
        owner: the pooled owner.
        name: its name.
        spawn: starts a child that registers under the given name.
        slots: most children at once; beyond it a publish is refused with OVERLOADED.
    """

    def __init__(
        self, owner: Owner, name: str, spawn: Callable[[str], Child], *, slots: int
    ) -> None:
        self._owner = owner
        self._name = name
        self._spawn = spawn
        self._free = list(range(slots))
        self._runs: dict[str, _ChildRun] = {}
        self._following: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Dedicated {self._name} runs={len(self._runs)} free={len(self._free)}>"

    async def start(self) -> None:
        """Take over the unfinished workflows of an earlier process's children."""
        children = dedicated_owner(self._name, "")
        await self._owner.take_over(lambda name: name.startswith(children))

    async def close(self) -> None:
        """End every task; children end with their process."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    async def handle(self, batch: Sequence[OwnerRequest]) -> list[OwnerReply]:
        """Answer a batch of requests, each after its commit, in their order."""
        return list(await asyncio.gather(*(self._handle_request(request) for request in batch)))

    async def _handle_request(self, request: OwnerRequest) -> OwnerReply:
        run = self._runs.get(request.workflow_id)
        if run is not None and isinstance(request, WatchRequest):
            run.watchers.add(request.watcher)
            return WatchReply()
        if run is not None:
            return await _ask_child(run.child, request)
        if isinstance(request, PublishRequest) and not request.is_dry_run:
            return await self._publish(request)
        return (await self._owner.handle([request]))[0]

    async def _publish(self, request: PublishRequest) -> OwnerReply:
        if not self._free:
            return ServiceError(
                ErrorCode.OVERLOADED,
                f"{len(self._runs)} workflows run here in a process each, which is the limit",
                retry_after_s=1,
            )
        slot = self._free.pop(0)
        name = dedicated_owner(self._name, str(slot))
        run = _ChildRun(slot, name, self._spawn(name), {request.watcher} - {""})
        self._runs[request.workflow_id] = run
        reply = await _ask_child(run.child, replace(request, watcher=PARENT))
        is_driven = isinstance(reply, PublishReply) and not reply.is_repeat
        task = asyncio.create_task(self._follow(request.workflow_id, run, is_driven))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return reply

    async def _follow(self, workflow_id: str, run: _ChildRun, is_driven: bool) -> None:
        """Wait for the end of the workflow or of the child; then take over unfinished work."""
        is_finished = False
        try:
            while is_driven and not is_finished:
                is_finished = workflow_id in await run.child.finished(PARENT)
        except Exception as error:  # the edge to another process
            log.warning("child ended owner=%s error=%s", run.name, type(error).__name__)
        if is_finished:
            self._owner.outboxes.put(workflow_id, run.watchers)
        run.child.end()
        await self._owner.take_over(lambda name: name == run.name)
        del self._runs[workflow_id]
        self._free.append(run.slot)
        watches = [WatchRequest(workflow_id=workflow_id, watcher=w) for w in run.watchers]
        if watches and not is_finished:
            replies = await self._owner.handle(watches)
            # Who is not watched for by now was waiting for a workflow that has ended meanwhile.
            told = {w.watcher for w, reply in zip(watches, replies, strict=True) if reply is None}
            self._owner.outboxes.put(workflow_id, told)


async def _ask_child(child: Child, request: OwnerRequest) -> OwnerReply:
    try:
        return (await child.handle([request]))[0]
    except Exception as error:  # the edge to another process: outcome unknown, the same key again
        return NotYet(
            ErrorCode.OVERLOADED,
            f"the workflow's process has ended ({type(error).__name__}), another takes it over",
            retry_after_s=1,
        )
