"""One owner's process in the simulation: the real owner on a loop of its own, with breakable ports.

A killed process is deaf and dumb at once, in the middle of whatever it was doing: nothing it still
calls has an effect, no callback reaches it. What follows a start is what
`actors/cluster/workflow_actor.py` does: directory, join, shards, restore; requests wait until it
has joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from actors.dispatch.remote_dispatch import OwnerCalls
from actors.engine.runner import Runner
from actors.transport.messages import OwnerReply, OwnerRequest
from tests.simulation.costs import ChargedDirectory
from tests.simulation.loop import VirtualLoop
from tests.simulation.simulated_agents import SimulatedDispatch
from tests.simulation.simulated_owner import SimulatedOwner

if TYPE_CHECKING:
    from tests.simulation.world import World


class Process:
    """A workflow owner's process, alive from its making until it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.was_frozen = False
        self.has_rival = False  # its successor was started although it goes on
        self.thawed_ms = 0
        self.cut_until_ms = 0  # until then its renewals do not reach the ledger
        self.quarantined: set[str] = set()  # workflows that this process has heard to be
        self.refused: set[str] = set()  # workflows of which a commit of this process was refused
        self.on_death: list[Callable[[], None]] = []
        self.began_ms = world.clock.now_ms()
        # How many workflows it may read: all of the shards that it comes to hold, and those of
        # which a step was refused.
        self.rows_needed = 0
        self.scans_needed = 0
        # asyncio asks for no more of a loop than it has.
        self.loop = VirtualLoop(world.clock, name)  # type: ignore[abstract]
        with self.loop.entered():
            self.owner = SimulatedOwner(self)
        self.ready_ms = 0
        self._started = self.loop.create_task(self._start())

    def __repr__(self) -> str:
        return f"<Process {self.member} {'alive' if self.is_alive else 'dead'}>"

    @property
    def member(self) -> str:
        """The id under which it is a member."""
        return self.owner.held.member

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
        """Whether it has joined."""
        return self._started.done()

    def step(self, what: str) -> None:
        """Pass a point at which the world may kill this process."""
        if self.world.crash_point is not None and self.is_alive:
            self.world.pass_point(self, what)

    def ask(self, requests: list[OwnerRequest], done: Callable[[list[OwnerReply]], None]) -> None:
        """Send a batch of requests; `done` gets the replies, never if the process dies before."""
        self.rows_needed += len(requests)  # one that is asked for early is read by itself
        self.loop.create_task(self._answer(requests, done))

    def owner_calls(self, address: str) -> OwnerCalls:
        """Return the calls to whatever process is at an address when they arrive."""

        async def call(take: str, bodies: list[bytes]) -> Sequence[bool]:
            world = self.world
            await asyncio.sleep(world.chance.randint(0, 3) / 1_000)
            target = world.processes[address]
            if not target.is_alive or not target.is_ready or target.loop.is_frozen:
                raise ConnectionError(address)
            # All of one version: each can be read.
            target.loop.call_soon(getattr(target.owner.remote_dispatch, take), bodies)
            return [True] * len(bodies)

        return OwnerCalls(partial(call, "accept"))

    def note_restored(self) -> None:
        """Note that the rows of some shards have been restored."""
        self.ready_ms = self.world.clock.now_ms()
        self.world.ready_ms[self.name].append(self.ready_ms)

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

    async def _answer(
        self, requests: list[OwnerRequest], done: Callable[[list[OwnerReply]], None]
    ) -> None:
        await asyncio.shield(self._started)
        replies = await self.owner.handle(requests)
        if self.is_alive:
            done(replies)
