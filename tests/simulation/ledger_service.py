"""The one writer of a simulated world, as processes see it: late, slow, cut off, away.

The model (`ledger_model.py`) says what a command does; here stands when, and whether its sender
hears of it. One commit at a time; a batch whose outcome is unknown is repeated by the real
`LedgerClient` with the same keys. money.md (Commands and keys).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import Lease, Renewal
from ledger.commands import Command, Outcome
from ledger.features.member_leases import MemberLeases

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

Reply = asyncio.Future[list[Outcome]]
# What a slow commit takes, milliseconds: the last one is longer than a caller waits.
SLOW_MS = (300, 3_000, 11_000)


class LedgerService:
    """Takes batches from processes and answers them, as the world's troubles say."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free_ms = 0  # when the commit that is under way will have ended
        self._newest_ms = 0
        self.offset_ms = 0
        self.is_away = False
        self._leases = MemberLeases(world.clock.now_ms)
        world.model.shards.is_live = self._leases.is_live

    def now_ms(self) -> int:
        """Return the ledger's own time, which never goes back."""
        self._newest_ms = max(self._newest_ms, self._world.clock.now_ms() + self.offset_ms)
        return self._newest_ms

    async def call(self, process: Process, batch: Sequence[Command]) -> list[Outcome]:
        """Carry a batch of a process to the ledger; raises when its outcome is unknown."""
        reply: Reply = process.loop.create_future()
        delay_ms = self._world.chance.randint(0, 3)
        self._world.clock.call_in(delay_ms, self._arrive, process, batch, reply)
        outcomes = await reply
        process.step("committed")
        return outcomes

    async def renew(self, process: Process, renewal: Renewal) -> Lease:
        """Carry a member's renewal to the ledger; raises when it is not acknowledged."""
        world = self._world
        if world.is_over():
            # Nothing is left to be renewed for.
            process.loop.create_task(process.owner.membership.close())
            raise asyncio.CancelledError
        await asyncio.sleep(world.chance.randint(0, 3) / 1_000)
        if self.is_away or world.clock.now_ms() < process.cut_until_ms:
            raise unreachable()
        known = self._leases.renew(renewal)
        committed = world.model.shards.committed()
        asked = [(renewal, known)]
        (lease,) = self._leases.answers(asked, committed, epoch=1, audit_id=committed.version)
        await asyncio.sleep(world.chance.randint(0, 3) / 1_000)
        return lease

    def _arrive(self, process: Process, batch: Sequence[Command], reply: Reply) -> None:
        world = self._world
        # What a dead process had sent may arrive after its death, even after its successor began.
        if not process.is_alive and world.chance.random() < 0.5:
            return
        troubles, now_ms = world.troubles, world.clock.now_ms()
        if troubles.slow and world.chance.random() < troubles.slow:
            self._free_ms = max(self._free_ms, now_ms) + world.chance.choice(SLOW_MS)
        if self._free_ms > now_ms:
            world.clock.call_at(self._free_ms, self._commit, process, batch, reply)
        else:
            self._commit(process, batch, reply)

    def _commit(self, process: Process, batch: Sequence[Command], reply: Reply) -> None:
        world, troubles = self._world, self._world.troubles
        draw = world.chance.random()
        if draw < troubles.commit_lost or self.is_away:
            _fail(reply)
            return
        process.step("commit")
        if not process.is_alive and world.crash_point is not None:
            return
        outcomes = world.model.commit(batch)
        self._leases.follow(world.model.shards.committed())
        for outcome in outcomes:
            moved = [*outcome.result.get("taken", ()), *outcome.result.get("given", ())]
            if moved:
                world.shards_moved(set(map(int, moved)))
        world.market.moved(batch)
        if draw < troubles.commit_lost + troubles.answer_lost:
            _fail(reply)
        else:
            world.clock.call_in(world.chance.randint(0, 2), _answer, reply, outcomes)


def _answer(reply: Reply, outcomes: list[Outcome]) -> None:
    if not reply.done():
        reply.set_result(outcomes)


def _fail(reply: Reply) -> None:
    if not reply.done():
        reply.set_exception(unreachable())


def unreachable() -> ServiceError:
    """Return what a caller of a ledger hears whose connection is gone."""
    return ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "the connection is cut", retry_after_s=1)
