"""One member's part in the cluster: it renews its lease, takes and gives shards, fences itself.

Theory of operation. Twice a second a renewal goes to the ledger and brings the map of shards back.
The map is compared with what is held here: what the ledger says is this member's is held from then
on, what it says is another's is dropped. Then each member computes for itself which shards it
should take and give (`core/shards/assignment.py`); two commands move them, and only the ledger's
answer counts. A map that is older than this member's own last move is not compared, because it does
not know that move yet.

Renewals carry the permits of agents both ways (`core/shards/held_permits.py`). One is under way at
a time; while orders wait for permits they follow each other sooner.

Before anything is sent to an agent `may_send` is asked: whether the last renewal that was
acknowledged was *sent* at most 2.5 s ago, on a clock that runs while this process is suspended. So
a member that was frozen or cut off sends nothing for a shard that another has taken.

Knows neither Ray nor rows. shards.md. Decisions 0200, 0204.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from actors.shards.held_shards import HeldShards
from core.shards.assignment import moves_of
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from core.shards.leases import RENEWAL_MS, SELF_FENCE_MS
from core.shards.permit_messages import PermitAnswer, PermitReport
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.shards.shard_commands import GiveShards, TakeShards

log = logging.getLogger("callboard.membership")

RENEWAL_TIMEOUT_S: Final = 2.0
# Between two renewals, whatever is asked for; and at most while orders wait for permits.
RENEWAL_MS_MIN: Final = 50
POLL_MS_MAX: Final = 200
# Shards that are handed over at the same time.
GIVES_MAX: Final = 4
# A shard whose commands are not answered in that time is taken up again and given later.
FREEZE_S: Final = 1.0


class ShardWork(Protocol):
    """What a member does with its shards."""

    def load(self) -> int:
        """Return how many unfinished workflows are driven here."""

    def taken(self, shards: Sequence[int], *, is_given: bool) -> None:
        """Restore the workflows of these shards, which are held from now on.

        `is_given`: another member has given them, whose hint may come.
        """

    def lost(self, shards: Sequence[int]) -> None:
        """Drop these shards' workflows at once: another member drives them."""

    async def settled(self, shard: int) -> None:
        """Return when no command of a frozen shard is without its outcome."""

    def given(self, shard: int, epoch: int, to: MemberView) -> None:
        """Pass the open calls of a shard on that was held under this epoch; it is another's now."""

    def thawed(self, shard: int) -> None:
        """Take a frozen shard's work up again: it was not given."""

    def unfenced(self) -> None:
        """Send what has waited for a renewal to be acknowledged."""

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Know the other members, to send dispatches through them."""

    def permit_report(self) -> PermitReport:
        """Return what the next renewal says of the permits of agents."""

    def permits_heard(self, report: PermitReport, answer: PermitAnswer) -> None:
        """Use the permits that a report is answered with."""

    def wants_permits(self) -> bool:
        """Say whether orders wait for permits."""


class Membership:
    """The lease of one member and its moves.

    Args:
        held: what it holds; changed here only.
        work: what is done with shards.
        renew: sends a renewal; raises when the ledger does not acknowledge it.
        commit: commits a command; never refuses, has no deadline of its own.
        boot_ms: a monotonic clock that runs while the machine or the process is suspended.
        on_ended: receives the reason when the ledger does not know this member any more: its
            process ends, and a successor is a new member.
    """

    def __init__(
        self,
        held: HeldShards,
        work: ShardWork,
        *,
        renew: Callable[[Renewal], Awaitable[Lease]],
        commit: Callable[[Command], Awaitable[Outcome]],
        boot_ms: Callable[[], int],
        on_ended: Callable[[str], None],
    ) -> None:
        self._held = held
        self._work = work
        self._renew = renew
        self._commit = commit
        self._boot_ms = boot_ms
        self._on_ended = on_ended
        self._members: tuple[MemberView, ...] = ()
        self._shards: tuple[HeldShard, ...] = ()
        self._map_version = 0
        # Of this member's own last move: an older map does not know it.
        self._moved_version = 0
        self._acknowledged_ms: int | None = None
        self._was_fenced = False
        self._moves = 0
        self._taking: asyncio.Task[None] | None = None
        self._asked: frozenset[int] = frozenset()  # of the Take under way
        self._giving: dict[int, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._poll_ms = RENEWAL_MS_MIN

    def __repr__(self) -> str:
        return f"<Membership {self._held!r} map={self._map_version} may_send={self.may_send()}>"

    def may_send(self) -> bool:
        """Say whether this member may send anything new to agents; False: it is fenced."""
        sent_ms = self._acknowledged_ms
        may = sent_ms is not None and self._boot_ms() - sent_ms <= SELF_FENCE_MS
        if not may:
            self._was_fenced = True
        return may

    @property
    def members(self) -> tuple[MemberView, ...]:
        """Return the members of the cluster as last heard."""
        return self._members

    @property
    def is_drained(self) -> bool:
        """Whether this member is DRAINING and holds nothing any more."""
        own = self._own()
        return own is not None and own.state is MemberState.DRAINING and not len(self._held)

    def start(self) -> None:
        """Renew from now on, until `close`; the member must be registered."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End every task."""
        tasks = [task for task in (self._loop, self._taking, *self._giving.values()) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def note_stale(self, shard: int, epoch: int) -> None:
        """Note that the ledger refused a command under this epoch: drop that shard alone.

        Not when it is held under a newer one: then the command came of what was held before.
        """
        if epoch and self._held.epoch(shard) == epoch:
            log.warning("shard lost member=%s shard=%d", self._held.member, shard)
            self._drop([shard])

    # -- renewing ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self.renew_once()
            except Exception:  # the edge of the loop: a failed round must not end the renewals
                log.exception("renewal failed member=%s", self._held.member)
            await self._pause()

    async def _pause(self) -> None:
        """Return when the next renewal is due: `RENEWAL_MS` later, or as soon as it is asked for.

        While orders wait for permits it is due sooner, but less and less soon.
        """
        if self._work.wants_permits():
            self._poll_ms = min(2 * self._poll_ms, POLL_MS_MAX)
            due_ms = self._poll_ms
        else:
            self._poll_ms, due_ms = RENEWAL_MS_MIN, RENEWAL_MS
        await asyncio.sleep(RENEWAL_MS_MIN / 1_000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((due_ms - RENEWAL_MS_MIN) / 1_000):
                await self._soon.wait()
        self._soon.clear()

    def renew_soon(self) -> None:
        """Let the next renewal be soon."""
        self._soon.set()

    async def renew_once(self) -> None:
        """Renew the lease and act on what the ledger says."""
        sent_ms = self._boot_ms()
        report = self._work.permit_report()
        renewal = Renewal(
            member=self._held.member,
            load=self._work.load(),
            map_version=self._map_version,
            permits=report,
        )
        try:
            async with asyncio.timeout(RENEWAL_TIMEOUT_S):
                lease = await self._renew(renewal)
        except Exception as error:  # the edge to another process: the next renewal is soon
            log.info("no lease member=%s error=%s", self._held.member, type(error).__name__)
            return
        if not lease.is_known:
            self._on_ended(f"{self._held.member} is no member of this cluster any more")
            return
        self._acknowledged_ms = max(sent_ms, self._acknowledged_ms or 0)
        self._work.permits_heard(report, lease.permits)
        if lease.map_version < self._map_version:
            return  # of a renewal before: two may be under way
        if self._members != lease.members:
            self._members = lease.members
            self._work.members_changed(lease.members)
        if lease.shards:
            self._shards, self._map_version = lease.shards, lease.map_version
        if self._map_version >= self._moved_version:
            self._compare()
            self._move()
        if self._was_fenced and self.may_send():
            self._was_fenced = False
            self._work.unfenced()

    def _compare(self) -> None:
        """Hold what the map says is this member's, drop what it says is another's.

        Not what is being given: the outcome of its Give decides, and may arrive after a map that
        knows it already. What is being taken is no gift of another member.
        """
        mine = {
            shard: held.epoch
            for shard, held in enumerate(self._shards)
            if held.member == self._held.member and shard not in self._giving
        }
        self._drop([s for s in self._held.shards() if s not in mine and s not in self._giving])
        taken = {shard: epoch for shard, epoch in mine.items() if shard in self._asked}
        self._hold(taken, is_given=False)
        self._hold(mine, is_given=True)

    def _hold(self, epochs: dict[int, int], *, is_given: bool) -> None:
        new = [shard for shard, epoch in epochs.items() if self._held.add(shard, epoch)]
        if new:
            log.info("shards held member=%s new=%d", self._held.member, len(new))
            self._work.taken(new, is_given=is_given)

    def _drop(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._held.drop(shard)
        if shards:
            self._work.lost(shards)

    def _own(self) -> MemberView | None:
        return next((one for one in self._members if one.member == self._held.member), None)

    # -- moving -----------------------------------------------------------------------------------

    def _move(self) -> None:
        moves = moves_of(self._held.member, self._members, self._shards)
        if moves.take and self._taking is None:
            self._asked = frozenset(shard for shard, _ in moves.take)
            self._taking = asyncio.get_running_loop().create_task(self._take(moves.take))
        views = {one.member: one for one in self._members}
        for shard, to in moves.give:
            if len(self._giving) >= GIVES_MAX:
                break
            if shard in self._held and shard not in self._giving:
                task = asyncio.get_running_loop().create_task(self._give(shard, views[to]))
                self._giving[shard] = task

    def _key(self, kind: str) -> str:
        self._moves += 1
        return f"{kind}:{self._held.member}:{self._moves}"

    async def _take(self, shards: tuple[tuple[int, int], ...]) -> None:
        try:
            command = TakeShards(key=self._key("take"), member=self._held.member, shards=shards)
            outcome = await self._commit(command)
            if outcome.status is OutcomeStatus.REJECTED:
                log.warning("take refused member=%s outcome=%s", self._held.member, outcome)
                return
            self._moved_version = max(self._moved_version, int(outcome.result["mapVersion"]))
            taken = outcome.result["taken"]
            held = {int(shard): int(epoch) for shard, epoch in taken.items()}
            self._hold(held, is_given=False)
        finally:
            self._taking, self._asked = None, frozenset()

    async def _give(self, shard: int, to: MemberView) -> None:
        """Hand a shard over: freeze it, wait for its commands, give it, pass its calls on."""
        epoch = self._held.epoch(shard)
        try:
            self._held.freeze(shard)
            try:
                async with asyncio.timeout(FREEZE_S):
                    await self._work.settled(shard)
            except TimeoutError:
                log.info("shard not given, commands are open shard=%d", shard)
                return  # tried again with the next map
            command = GiveShards(
                key=self._key("give"),
                member=self._held.member,
                shards=((shard, epoch),),
                to=to.member,
            )
            outcome = await self._commit(command)
            if outcome.status is OutcomeStatus.REJECTED:
                log.info("give refused shard=%d outcome=%s", shard, outcome)
                return
            self._moved_version = max(self._moved_version, int(outcome.result["mapVersion"]))
            if self._held.epoch(shard) == epoch:  # else it was lost, or came back, meanwhile
                self._held.drop(shard)
                if shard in outcome.result["given"]:
                    self._work.given(shard, epoch, to)
                else:
                    self._work.lost([shard])
        finally:
            self._giving.pop(shard, None)
            if shard in self._held.frozen() and self._held.epoch(shard) == epoch:
                self._held.thaw(shard)
                self._work.thawed(shard)
        self._move()  # the next one, without waiting for a renewal
