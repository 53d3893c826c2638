"""A ledger's process in a simulated cluster: batches, leases, the answers to renewals.

It plans a batch on its own copy of the rows, commits it under the head's epoch, and answers renewals
from what is committed. Several of them may run at once; one is the head. shards.md (Lease; Ledger).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import Lease, MemberState, MemberView, Renewal
from core.shards.leases import LeaseTable
from tests.simulation.cluster.shard_plans import ClusterCommand, Gone, Joined, Planning
from tests.simulation.cluster.shard_rows import NotHead, ShardRows
from tests.simulation.loop import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld

CHECK_S, COMMIT_TIMEOUT_S, REOPEN_S = 1.0, 5.0, 0.3
Answer = Callable[[Any], None]


class LedgerProcess:
    """One process of the ledger, from its start until it ends or is killed."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = world.new_clock()
        # asyncio asks for no more of a loop than it has.
        self.loop = VirtualLoop(self.clock, name)  # type: ignore[abstract]
        self.epoch = 0
        self.committed: ShardRows | None = None  # None while the store is not open
        self.leases = LeaseTable(self.now_ms())
        self._queue: deque[tuple[ClusterCommand, Answer]] = deque()
        with self.loop.entered():
            self._work = asyncio.Event()
        self._task = self.loop.create_task(self._run())

    def __repr__(self) -> str:
        return f"<LedgerProcess {self.name} epoch={self.epoch} alive={self.loop.is_alive}>"

    def now_ms(self) -> int:
        """Return the time of a clock that runs while the machine is suspended."""
        return self.clock.boot_us // 1_000

    def kill(self) -> None:
        """End at once."""
        if self.loop.is_alive:
            self.loop.die()
            self.world.ledger_ended(self)

    # -- what others ask ---------------------------------------------------------------------------

    def take_renewal(self, renewal: Renewal, answer: Answer) -> None:
        """Answer a renewal, from memory of what is committed."""
        rows = self.committed
        now_ms = self.now_ms()
        self.leases.tick(now_ms)
        if rows is not None and rows.version < renewal.map_version:
            self.kill()  # another ledger is the head, and this one may lack what it has stored
            return
        may_renew = self.leases.is_acknowledging(now_ms) and self.leases.may_renew(renewal.member)
        if rows is None or not may_renew:
            answer(_unavailable())
            return
        is_known = self.leases.renew(renewal.member)
        is_new = rows.version != renewal.map_version
        answer(
            Lease(
                is_known=is_known,
                ledger_ms=now_ms,
                map_version=rows.version,
                members=self._views(rows),
                shards=tuple(rows.shards) if is_new else (),
            )
        )

    def take_command(self, command: ClusterCommand, answer: Answer) -> None:
        """Put a command into the next batch."""
        if self.committed is None:
            answer(_unavailable())
            return
        self._queue.append((command, answer))
        self._work.set()

    def _views(self, rows: ShardRows) -> tuple[MemberView, ...]:
        return tuple(
            MemberView(
                member=member,
                machine=row.address,
                address=row.address,
                version="1",
                state=row.state,
                is_live=self.leases.is_live(member),
            )
            for member, row in rows.members.items()
            if row.state is not MemberState.GONE
        )

    # -- batches -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._open_first()
            while True:
                try:
                    await self._next()
                except (ConnectionError, TimeoutError):
                    await self._reopen()
        except NotHead:
            self.kill()

    async def _open_first(self) -> None:
        while self.committed is None:
            try:
                seen = await self._ask_database(lambda: self.world.database.epoch)
                await self._open(seen)
            except (ConnectionError, TimeoutError):
                await asyncio.sleep(REOPEN_S)
        rows = self.committed.members
        self.leases.grant_all(one for one in rows if rows[one].state is not MemberState.GONE)

    async def _reopen(self) -> None:
        self.committed = None
        while self._queue:
            self._queue.popleft()[1](_unavailable())
        while self.committed is None:
            await asyncio.sleep(REOPEN_S)
            try:
                await self._open(self.epoch)
            except (ConnectionError, TimeoutError):
                continue

    async def _open(self, seen_epoch: int) -> None:
        asked_ms = self.now_ms()
        take = self.world.database.take_head
        self.epoch, self.committed = await self._ask_database(lambda: take(self.name, seen_epoch))
        self.leases.note_head(asked_ms)
        self.leases.takes_ended()

    async def _next(self) -> None:
        try:
            async with asyncio.timeout(CHECK_S):
                await self._work.wait()
        except TimeoutError:
            asked_ms = self.now_ms()
            await self._ask_database(lambda: self.world.database.check_head(self.epoch))
            self.leases.note_head(asked_ms)
            return
        self._work.clear()
        batch, self._queue = list(self._queue), deque()
        if batch:
            await self._commit(batch)

    async def _commit(self, batch: list[tuple[ClusterCommand, Answer]]) -> None:
        assert self.committed is not None
        asked_ms = self.now_ms()
        self.leases.tick(asked_ms)
        planning = Planning(self.committed.copy(), self.leases.may_take, self.leases.is_live)
        outcomes = [planning.plan(command) for command, _ in batch]

        def store() -> None:
            self.world.database.commit(self.epoch, planning.rows)
            self.world.checks.committed(planning.events, self)

        try:
            await self._ask_database(store)
        except (ConnectionError, TimeoutError):
            for _, answer in batch:
                answer(_unavailable())
            raise
        self.leases.note_head(asked_ms)
        self.leases.takes_ended()
        self.committed = planning.rows
        for event in planning.events:
            if isinstance(event, Joined):
                self.leases.grant(event.member)
                for member in event.ended:
                    self.leases.end(member)
            elif isinstance(event, Gone):
                self.leases.forget(event.member)
        for (_, answer), outcome in zip(batch, outcomes, strict=True):
            answer(outcome)

    async def _ask_database(self, statement: Callable[[], Any]) -> Any:
        """Have a statement executed; raises ConnectionError when its outcome is unknown."""
        reply = self.loop.create_future()
        self.world.ask_database(self, statement, reply)
        async with asyncio.timeout(COMMIT_TIMEOUT_S):
            return await reply


def _unavailable() -> ServiceError:
    return ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "not acknowledged", retry_after_s=1)
