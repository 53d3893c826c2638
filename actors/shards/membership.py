"""One member of the cluster: renews its lease, takes and gives shards, and fences itself.

To give a shard is to hand it off to another member. To take a shard is to become its holder after
its previous holder has ended.

Theory of operation. Twice a second the member sends a renewal to the ledger. The reply contains the
map of shards. The member compares the map with the shards that it holds. It adds the shards that
the map assigns to it, and drops those that the map assigns to other members. Epochs decide which of
two statements about a shard is newer, so a late outcome or an old map changes nothing
(`held_shards.py`). Then the member computes which shards it should take and give
(`core/shards/assignment.py`). Two commands, TakeShards and GiveShards, move shards; only the
ledger's outcome of the command counts. A reply is ignored if its map is older than the map that
this member knew when it sent the renewal. Such a reply comes from a ledger that is behind, and
another ledger process is the writer.

A shard drains before it is given. Gateways choose other shards for new workflows. The shard is
given when it has no open calls to agents, or after `drain_ms`. Then it is frozen until the outcome
of its GiveShards is known, whatever maps arrive in the meantime. A frozen shard's workflows are not
driven. The next holder restores them from their rows and repeats their open calls.

Several renewals may be in flight. Their replies may arrive in any order.

Before a process sends anything to an agent, it calls `may_send` (`self_fence.py`).

This module knows neither Ray nor rows. Decisions workflow-owners-and-shards and
tests-and-benchmarks.
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
# The most shards that a member gives at the same time.
GIVES_MAX: Final = 16


class ShardWork(Protocol):
    """The work of a process for its shards; `Membership` calls these methods."""

    def load(self) -> int:
        """Return the number of unfinished workflows that this process drives."""

    def open_calls(self) -> int:
        """Return the number of calls to agents that would be lost if this process ended now."""

    def taken(self, shards: Sequence[int]) -> None:
        """Restore the workflows of these shards, which this member now holds."""

    def lost(self, shards: Sequence[int]) -> None:
        """Drop these shards' workflows at once, because another member drives them."""

    def may_give(self, shard: int) -> bool:
        """Say whether a shard may be given: it is restored, and no child works in it."""

    def is_idle(self, shard: int) -> bool:
        """Say whether a shard's workflows have no open calls to agents."""

    def frozen(self, shard: int) -> None:
        """Drop the workflows of a shard that is being given, without notice to their agents."""

    async def settled(self, shard: int) -> None:
        """Return when every command of a frozen shard has its outcome."""

    def unfenced(self) -> None:
        """Send the dispatches that waited while this member was fenced."""

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Share agents' capacity with these members, and send dispatches through them."""


