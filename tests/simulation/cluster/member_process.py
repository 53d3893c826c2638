"""A member's process in a simulated cluster: the real `Membership` on its own loop.

What it drives is abstract (`shard_work.py`). It registers, renews, drains, and ends when the
cluster does not know it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.shards.held_shards import HeldShards
from actors.shards.membership import Membership
from core.shards.lease_messages import Lease, MemberState, Renewal
from ledger.commands import Command, Outcome
from ledger.features.shards import ChangeMember, JoinCluster
from tests.simulation.cluster.ledger_process import LedgerProcess
from tests.simulation.cluster.shard_work import ShardRuns
from tests.simulation.loop import VirtualLoop, raise_unforeseen

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld

COMMIT_TIMEOUT_S, REPEAT_S, POLL_S = 3.0, 0.1, 0.1


class MemberProcess:
    """One process of a member, alive from its making until it ends or is killed."""

    def __init__(self, world: ClusterWorld, address: str, number: int, version: int) -> None:
        self.world = world
        self.address = address
        self.version = version
        self.member = f"{address}#{number}"
        self.clock = world.new_clock()
        # asyncio asks for no more of a loop than it has.
        self.loop = VirtualLoop(self.clock, self.member)  # type: ignore[abstract]
        self.ledger = world.ledger
        self.is_joined = False
        self.is_renewed = False  # a ledger has acknowledged it once
        self._is_drained = False  # and the ledger has heard it
        self.held = HeldShards(self.member)
        with self.loop.entered():
            self.work = ShardRuns(self)
            self.membership = Membership(
                self.held,
                self.work,
                renew=self._renew,
                commit=self.commit,
                boot_ms=lambda: self.clock.boot_us // 1_000,
                on_ended=self._ended,
            )
        self._started = self.loop.create_task(self._start())
        self._started.add_done_callback(raise_unforeseen)

    def __repr__(self) -> str:
        return f"<MemberProcess {self.held.member} alive={self.loop.is_alive}>"

    @property
    def is_well(self) -> bool:
        """Whether it is alive and neither frozen nor suspended."""
        return self.loop.is_alive and not self.loop.is_frozen and not self.clock.is_suspended

    def may_send(self) -> bool:
        """Say whether the member would send now, if it ran."""
        with self.loop.entered():
            return self.membership.may_send()

    def kill(self) -> None:
        """End at once."""
        if self.loop.is_alive:
            self.loop.die()
            self.world.member_ended(self)

    async def commit(self, command: Command) -> Outcome:
        """Commit a command; repeated with its key until its outcome is known."""
        while True:
            ledger = self.ledger
            try:
                async with asyncio.timeout(COMMIT_TIMEOUT_S):
                    outcome = await self._ask(LedgerProcess.take_command, command)
            except Exception:  # whatever another process has met: the outcome is unknown
                self._leave(ledger)
                await asyncio.sleep(REPEAT_S)
                continue
            assert isinstance(outcome, Outcome)
            return outcome

    async def _start(self) -> None:
        join = JoinCluster(
            key=f"join:{self.member}",
            member=self.member,
            machine=self.address,
            address=self.address,
            version=str(self.version),
        )
        joined = await self.commit(join)
        self.is_joined = True
        self.membership.note_moved(joined)
        self.membership.start()
        while not self._is_drained:
            await asyncio.sleep(POLL_S)
        # As who upgrades does, once the ledger has heard it.
        await self.membership.close()
        await self.commit(
            ChangeMember(
                key=f"gone:{self.member}", actor_did="", member=self.member, state=MemberState.GONE
            )
        )
        self.kill()

    async def _renew(self, renewal: Renewal) -> Lease:
        ledger = self.ledger
        try:
            lease = await self._ask(LedgerProcess.take_renewal, renewal)
        except BaseException:  # a timeout cancels: look for the ledger elsewhere
            self._leave(ledger)
            raise
        assert isinstance(lease, Lease)
        self.is_renewed |= lease.is_known
        self._is_drained = renewal.is_drained
        return lease

    def _leave(self, ledger: LedgerProcess) -> None:
        """Look for another ledger than the one that has failed, if none was found meanwhile."""
        if self.ledger is ledger:
            self.ledger = self.world.any_ledger()

    async def _ask(self, take: Callable[..., None], message: Any) -> Any:
        reply = self.loop.create_future()
        ledger, network, ends = self.ledger, self.world.network, (self.address, self.ledger.name)

        def answer(result: Any) -> None:
            network.post(ends, self.loop, settle, reply, result)

        def refused() -> None:
            network.post(ends, self.loop, settle, reply, ConnectionError("refused"))

        network.post(ends, ledger.loop, take, ledger, message, answer, refused=refused)
        return await reply

    def _ended(self, reason: str) -> None:
        self.world.checks.member_ends(self, reason)
        self.kill()


def settle(reply: asyncio.Future[Any], result: Any) -> None:
    """Give an answer, or the exception that is one, to whoever still waits for it."""
    if reply.done():
        return
    if isinstance(result, Exception):
        reply.set_exception(result)
    else:
        reply.set_result(result)
