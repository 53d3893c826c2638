"""The abstract work of a simulated member: per shard a few endless workflows, one attempt each.

An attempt is sent once it is open in the rows, if `may_send` allows and this member's share of its
agent has room, or another's, which takes the attempt. Its agent's reply comes back to the process
that has sent it; then the step is stored under the shard's epoch and opens the next attempt. A
shard that is given away is given between two calls, if there is such a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.shards.agent_shares import AgentShares
from core.shards.lease_messages import MemberState, MemberView
from core.shards.shard import shard_of
from ledger.commands import OutcomeStatus
from tests.simulation.cluster.simulated_store import step_command

if TYPE_CHECKING:
    from tests.simulation.cluster.member_process import MemberProcess

# How long the reply of a call is waited for.
REPLY_S = 8.0
AGENT_MS = (20, 1_500)
# Some attempts wait for a place at their agent, and are sent when their commit is long past.
QUEUED, QUEUED_S = 0.3, (0.1, 3.5)
# The share of steps from which on a workflow needs the version that stored it.
RENEWED = 0.2


@dataclass(slots=True)
class _ShardRun:
    """A shard as this process drives it.

    `open`: attempts that were sent and whose reply is not here; `committing`: tasks whose
    step is without an outcome; `restored`: workflows whose rows have been read; `is_over`: it is
    given away.
    """

    shard: int
    epoch: int
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    committing: set[asyncio.Task[None]] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)
    is_over: bool = False


class ShardRuns:
    """What one process does with its shards; see `actors.shards.membership.ShardWork`."""

    def __init__(self, process: MemberProcess) -> None:
        self._process = process
        self._world = process.world
        self._runs: dict[int, _ShardRun] = {}
        self._given: dict[int, _ShardRun] = {}  # frozen ones
        self.calls: set[tuple[str, int]] = set()  # of agents that have not replied
        self._replies: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.shares = AgentShares(process.member, self._world.limit_of)
        # By agent, calls in this member's share that it has not answered.
        self.at_agents: Counter[str] = Counter()

    def load(self) -> int:
        """Return how many workflows are driven here."""
        return sum(len(run.tasks) for run in self._runs.values())

    def open_calls(self) -> int:
        """Return how many agents called from here have not replied."""
        return len(self.calls)

    def taken(self, shards: Sequence[int]) -> None:
        """Read the rows of these shards and drive their workflows on."""
        for shard in shards:
            self._end(shard)
            run = self._runs[shard] = _ShardRun(shard, self._process.held.epoch(shard))
            for workflow_id in self._world.workflows_of(shard):
                task = self._process.loop.create_task(self._drive(run, workflow_id))
                run.tasks.append(task)

    def lost(self, shards: Sequence[int]) -> None:
        """Drop these shards at once."""
        for shard in shards:
            self._end(shard)
            self._world.checks.lost(self._process, shard)

    def may_give(self, shard: int) -> bool:
        """Say whether a shard is restored."""
        run = self._runs.get(shard)
        return run is None or len(run.restored) == len(run.tasks)

    def is_idle(self, shard: int) -> bool:
        """Say whether no agent works for a shard."""
        run = self._runs.get(shard)
        return run is None or not run.open

    def frozen(self, shard: int) -> None:
        """Drive a shard no longer; steps that are under way end."""
        run = self._runs.pop(shard, None)
        if run is None:
            return
        run.is_over = True
        self._given[shard] = run
        self.calls = {call for call in self.calls if shard_of(call[0]) != shard}
        for task in run.tasks:
            if task not in run.committing:
                task.cancel()

    async def settled(self, shard: int) -> None:
        """Return when no command of a frozen shard is without its outcome."""
        run = self._given.pop(shard, None)
        await self._wait(lambda: run is None or not run.committing)

    def unfenced(self) -> None:
        """Send what has waited."""
        self.notify()

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Share agents with these; the world carries messages to members by their ids."""
        live = {one.member: one.state for one in members if one.is_live}
        draining = [member for member, state in live.items() if state is MemberState.DRAINING]
        if self.shares.set_owners(live, draining):
            self.notify()

    def take_reply(self, workflow_id: str, step: int) -> None:
        """Hear an agent's reply, if it is still waited for."""
        self.calls.discard((workflow_id, step))
        reply = self._replies.get((workflow_id, step))
        if reply is not None and not reply.done():
            reply.set_result(None)

    # -- driving -----------------------------------------------------------------------------------

    async def _drive(self, run: _ShardRun, workflow_id: str) -> None:
        process, shard = self._process, run.shard
        step, form = await self._world.read_step(process, workflow_id)
        run.restored.add(workflow_id)
        if form > process.version:
            self._world.checks.not_restored(workflow_id)
            return
        while True:
            if self._world.chance.random() < QUEUED:
                await asyncio.sleep(self._world.chance.uniform(*QUEUED_S))
            await self._may_send(run, self._world.agent_of(workflow_id))
            place = self._place(self._world.agent_of(workflow_id))
            assert place is not None, "in the turn in which there was one"
            self._world.send(process, run.epoch, workflow_id, step, place)
            self.calls.add((workflow_id, step))
            run.open.add(workflow_id)
            try:
                async with asyncio.timeout(REPLY_S):
                    await self._reply(workflow_id, step)
            except TimeoutError:
                continue
            finally:
                self._replies.pop((workflow_id, step), None)
                run.open.discard(workflow_id)
            process.membership.note_answered(shard)
            step += 1
            is_understood = process.version <= process.membership.cluster_version
            if is_understood and self._world.chance.random() < RENEWED:
                form = max(form, process.version)
            if not await self._store(run, workflow_id, step, form):
                process.membership.note_stale(shard, run.epoch)
                return
            if run.is_over:
                return

    async def _store(self, run: _ShardRun, workflow_id: str, step: int, form: int) -> bool:
        command = step_command(
            workflow_id, step, form, member=self._process.member, shard_epoch=run.epoch
        )
        task = asyncio.current_task()
        assert task is not None
        run.committing.add(task)
        try:
            outcome = await self._process.commit(command)
        finally:
            run.committing.discard(task)
            self.notify()
        return outcome.status is not OutcomeStatus.STALE

    async def _may_send(self, run: _ShardRun, agent: str) -> None:
        """Return when an attempt may go to its agent, as one that is there."""
        process = self._process

        def may() -> bool:
            is_held = run.shard not in process.held.frozen()
            return is_held and process.membership.may_send() and self._place(agent) is not None

        await self._wait(may)

    def _place(self, agent: str) -> ShardRuns | None:
        """Return a member whose share of an agent has room: this one, or one that takes orders."""
        for name in (self._process.member, *self.shares.others(agent)):
            process = self._world.living.get(name)
            if process is not None and process.work.has_room(agent):
                return process.work
        return None

    def has_room(self, agent: str) -> bool:
        """Say whether this member may have one more call at an agent."""
        return self.at_agents[agent] < self.shares.own(agent)

    async def _wait(self, holds: Callable[[], bool]) -> None:
        """Return when a condition holds, in the same turn in which it was seen to."""
        while not holds():
            changed = self._process.loop.create_future()
            self._waiting.append(changed)
            await changed

    def notify(self) -> None:
        """Look again at what is waited for."""
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    def _reply(self, workflow_id: str, step: int) -> asyncio.Future[None]:
        key = (workflow_id, step)
        if key not in self._replies:
            self._replies[key] = self._process.loop.create_future()
        return self._replies[key]

    def _end(self, shard: int) -> _ShardRun | None:
        run = self._runs.pop(shard, None)
        if run is not None:
            for task in run.tasks:
                task.cancel()
        return run
