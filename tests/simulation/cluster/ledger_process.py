"""A ledger's process in a simulated cluster: the real `GroupCommit` on its own loop.

Several of them may run at once; one has the lock of the head, the others wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from core.errors import ServiceError
from core.shards.lease_messages import Renewal
from ledger.commands import Command
from ledger.errors import LedgerIntegrityError, LedgerUnavailable
from ledger.features.shards import JoinCluster
from ledger.writer.group_commit import GroupCommit
from ledger.writer.store import Genesis
from tests.simulation.cluster.simulated_store import SimulatedStore
from tests.simulation.loop import VirtualLoop, raise_unforeseen

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld

COMMIT_TIMEOUT_S, START_S = 5.0, 0.3
GENESIS = Genesis("simulation", {})
Answer = Callable[[Any], None]


class LedgerProcess:
    """One process of the ledger, from its start until it ends or is killed."""

    def __init__(self, world: ClusterWorld, name: str, slot: str) -> None:
        self.world = world
        self.name = name
        self.slot = slot
        self._sessions = 0
        self.clock = world.new_clock()
        # asyncio asks for no more of a loop than it has.
        self.loop = VirtualLoop(self.clock, name)  # type: ignore[abstract]
        with self.loop.entered():
            self._ledger = GroupCommit(
                "",
                genesis=GENESIS,
                on_fatal=self._end,
                now_ms=self.boot_ms,
                boot_ms=self.boot_ms,
                open_store=partial(SimulatedStore.open, self),  # type: ignore[arg-type]
            )
        self._started = self.loop.create_task(self._start())
        self._started.add_done_callback(raise_unforeseen)
        self._commits: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<LedgerProcess {self.name} alive={self.loop.is_alive}>"

    @property
    def is_well(self) -> bool:
        """Whether it is alive and neither frozen nor suspended."""
        return self.loop.is_alive and not self.loop.is_frozen and not self.clock.is_suspended

    @property
    def is_standby(self) -> bool:
        """Whether it waits for the lock."""
        return self._ledger.is_standby

    def boot_ms(self) -> int:
        """Return the time of a clock that runs while the machine is suspended."""
        return self.clock.boot_us // 1_000

    def kill(self) -> None:
        """End at once."""
        if self.loop.is_alive:
            self.loop.die()
            self.end_session()
            self.world.ledger_ended(self)

    def new_session(self) -> str:
        """Return the name of a new session with the database."""
        self._sessions += 1
        return self._session

    def end_session(self) -> None:
        """Close the session; the database hears of it if it is reached."""
        if not self.world.is_cut_off(self):
            self.world.database.release(self._session)

    @property
    def _session(self) -> str:
        return f"{self.name}:{self._sessions}"

    async def hand_over(self) -> None:
        """Finish the batch under way and release the lock."""
        await self._ledger.hand_over()

    def take_renewal(self, renewal: Renewal, answer: Answer) -> None:
        """Answer a renewal."""
        try:
            leases = self._ledger.renew([renewal])
        except ServiceError as refusal:
            answer(refusal)
        else:
            answer(leases[0])

    def take_command(self, command: Command, answer: Answer) -> None:
        """Commit a command and answer with its outcome.

        A process that joins and ends before its command arrives would end its successor's lease:
        decision tests-and-benchmarks says what is not handled.
        """
        if isinstance(command, JoinCluster) and command.member not in self.world.living:
            return
        task = self.loop.create_task(self._commit(command, answer))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def ask_database(self, statement: Callable[[], Any]) -> Any:
        """Have a statement executed; raises ConnectionError when its outcome is unknown."""
        reply = self.loop.create_future()
        self.world.ask_database(self, statement, reply)
        async with asyncio.timeout(COMMIT_TIMEOUT_S):
            return await reply

    async def _start(self) -> None:
        while True:
            try:
                await self._ledger.start(self.name)
            except LedgerUnavailable:
                await asyncio.sleep(START_S)
            except LedgerIntegrityError as error:
                self._end(error)
                return
            else:
                return

    async def _commit(self, command: Command, answer: Answer) -> None:
        try:
            outcomes = await self._ledger.submit([command])
        except ServiceError as refusal:
            answer(refusal)
        else:
            answer(outcomes[0])

    def _end(self, error: LedgerIntegrityError) -> None:
        self.kill()