class Membership:
    """The lease of one member and the moves of its shards.

    Args:
        held: the shards that the member holds. Only this class changes it.
        work: the work that the process does for its shards.
        renew: sends a renewal; raises when the ledger does not acknowledge it.
        commit: commits a command; returns its outcome, however long that takes.
        boot_ms: a monotonic clock that runs while the machine or the process is suspended.
        on_ended: receives the reason when the ledger no longer knows this member. The callback ends
            the process; the process's successor is a new member.
        drain_ms: how long a shard that is to be given waits for its open calls, milliseconds.
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
        # The newest version that all processes of the cluster understand. Rows are written so that
        # code of this version can read them.
        self.cluster_version = FIRST_VERSION
        self._map_version = 0
        # The newest map version in an outcome of this member's commands.
        self._told_version = 0
        # The highest epoch and audit id in this member's leases. A ledger with lower values stops.
        self._seen_epoch = self._seen_audit_id = 0
        self._fence = SelfFence(boot_ms)
        self._is_ended = False
        self._moves = 0
        self._taking: asyncio.Task[None] | None = None
        self._giving: dict[int, asyncio.Task[None]] = {}
        self._drains_ms: dict[int, int] = {}  # by draining shard: when it began to drain
        self._answered: set[int] = set()  # draining shards that are checked in this turn
        self._unreported: list[int] = []  # lost shards that were not logged yet
        self._renewing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None

    def may_send(self) -> bool:
        """Say whether this member may send anything new to agents; False if it is fenced."""
        return self._fence.may_send()

    @property
    def _is_empty(self) -> bool:
        """Whether this member is DRAINING, holds no shard, and moves no shard."""
        own = next((one for one in self._members if one.member == self._held.member), None)
        is_moving = self._taking is not None or bool(self._giving)
        is_draining = own is not None and own.state is MemberState.DRAINING
        return is_draining and not is_moving and not len(self._held)

    def note_moved(self, outcome: Outcome) -> None:
        """Note the map version of an applied command that registered this member or moved shards.

        Leases with an older map are ignored from then on, because their ledger is behind.

        Args:
            outcome: the outcome of the applied command.
        """
        self._told_version = max(self._told_version, int(outcome.result["mapVersion"]))

    def start(self) -> None:
        """Start to renew the lease until `close`; the member must be registered."""
        self._loop = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Cancel every task; a shard that is being given stays frozen."""
        several = (self._loop, self._taking, *self._giving.values(), *self._renewing)
        tasks = [task for task in several if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def note_stale(self, shard: int, epoch: int) -> None:
        """Drop a shard, because the ledger refused a command: another member holds the shard.

        The shard is not dropped if it is now held under a newer epoch than the command's. It is
        also not dropped while it is being given, because the outcome of GiveShards follows.

        Args:
            epoch: the epoch that the command carried, 0 for a shard that was not held.
        """
        if epoch and self._held.epoch(shard) == epoch and shard not in self._giving:
            self._drop([shard])

    # -- renewing ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Send a renewal in every interval, even if earlier renewals have no reply yet."""
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
        """Renew the lease and act on the ledger's reply."""
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
        except Exception as error:  # the edge to another process: the next renewal follows soon
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
                self._compare()
            self.cluster_version = lease.cluster_version
        self._begin_take()
        self._begin_gives()
        if self._fence.has_ended():
            self._work.unfenced()

    def _report_lost(self) -> None:
        """Log the shards lost since the last renewal, in one line.

        Shards that are lost together are noticed one by one: the ledger refuses a command of each.
        """
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
        """Add the shards that the map assigns to this member; drop those of other members."""
        mine: dict[int, int] = {}
        lost: list[int] = []
        frozen = self._held.frozen()
        for shard, seen in enumerate(self._shards):
            if shard in frozen and shard in self._giving:
                continue  # the outcome of its GiveShards decides
            if seen.member == self._held.member:
                mine[shard] = seen.epoch
                continue
            if 0 < self._held.epoch(shard) < seen.epoch:
                lost.append(shard)
            self._held.note_other(shard, seen.epoch)
        self._drop(lost)
        self._hold(mine)

    def _hold(self, epochs: dict[int, int]) -> None:
        new = [shard for shard, epoch in epochs.items() if self._held.is_newer(shard, epoch)]
        self._drop([shard for shard in new if shard in self._held])  # held under an older epoch
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
        """Return the shards that this member should take and give."""
        return moves_of(self._held.member, self._members, self._shards)

    def _begin_take(self) -> None:
        if self._taking is None:
            shards = self._due_moves().take
            if shards:
                self._taking = asyncio.get_running_loop().create_task(self._take(shards))

    def _begin_gives(self) -> None:
        """Begin to give the shards that have drained, at most `GIVES_MAX` at a time."""
        give, now_ms = self._due_moves().give, self._boot_ms()
        self._drains_ms = {shard: self._drains_ms.get(shard, now_ms) for shard, _ in give}
        for shard, to in give:
            if len(self._giving) >= GIVES_MAX:
                break
            if self._has_drained(shard, now_ms):
                self._begin_give(shard, to)

    def note_answered(self, shard: int) -> None:
        """Note that an agent of a shard has answered; give the shard if it has drained.

        The check runs in the next iteration of the event loop, because the workflow's next step may
        open a new call first.
        """
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
        """Give a frozen shard; restore its workflows if the ledger refuses."""
        epoch = self._held.epoch(shard)
        is_given = False
        try:
            await self._work.settled(shard)
            if self._held.epoch(shard) == epoch:
                is_given = await self._commit_give(shard, epoch, to)
        finally:
            del self._giving[shard]
        # A map that arrived meanwhile was not compared for this shard.
        self._compare()  # what a map has told meanwhile
        if is_given:
            self._begin_gives()
        elif self._held.epoch(shard) == epoch:
            self._held.thaw(shard)
            self._work.taken([shard])

    async def _commit_give(self, shard: int, epoch: int, to: MemberView) -> bool:
        """Commit GiveShards; return False if it was refused, True if the shard is given or lost."""
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
        if self._held.epoch(shard) == epoch:  # else the shard was lost and dropped meanwhile
            if shard in outcome.result["given"]:
                self._held.drop(shard)
            else:
                self._drop([shard])
        return True
