"""One member's part in the cluster: it renews its lease, takes and gives shards, fences itself.

Theory of operation. Twice a second a renewal goes to the ledger and brings the map of shards back.
The map is compared with what is held here: what the ledger says is this member's is held from then
on, what it says is another's is dropped. Epochs tell which of two news of a shard is newer, so an
outcome that is late and a map that is old change nothing (`held_shards.py`). Then each member
computes for itself which shards it should take and give (`core/shards/assignment.py`); two commands
move them, and only the ledger's answer counts. An answer of a ledger that does not know yet what
this member knew when it asked is none: another ledger is the head.

A shard that is to be given drains first: gateways choose other shards for new workflows, and it is
given when none of its calls of agents is open, or after `drain_ms`. From then on it is frozen until
the outcome of its Give is known, whatever a map says meanwhile: its workflows are driven no longer,
and the member that holds it afterwards restores them from their rows and tries open calls again.

Several renewals may be under way, and their answers may come in another order.

Before anything is sent to an agent `may_send` is asked (`self_fence.py`).

Knows neither Ray nor rows. Decisions workflow-owners-and-shards and tests-and-benchmarks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from actors.shards.held_shards import HeldShards
from actors.shards.self_fence import SelfFence
from core.shards.assignment import Moves, moves_of
from core.shards.lease_messages import (
    FIRST_VERSION,
    HeldShard,
    Lease,
    MemberState,
    MemberView,
    Renewal,
)
from core.shards.leases import RENEWAL_MS
from ledger.commands import Command, Outcome
from ledger.features.shards import GiveShards, TakeShards

log = logging.getLogger("callboard.membership")

RENEWAL_TIMEOUT_S: Final = 2.0
# Shards that are given at the same time.
GIVES_MAX: Final = 16


class ShardWork(Protocol):
    """What a member does with its shards."""

    def load(self) -> int:
        """Return how many unfinished workflows are driven here."""

    def open_calls(self) -> int:
        """Return how many calls of agents would be lost with this process now."""

    def taken(self, shards: Sequence[int]) -> None:
        """Restore the workflows of these shards, which are held from now on."""

    def lost(self, shards: Sequence[int]) -> None:
        """Drop these shards' workflows at once: another member drives them."""

    def may_give(self, shard: int) -> bool:
        """Say whether a shard may be given: it is restored, and driven by this process alone."""

    def is_idle(self, shard: int) -> bool:
        """Say whether no call of an agent is open for a shard's workflows."""

    def frozen(self, shard: int) -> None:
        """Drop a shard's workflows, because the shard is given away; their agents are not told."""

    async def settled(self, shard: int) -> None:
        """Return when no command of a frozen shard is without its outcome, or it is not held."""

    def unfenced(self) -> None:
        """Send what has waited for a renewal to be acknowledged."""

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Share agents with these members, and send dispatches through them."""


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
        drain_ms: how long open calls may keep a shard here that is to be given.
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
        drain_ms: int = 10_000,
    ) -> None:
        self._held = held
        self._work = work
        self._renew = renew
        self._commit = commit
        self._boot_ms = boot_ms
        self._on_ended = on_ended
        self._drain_ms = drain_ms
        self._members: tuple[MemberView, ...] = ()
        self._shards: tuple[HeldShard, ...] = ()
        # Of the code that all of the cluster understands; what only later code does is not written.
        self.cluster_version = FIRST_VERSION
        self._map_version = 0
        # The newest version of the map that an outcome of this member's has told.
        self._told_version = 0
        # The highest that leases have told; a ledger that is behind them stops.
        self._seen_epoch = self._seen_audit_id = 0
        self._fence = SelfFence(boot_ms)
        self._is_ended = False
        self._moves = 0
        self._due = Moves((), ())
        self._moves_seen: object = None  # what `_due` was worked out from
        self._taking: asyncio.Task[None] | None = None
        self._giving: dict[int, asyncio.Task[None]] = {}
        self._drains_ms: dict[int, int] = {}  # by shard that is to be given, since when
        self._answered: set[int] = set()  # of them, those that are looked at in this turn
        self._unreported: list[int] = []  # lost shards that no line of the log names yet
        self._renewing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None

    def may_send(self) -> bool:
        """Say whether this member may send anything new to agents; False: it is fenced."""
        return self._fence.may_send()

    @property
    def _is_empty(self) -> bool:
        """Whether this member is DRAINING and holds nothing, nor will."""
        own = next((one for one in self._members if one.member == self._held.member), None)
        is_moving = self._taking is not None or bool(self._giving)
        is_draining = own is not None and own.state is MemberState.DRAINING
        return is_draining and not is_moving and not len(self._held)

    def note_moved(self, outcome: Outcome) -> None:
        """Note that this member has registered, or moved shards: a ledger without that is behind.

        Args:
            outcome: of its command, which was applied.
        """
        self._told_version = max(self._told_version, int(outcome.result["mapVersion"]))

    def start(self) -> None:
        """Renew from now on, until `close`; the member must be registered."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End every task; a shard that is being given stays frozen."""
        several = (self._loop, self._taking, *self._giving.values(), *self._renewing)
        tasks = [task for task in several if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def note_stale(self, shard: int, epoch: int) -> None:
        """Note that the ledger refused a command as of another's shard: drop that shard alone.

        Not when it is held under a newer one: then the command came of what was held before. Nor
        when it is being given, because the outcome of the Give follows.

        Args:
            epoch: that the command carried, 0 for a shard that was not held.
        """
        if epoch and self._held.epoch(shard) == epoch and shard not in self._giving:
            self._drop([shard])

    # -- renewing ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Send a renewal in every interval, whatever became of the last ones."""
        while True:
            task = asyncio.get_running_loop().create_task(self._renew_safely())
            self._renewing.add(task)
            task.add_done_callback(self._renewing.discard)
            await asyncio.sleep(RENEWAL_MS / 1_000)

    async def _renew_safely(self) -> None:
        try:
            await self.renew_once()
        except Exception:  # the edge of the task: a failed round must not end the renewals
            log.exception("renewal failed member=%s", self._held.member)

    async def renew_once(self) -> None:
        """Renew the lease and act on what the ledger says."""
        self._report_lost()
        sent_ms, known_version = self._boot_ms(), max(self._map_version, self._told_version)
        open_calls = self._work.open_calls()
        renewal = Renewal(
            member=self._held.member,
            load=self._work.load(),
            map_version=self._map_version,
            open_calls=open_calls,
            is_drained=self._is_empty and not open_calls,
            seen_epoch=self._seen_epoch,
            seen_audit_id=self._seen_audit_id,
        )
        try:
            async with asyncio.timeout(RENEWAL_TIMEOUT_S):
                lease = await self._renew(renewal)
        except Exception as error:  # the edge to another process: the next renewal is soon
            log.info("no lease member=%s error=%s", self._held.member, type(error).__name__)
            return
        if lease.map_version < known_version:
            log.warning("a ledger is behind member=%s version=%d", self._held.member, known_version)
        elif not lease.is_known:
            self._end(f"{self._held.member} is no member of this cluster any more")
        else:
            self._acknowledge(sent_ms, lease)

    def _acknowledge(self, sent_ms: int, lease: Lease) -> None:
        self._fence.acknowledge(sent_ms)
        self._seen_epoch = max(self._seen_epoch, lease.epoch)
        self._seen_audit_id = max(self._seen_audit_id, lease.audit_id)
        if lease.map_version >= self._map_version:
            if self._members != lease.members:
                self._members = lease.members
                self._work.members_changed(lease.members)
            if lease.shards:
                self._shards, self._map_version = lease.shards, lease.map_version
                self._compare()  # what only outcomes change, those compare
            self.cluster_version = lease.cluster_version
        self._begin_take()
        self._begin_gives()
        if self._fence.has_ended():
            self._work.unfenced()

    def _report_lost(self) -> None:
        """Log the shards lost since the last renewal: one loss shows in a command of each."""
        if self._unreported:
            shards = ",".join(map(str, sorted(self._unreported)))
            log.warning("shards lost member=%s shards=%s", self._held.member, shards)
            self._unreported.clear()

    def _end(self, reason: str) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._on_ended(reason)

    # -- comparing --------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Hold what the map says is this member's, drop what it says is another's."""
        mine: dict[int, int] = {}
        lost: list[int] = []
        frozen = self._held.frozen()
        for shard, seen in enumerate(self._shards):
            if shard in frozen and shard in self._giving:
                continue  # the outcome of its Give tells
            if seen.member == self._held.member:
                mine[shard] = seen.epoch
                continue
            if 0 < self._held.epoch(shard) < seen.epoch:
                lost.append(shard)
            self._held.note_other(shard, seen.epoch)
        self._drop(lost)
        self._hold(mine)

    def _hold(self, epochs: dict[int, int]) -> None:
        new = [shard for shard, epoch in epochs.items() if self._held.is_news(shard, epoch)]
        self._drop([shard for shard in new if shard in self._held])  # of an older epoch
        for shard in new:
            self._held.add(shard, epochs[shard])
        if new:
            log.info("shards held member=%s new=%d", self._held.member, len(new))
            self._work.taken(new)

    def _drop(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._held.drop(shard)
        if shards:
            self._unreported += shards
            self._work.lost(shards)

    # -- moving -----------------------------------------------------------------------------------

    def _due_moves(self) -> Moves:
        """Return what this member should do; anew only when the map or who may hold shards changed.

        Members' loads and silences change with each renewal, and there are as many shards as ever.
        """
        seen = (
            self._map_version,
            [(one.member, one.is_live, one.state) for one in self._members],
        )
        if seen != self._moves_seen:
            self._moves_seen = seen
            self._due = moves_of(self._held.member, self._members, self._shards)
        return self._due

    def _begin_take(self) -> None:
        if self._taking is None:
            shards = self._due_moves().take
            if shards:
                self._taking = asyncio.get_running_loop().create_task(self._take(shards))

    def _begin_gives(self) -> None:
        """Give the shards that have drained, a few at a time."""
        give, now_ms = self._due_moves().give, self._boot_ms()
        self._drains_ms = {shard: self._drains_ms.get(shard, now_ms) for shard, _ in give}
        for shard, to in give:
            if len(self._giving) >= GIVES_MAX:
                break
            if self._has_drained(shard, now_ms):
                self._begin_give(shard, to)

    def note_answered(self, shard: int) -> None:
        """Note that an agent has answered: its shard may have no open call until the next step."""
        if shard in self._drains_ms and shard not in self._answered:
            self._answered.add(shard)
            asyncio.get_running_loop().call_soon(self._give_answered, shard)

    def _give_answered(self, shard: int) -> None:
        self._answered.discard(shard)
        if len(self._giving) < GIVES_MAX and self._has_drained(shard, self._boot_ms()):
            self._begin_give(shard, dict(self._due_moves().give).get(shard))

    def _begin_give(self, shard: int, to: str | None) -> None:
        view = next((one for one in self._members if one.member == to), None)
        if view is None:
            return
        self._held.freeze(shard)
        self._work.frozen(shard)
        self._giving[shard] = asyncio.get_running_loop().create_task(self._give(shard, view))

    def _has_drained(self, shard: int, now_ms: int) -> bool:
        is_here = shard in self._held and shard not in self._giving
        if not is_here or not self._work.may_give(shard):
            return False
        is_late = now_ms - self._drains_ms.get(shard, now_ms) >= self._drain_ms
        return is_late or self._work.is_idle(shard)

    def _key(self, kind: str) -> str:
        self._moves += 1
        return f"{kind}:{self._held.member}:{self._moves}"

    async def _take(self, shards: tuple[tuple[int, int], ...]) -> None:
        command = TakeShards(key=self._key("take"), member=self._held.member, shards=shards)
        try:
            outcome = await self._commit(command)
        finally:
            self._taking = None
        if outcome.error is not None:
            log.warning("take refused member=%s outcome=%s", self._held.member, outcome)
            return
        self.note_moved(outcome)
        taken = {int(shard): int(epoch) for shard, epoch in outcome.result["taken"].items()}
        self._hold(taken)

    async def _give(self, shard: int, to: MemberView) -> None:
        """Give a frozen shard away, or restore it."""
        epoch = self._held.epoch(shard)
        is_given = False
        try:
            await self._work.settled(shard)
            if self._held.epoch(shard) == epoch:
                is_given = await self._commit_give(shard, epoch, to)
        finally:
            del self._giving[shard]
        self._compare()  # what a map has told meanwhile
        if is_given:
            self._begin_gives()
        elif self._held.epoch(shard) == epoch:
            self._held.thaw(shard)
            self._work.taken([shard])

    async def _commit_give(self, shard: int, epoch: int, to: MemberView) -> bool:
        """Give a shard away; return whether it is another's now, False when that was refused."""
        outcome = await self._commit(
            GiveShards(
                key=self._key("give"),
                member=self._held.member,
                shards=((shard, epoch),),
                to=to.member,
            )
        )
        if outcome.error is not None:
            log.info("give refused shard=%d outcome=%s", shard, outcome)
            return False
        self.note_moved(outcome)
        if self._held.epoch(shard) == epoch:  # else a command of it was refused meanwhile
            if shard in outcome.result["given"]:
                self._held.drop(shard)
            else:
                self._drop([shard])
        return True
