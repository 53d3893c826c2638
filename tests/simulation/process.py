"""One owner's process in the simulation: the real owner on a loop of its own, with breakable ports.

A killed process is deaf and dumb at once, in the middle of whatever it was doing: nothing it still
calls has an effect, no callback reaches it. What follows a start is what
`actors/cluster/workflow_actor.py` does: new epoch, directory, restore; requests wait until then.
design.md section 3 (Recovery).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from actors.engine.runner import Runner
from actors.transport.messages import OwnerReply, OwnerRequest
from core.workflow.events import NodeChanged
from ledger.commands import Command
from tests.simulation.costs import ChargedDirectory
from tests.simulation.loop import VirtualLoop
from tests.simulation.simulated_agents import SimulatedDispatch
from tests.simulation.simulated_owner import SimulatedOwner

if TYPE_CHECKING:
    from tests.simulation.world import World

LOOK_S = 0.05


class Process:
    """A workflow owner's process, alive from its making until it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.was_frozen = False
        self.thawed_ms = 0
        self.quarantined: set[str] = set()  # workflows that this process has heard to be
        self.refused: set[str] = set()  # workflows of which a commit of this process was refused
        # By workflow, the steps of it whose commit is under way, in order, and their nodes.
        self.steps: dict[str, list[tuple[Command, dict[str, NodeChanged]]]] = {}
        self.on_death: list[Callable[[], None]] = []
        self.began_ms = world.clock.now_ms()
        # How many workflows it may read: all that it owns at its start and after a claim, and those
        # of which a step was refused.
        self.rows_needed = 0
        self.scans_needed = 0
        # asyncio asks for no more of a loop than it has.
        self.loop = VirtualLoop(world.clock, name)  # type: ignore[abstract]
        with self.loop.entered():
            self.owner = SimulatedOwner(self)
        self.scans_needed += 1
        self.ready_ms = 0
        self._started = self.loop.create_task(self._start())

    def __repr__(self) -> str:
        return f"<Process {self.name}#{self.epoch} {'alive' if self.is_alive else 'dead'}>"

    @property
    def epoch(self) -> int:
        """The owner's epoch, 0 before it has one."""
        return self.owner.epoch

    @property
    def runner(self) -> Runner | None:
        """The owner's runner, once it has one."""
        return self.owner.runner

    @property
    def directory(self) -> ChargedDirectory:
        """What the owner knows of agents."""
        return self.owner.directory

    @property
    def dispatch(self) -> SimulatedDispatch:
        """What the owner has sent."""
        return self.owner.dispatch

    def wall_ns(self) -> int:
        """Return the wall time of the process's machine, which may step."""
        return self.loop.monotonic_ns() + self.world.offsets_ms.get(self.name, 0) * 1_000_000

    @property
    def progress(self) -> int:
        """A count that grows while the process works, as its other thread tells it."""
        return self.loop.turns + self.owner.steps

    @property
    def is_ready(self) -> bool:
        """Whether everything that was owned at the start has been restored."""
        return self._started.done()

    def step(self, what: str) -> None:
        """Pass a point at which the world may kill this process."""
        if self.world.crash_point is not None and self.is_alive:
            self.world.pass_point(self, what)

    def ask(self, requests: list[OwnerRequest], done: Callable[[list[OwnerReply]], None]) -> None:
        """Send a batch of requests; `done` gets the replies, never if the process dies before."""
        self.rows_needed += len(requests)  # one that is asked for early is read by itself
        self.loop.create_task(self._answer(requests, done))

    def adopt(self) -> None:
        """Restore what was claimed for this owner, as the timekeeper asks."""
        self.scans_needed += 1
        self.loop.create_task(self._adopt())

    def kill(self) -> None:
        """End at once; those that wait for an answer of this process learn that it ended."""
        if self.is_alive:
            self.is_alive = False
            self.loop.die()
            for callback in self.on_death:
                callback()

    def lost(self, reason: str) -> None:
        """Hear that the owner cannot go on: this process ends, and only a fence may be why."""
        if self.is_alive:
            self.world.checks.lost(self, reason)
            self.kill()
            self.world.restart_later(self)

    async def _start(self) -> None:
        await self.owner.start()
        self._look()

    def _look(self) -> None:
        """Note when everything has been restored."""
        if self.owner.is_restoring:
            self.loop.call_later(LOOK_S, self._look)
        else:
            self.ready_ms = self.world.clock.now_ms()
            self.world.ready_ms[self.name].append(self.ready_ms)

    async def _answer(
        self, requests: list[OwnerRequest], done: Callable[[list[OwnerReply]], None]
    ) -> None:
        await asyncio.shield(self._started)
        replies = await self.owner.handle(requests)
        if self.is_alive:
            done(replies)

    async def _adopt(self) -> None:
        await asyncio.shield(self._started)
        await self.owner.restore_all()
