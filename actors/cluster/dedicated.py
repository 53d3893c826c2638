"""A process for each workflow (`CALLBOARD_ISOLATION=dedicated`), behind a pooled owner.

All requests go to the pooled owner, the parent. For each publish, the parent starts a child: an
owner of the same class in its own process. The parent forwards all requests about this workflow to
the child.

A child works under the parent's member id and the epoch of the workflow's shard, so the ledger
cannot distinguish the two. Therefore the parent continues a child's unfinished workflow only when
the child's process has certainly ended. The parent ends a child when the parent loses the shard.
The parent also ends a child that is silent for `owner_silence_ms`: a frozen child would block its
workflow and shard forever. A child also ends with the parent's process.

The parent sends the dispatches of its children, because only the parent has a share of each agent's
capacity. A shard is not handed off while a child works in it. Each child occupies a slot; the
number of slots limits the number of children.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from actors.cluster.health_check import Answer, is_silent
from actors.cluster.process_watch import Silence
from actors.engine.owner import Owner
from actors.process.loop_clock import monotonic_ms
from actors.shards.child_lease import Parentage
from actors.transport.messages import (
    NotYet,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    PublishRequest,
    WatchReply,
    WatchRequest,
)
from actors.workflows.step_commands import moved_error
from core.errors import ErrorCode, ServiceError
from core.shards.shard import shard_of

log = logging.getLogger("callboard.owner")

# The watcher name under which this owner waits for its children's workflows.
PARENT = "parent"
# The pause between two health checks of a child. A health check is a Ray call.
ASK_INTERVAL_S: Final = 2.0


class Child(Protocol):
    """The process of one workflow. Its methods raise when the process has ended."""

    async def handle(self, batch: list[OwnerRequest]) -> Sequence[OwnerReply]: ...

    async def finished(self, watcher: str) -> Mapping[str, bytes | None]: ...

    async def ask(self) -> Answer:
        """Return the answer to a health check; raise the call's error if the process has ended."""

    def end(self) -> None: ...

    async def ended(self) -> None:
        """Return when the process has certainly ended."""


@dataclass(slots=True)
class _ChildRun:
    slot: int
    name: str
    child: Child
    watchers: set[str]


class Dedicated:
    """The children of one pooled owner.

    Args:
        owner: the pooled owner. It ends the children of shards that it loses.
        spawn: starts a child in a slot, under a member, shard and epoch.
        slots: the most children at once. Further publishes are refused with OVERLOADED.
        silence_ms_max: the silence after which a child is ended, milliseconds.
        ask_interval_s: the pause between two health checks of a child, seconds.
    """

    def __init__(
        self,
        owner: Owner,
        spawn: Callable[[int, Parentage], Child],
        *,
        slots: int,
        silence_ms_max: int,
        ask_interval_s: float = ASK_INTERVAL_S,
    ) -> None:
        self._owner = owner
        owner.children = self
        self._spawn = spawn
        self._silence_ms_max = silence_ms_max
        self._ask_interval_s = ask_interval_s
        self._free = list(range(slots))
        self._numbers = itertools.count()
        self._runs: dict[str, _ChildRun] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Cancel every task. The children end with this process."""
        tasks = [*self._following.values(), *self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drives(self, workflow_id: str) -> bool:
        """Implement `Children`."""
        return workflow_id in self._runs

    def drop(self, shards: Collection[int]) -> None:
        """Implement `Children`."""
        for run in self._of_shards(shards):
            run.child.end()
            self._owner.child_ended(run.name)  # this process sends no more of its dispatches

    def works_in(self, shard: int) -> bool:
        """Implement `Children`."""
        return bool(self._of_shards([shard]))

    def _of_shards(self, shards: Collection[int]) -> list[_ChildRun]:
        return [run for name, run in self._runs.items() if shard_of(name) in shards]

    async def handle(self, batch: Sequence[OwnerRequest]) -> list[OwnerReply]:
        """Return the replies to a batch of requests, in order, when all are committed."""
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
        workflow_id, held = request.workflow_id, self._owner.held
        if not held.is_held(workflow_id) or held.is_frozen(workflow_id):
            return moved_error(workflow_id)
        slot = self._free.pop(0)
        shard, epoch = shard_of(workflow_id), held.epoch_of(workflow_id)
        of = Parentage(held.member, shard, epoch, f"{held.member}/{next(self._numbers)}")
        run = _ChildRun(slot, of.child, self._spawn(slot, of), {request.watcher} - {""})
        self._owner.child_began(of.child, slot)
        self._runs[workflow_id] = run
        self._watching[workflow_id] = asyncio.create_task(self._watch(workflow_id, run.child))
        reply = await _ask_child(run.child, replace(request, watcher=PARENT))
        is_driven = isinstance(reply, PublishReply) and not reply.is_repeat
        task = asyncio.create_task(self._follow(workflow_id, run, is_driven))
        self._following[workflow_id] = task
        task.add_done_callback(lambda _: self._following.pop(workflow_id, None))
        return reply

    async def _watch(self, workflow_id: str, child: Child) -> None:
        """End a child that neither answers nor makes progress; `_follow` then notices its end."""
        silence = Silence(self._silence_ms_max, now_ms=monotonic_ms())
        while True:
            await asyncio.sleep(self._ask_interval_s)
            try:
                reply = await child.ask()
            except Exception as error:  # the edge to another process, which has ended
                log.info("no answer workflow=%s error=%s", workflow_id, type(error).__name__)
                continue
            if is_silent(workflow_id, silence, reply, monotonic_ms()):
                log.warning("a workflow's process is silent and is ended workflow=%s", workflow_id)
                child.end()
                return

    async def _follow(self, workflow_id: str, run: _ChildRun, is_driven: bool) -> None:
        """Wait until the workflow or the child ends; then continue an unfinished workflow here."""
        is_finished = False
        try:
            while is_driven and not is_finished:
                is_finished = workflow_id in await run.child.finished(PARENT)
        except Exception as error:  # the edge to another process
            log.warning("child ended workflow=%s error=%s", workflow_id, type(error).__name__)
        if is_finished:
            self._owner.outboxes.put(workflow_id, run.watchers)
        run.child.end()
        await run.child.ended()
        self._watching.pop(workflow_id).cancel()
        self._owner.child_ended(run.name)
        del self._runs[workflow_id]
        self._free.append(run.slot)
        if is_finished:
            return
        await self._owner.restore_now(workflow_id)
        watches = [WatchRequest(workflow_id=workflow_id, watcher=w) for w in run.watchers]
        replies = await self._owner.handle(watches)
        # The reply to a watch is None if the workflow has ended meanwhile: notify this watcher.
        told = {w.watcher for w, reply in zip(watches, replies, strict=True) if reply is None}
        self._owner.outboxes.put(workflow_id, told)


async def _ask_child(child: Child, request: OwnerRequest) -> OwnerReply:
    try:
        return (await child.handle([request]))[0]
    except Exception as error:  # the edge to another process: unknown outcome, retry with same key
        return NotYet(
            ErrorCode.OVERLOADED,
            f"the workflow's process has ended ({type(error).__name__}), another takes it over",
            retry_after_s=1,
        )
