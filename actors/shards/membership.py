"""One member's part in the cluster: it renews its lease, takes and gives shards, fences itself.

Theory of operation. Twice a second a renewal goes to the ledger and brings the map of shards back.
The map is compared with what is held here: what the ledger says is this member's is held from then
on, what it says is another's is dropped. Epochs tell which of two news of a shard is newer, so an
outcome that is late and a map that is old change nothing (`held_shards.py`). Then each member
computes for itself which shards it should take and give (`core/shards/assignment.py`); two commands
move them, and only the ledger's answer counts: a shard that is being given stays frozen until the
outcome of its Give is known, whatever a map says meanwhile. An answer of a ledger that does not
know yet what this member knew when it asked is none: another ledger is the head.

Several renewals may be under way, and their answers may come in another order.

Before anything is sent to an agent `may_send` is asked (`self_fence.py`).

Knows neither Ray nor rows. shards.md. Decisions 0200, 0203.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from actors.shards.held_shards import HeldShards
from actors.shards.renewal_times import RenewalTimes
from actors.shards.self_fence import SelfFence
from core.shards.assignment import Moves, moves_of, other_version_for
from core.shards.cluster_version import FIRST_VERSION
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from ledger.commands import Command, Outcome
from ledger.shards.shard_commands import GiveShards, TakeShards

log = logging.getLogger("callboard.membership")

RENEWAL_TIMEOUT_S: Final = 2.0
# Shards that are handed over at the same time.
GIVES_MAX: Final = 4
# A shard whose commands are not answered in that time is taken up again and given later.
FREEZE_S: Final = 1.0


class ShardWork(Protocol):
    """What a member does with its shards."""

    def load(self) -> int:
        """Return how many unfinished workflows are driven here."""

    def open_calls(self) -> int:
        """Return how many calls of agents would be lost with this process now."""

    def taken(self, shards: Sequence[int], *, is_given: bool) -> None:
        """Restore the workflows of these shards, which are held from now on.

        `is_given`: another member has given them and tells in a hint, soon, which calls it still
        waits for; else no hint comes.
        """

    def lost(self, shards: Sequence[int]) -> None:
        """Drop these shards' workflows at once: another member drives them."""

    def may_give(self, shard: int) -> bool:
        """Say whether all open calls of a shard could be handed over with it now.

        Not before it is restored, with its giver's hint; nor while another process has such calls.
        """

    async def settled(self, shard: int) -> None:
        """Return when no command of a frozen shard is without its outcome, or it is not held."""

    def given(self, shard: int, epoch: int, to: MemberView) -> None:
        """Pass the open calls of a shard on that was held under this epoch; it is another's now."""

    def thawed(self, shard: int) -> None:
        """Take a frozen shard's work up again: it was not given."""

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
        self._refused: set[int] = set()
        self._asked: dict[int, int] = {}  # of the Take that is under way, by shard its epoch
        self._taking: asyncio.Task[None] | None = None
        self._giving: dict[int, asyncio.Task[None]] = {}
        self._tried = -1  # the shard of the newest hand-over; the next ones come after it
        self._unreported: list[int] = []  # lost shards that no line of the log names yet
        self._renewing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None
        self._times = RenewalTimes()

    def __repr__(self) -> str:
        return f"<Membership {self._held!r} map={self._map_version} {self._fence!r}>"

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

    def note_joined(self, outcome: Outcome) -> None:
        """Note that this member has registered: a ledger that does not know it is behind.

        Args:
            outcome: of its JoinCluster, which was applied.
        """
        self._note_moved(outcome)

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

    def offer(self, shard: int) -> bool:
        """Offer a shard to members of another version: a workflow of it cannot be restored here.

        Returns: whether there is one that may restore it; False changes nothing.
        """
        if not other_version_for(self._held.member, self._members, shard):
            return False
        log.error("shard offered to another version member=%s shard=%d", self._held.member, shard)
        self._refused.add(shard)
        return True

    def note_stale(self, shard: int, epoch: int) -> None:
        """Note that the ledger refused a command as of another's shard: drop that shard alone.

        Not when it is held under a newer one: then the command came of what was held before. Nor
        when it is being given: the outcome of the Give says whether its calls are passed on, and
        may be heard after the refusal of a command that was committed with it.

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
            await self._times.pause()

    def renew_soon(self) -> None:
        """Let the next renewal be soon."""
        self._times.soon()

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
            refused_shards=tuple(sorted(self._refused)),
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
        self._withdraw_offers()
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
            self._held.note_other(shard, seen)
        self._drop(lost)
        asked = {shard: epoch for shard, epoch in mine.items() if self._is_asked(shard, epoch)}
        self._hold(asked, is_given=False)
        self._hold(mine, is_given=True)

    def _is_asked(self, shard: int, epoch: int) -> bool:
        """Say whether a shard is this member's by its Take whose outcome is not known yet."""
        return self._asked.get(shard, -1) + 1 == epoch

    def _hold(self, epochs: dict[int, int], *, is_given: bool) -> None:
        new = [shard for shard, epoch in epochs.items() if self._held.is_news(shard, epoch)]
        self._drop([shard for shard in new if shard in self._held])  # of an older epoch
        for shard in new:
            self._held.add(shard, epochs[shard])
        if new:
            log.info("shards held member=%s new=%d", self._held.member, len(new))
            self._work.taken(new, is_given=is_given)

    def _drop(self, shards: Sequence[int]) -> None:
        for shard in shards:
            self._held.drop(shard)
        if shards:
            self._unreported += shards
            self._work.lost(shards)

    def _withdraw_offers(self) -> None:
        """Restore offered shards that no other version is there for any more: as far as it goes."""
        kept = [
            shard
            for shard in sorted(self._refused)
            if shard in self._held
            and shard not in self._giving
            and not other_version_for(self._held.member, self._members, shard)
        ]
        self._refused.difference_update(kept)
        if kept:
            self._work.taken(kept, is_given=False)

    # -- moving -----------------------------------------------------------------------------------

    def _due_moves(self) -> Moves:
        """Return what this member should do; anew only when the map or who may hold shards changed.

        Members' loads and silences change with each renewal, and there are as many shards as ever.
        """
        seen = (
            self._map_version,
            [(one.member, one.is_live, one.state, one.refused_shards) for one in self._members],
        )
        if seen != self._moves_seen:
            self._moves_seen = seen
            self._due = moves_of(self._held.member, self._members, self._shards)
        return self._due

    def _begin_take(self) -> None:
        if self._taking is None:
            shards = self._due_moves().take
            if shards:
                self._asked = dict(shards)
                self._taking = asyncio.get_running_loop().create_task(self._take(shards))

    def _begin_gives(self) -> None:
        views = {one.member: one for one in self._members}
        # In turn: a few whose commands stay open must not keep all others here.
        give = self._due_moves().give
        for shard, to in (*(move for move in give if move[0] > self._tried), *give):
            if len(self._giving) >= GIVES_MAX:
                break
            is_giving = shard in self._giving
            if shard in self._held and not is_giving and self._work.may_give(shard):
                self._tried = shard
                self._held.freeze(shard)
                task = asyncio.get_running_loop().create_task(self._give(shard, views[to]))
                self._giving[shard] = task

    def _key(self, kind: str) -> str:
        self._moves += 1
        return f"{kind}:{self._held.member}:{self._moves}"

    async def _take(self, shards: tuple[tuple[int, int], ...]) -> None:
        command = TakeShards(key=self._key("take"), member=self._held.member, shards=shards)
        try:
            outcome = await self._commit(command)
        finally:
            self._taking = None
            self._asked = {}
        if outcome.error is not None:
            log.warning("take refused member=%s outcome=%s", self._held.member, outcome)
            return
        self._note_moved(outcome)
        taken = {int(shard): int(epoch) for shard, epoch in outcome.result["taken"].items()}
        self._hold(taken, is_given=False)

    async def _give(self, shard: int, to: MemberView) -> None:
        """Hand a frozen shard over: wait for its commands, give it, pass its calls on."""
        epoch = self._held.epoch(shard)
        is_given = False
        try:
            if await self._is_settled(shard) and self._held.epoch(shard) == epoch:
                is_given = await self._commit_give(shard, epoch, to)
        finally:
            del self._giving[shard]
        self._compare()  # what a map has told meanwhile
        if is_given:
            self._begin_gives()
        elif self._held.epoch(shard) == epoch:
            self._held.thaw(shard)
            self._work.thawed(shard)

    async def _is_settled(self, shard: int) -> bool:
        try:
            async with asyncio.timeout(FREEZE_S):
                await self._work.settled(shard)
        except TimeoutError:
            log.info("shard not given, commands are open shard=%d", shard)
            return False
        return True

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
        self._note_moved(outcome)
        if self._held.epoch(shard) == epoch:  # else a command of it was refused meanwhile
            if shard in outcome.result["given"]:
                self._held.drop(shard)
                self._work.given(shard, epoch, to)
            else:
                self._drop([shard])
        return True

    def _note_moved(self, outcome: Outcome) -> None:
        self._told_version = max(self._told_version, int(outcome.result["mapVersion"]))
