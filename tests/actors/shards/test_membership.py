"""One member's lease and moves, with a ledger that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from actors.shards.held_shards import HeldShards
from actors.shards.membership import GIVES_MAX, Membership
from core.errors import ErrorCode, ServiceError
from core.shards.assignment import target_addresses
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from core.shards.leases import SELF_FENCE_MS
from core.shards.shard import SHARDS
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.shards import GiveShards, TakeShards
from tests.actors.gateway.maps import member
from tests.platform.waiting import until


class Work:
    """What a member is told to do with its shards."""

    def __init__(self) -> None:
        self.did: list[tuple[str, object]] = []
        self.restoring: set[int] = set()
        self.busy: set[int] = set()
        self.settling = asyncio.Event()
        self.settling.set()
        self.calls = 0

    def load(self) -> int:
        """Implement `ShardWork`."""
        return 7

    def open_calls(self) -> int:
        """Implement `ShardWork`."""
        return self.calls

    def taken(self, shards: Sequence[int]) -> None:
        """Implement `ShardWork`."""
        self.did.append(("taken", list(shards)))

    def lost(self, shards: Sequence[int]) -> None:
        """Implement `ShardWork`."""
        self.did.append(("lost", list(shards)))

    def may_give(self, shard: int) -> bool:
        """Implement `ShardWork`."""
        return shard not in self.restoring

    async def settled(self, shard: int) -> None:
        """Implement `ShardWork`."""
        await self.settling.wait()

    def is_idle(self, shard: int) -> bool:
        """Implement `ShardWork`."""
        return shard not in self.busy

    def frozen(self, shard: int) -> None:
        """Implement `ShardWork`."""
        self.did.append(("froze", shard))

    def unfenced(self) -> None:
        """Implement `ShardWork`."""
        self.did.append(("unfenced", None))

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Implement `ShardWork`."""


class Cluster:
    """A ledger that holds a map and applies moves; what it answers can be held back."""

    def __init__(self, *others: str) -> None:
        self.members = tuple(map(member, ("me", *others)))
        self.shards = [HeldShard("", 0)] * SHARDS
        self.version = 1
        self.is_known = True
        self.error: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.commands: list[Command] = []
        self.gave: list[tuple[int, str]] = []
        # What every move is refused for, and how its outcome says so.
        self.refusal: ErrorCode | None = None
        self.status = OutcomeStatus.APPLIED
        self.renewals: list[Renewal] = []
        self.now_ms = 0
        self.work = Work()
        self.held = HeldShards("me")
        self.ended: list[str] = []
        self.member = Membership(
            self.held,
            self.work,
            renew=self.renew,
            commit=self.commit,
            boot_ms=lambda: self.now_ms,
            on_ended=self.ended.append,
        )

    def lease(self, renewal: Renewal) -> Lease:
        """Return what is true now."""
        is_new = renewal.map_version != self.version
        return Lease(
            is_known=self.is_known,
            map_version=self.version,
            members=self.members,
            shards=tuple(self.shards) if is_new else (),
        )

    async def renew(self, renewal: Renewal) -> Lease:
        """Answer a renewal."""
        self.renewals.append(renewal)
        if self.error is not None:
            raise self.error
        return self.lease(renewal)

    async def commit(self, command: Command) -> Outcome:
        """Apply a move; its outcome travels when the test lets it."""
        self.commands.append(command)
        if self.refusal is not None:
            await self.answering.wait()
            return Outcome(self.status, {}, self.refusal, "refused")
        self.version += 1
        result: dict[str, object] = {"mapVersion": self.version}
        if isinstance(command, TakeShards):
            taken = {}
            for shard, epoch in command.shards:
                if self.shards[shard].epoch == epoch:
                    self.shards[shard] = HeldShard("me", epoch + 1)
                    taken[str(shard)] = epoch + 1
            result["taken"] = taken
        elif isinstance(command, GiveShards):
            given = [n for n, epoch in command.shards if self.shards[n] == HeldShard("me", epoch)]
            for shard in given:
                self.shards[shard] = HeldShard(command.to, self.shards[shard].epoch + 1)
                self.gave.append((shard, command.to))
            result["given"] = given
        await self.answering.wait()
        return Outcome(OutcomeStatus.APPLIED, result)

    async def renew_and_settle(self) -> None:
        """Renew once, and let the moves that follow end."""
        await self.member.renew_once()
        await self.settle()

    async def settle(self) -> None:
        """Let the moves under way end."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def join(self) -> None:
        """Renew until everything that is to be taken is taken."""
        for _ in range(2):
            await self.renew_and_settle()
        self.work.did.clear()

    async def moved(self, shard: int, to: str, epoch: int) -> None:
        """Renew when a shard has another holder."""
        self.shards[shard] = HeldShard(to, epoch)
        self.version += 1
        await self.member.renew_once()


async def joined(*others: str) -> Cluster:
    """Return a cluster whose member has taken what it is to hold."""
    cluster = Cluster(*others)
    await cluster.join()
    return cluster


async def joined_by_another() -> Cluster:
    """Return a cluster whose member holds every shard, with a second one that has just joined."""
    cluster = await joined()
    cluster.members = Cluster("you").members
    return cluster


async def test_a_lone_member_takes_all_shards_and_restores_them_once() -> None:
    cluster = Cluster()
    await cluster.renew_and_settle()
    await cluster.member.renew_once()
    assert len(cluster.held) == SHARDS
    assert cluster.work.did == [("taken", list(range(SHARDS)))]
    assert cluster.member.may_send()


async def test_a_new_member_is_given_its_share_a_few_at_a_time() -> None:
    cluster = await joined_by_another()
    for _ in range(SHARDS):
        await cluster.renew_and_settle()
    assert len(cluster.gave) == SHARDS - len(cluster.held)
    assert 90 <= len(cluster.gave) <= 166
    assert {kind for kind, _ in cluster.work.did} == {"froze"}
    assert all(len(one.shards) == 1 for one in cluster.commands if isinstance(one, GiveShards))
    assert not cluster.held.frozen()


async def test_a_shard_with_open_calls_is_given_when_they_end_or_after_the_drain_time() -> None:
    cluster = await joined_by_another()
    targets = target_addresses(["me", "you"])
    ends, stays, *_ = (shard for shard, target in enumerate(targets) if target == "you")
    cluster.work.busy = {ends, stays}
    await cluster.member.renew_once()
    await until(lambda: len(cluster.held) <= targets.count("me") + 2)
    assert not cluster.held.frozen(), "its workflows go on"
    cluster.work.busy.discard(ends)
    cluster.member.note_answered(ends)
    await cluster.settle()
    assert ends not in cluster.held, "it was not looked for before the next renewal"
    assert stays in cluster.held
    cluster.now_ms += 10_000
    await cluster.renew_and_settle()
    assert stays not in cluster.held
    await cluster.member.close()


async def test_a_shard_is_given_when_all_of_its_commands_have_an_outcome() -> None:
    cluster = await joined_by_another()
    cluster.work.settling.clear()
    await cluster.renew_and_settle()
    assert cluster.held.frozen()
    assert not cluster.gave
    cluster.work.settling.set()
    await cluster.settle()
    assert cluster.gave


async def test_sending_is_allowed_from_the_time_a_renewal_was_sent() -> None:
    cluster = Cluster()
    assert not cluster.member.may_send(), "before the first lease"
    arrived = asyncio.Event()

    async def slow(renewal: Renewal) -> Lease:
        await arrived.wait()
        return cluster.lease(renewal)

    cluster.member._renew = slow
    renewing = asyncio.create_task(cluster.member.renew_once())
    await asyncio.sleep(0)
    cluster.now_ms = 1_000
    arrived.set()
    await renewing
    cluster.now_ms = SELF_FENCE_MS
    assert cluster.member.may_send()
    cluster.now_ms = SELF_FENCE_MS + 1
    assert not cluster.member.may_send(), "counted from its answer it would be"


async def test_a_fenced_member_goes_on_when_a_renewal_is_acknowledged() -> None:
    cluster = await joined()
    cluster.error = ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "away")
    cluster.now_ms = SELF_FENCE_MS + 1
    await cluster.member.renew_once()
    assert not cluster.member.may_send()
    assert len(cluster.held) == SHARDS, "it keeps its shards and what is open"
    cluster.error = None
    await cluster.member.renew_once()
    assert cluster.work.did == [("unfenced", None)]
    assert cluster.member.may_send()


async def test_renewals_go_on_at_intervals_while_one_is_not_answered() -> None:
    cluster = Cluster()
    arrived = asyncio.Event()
    began = asyncio.get_running_loop().time()
    times: list[float] = []

    async def slow(renewal: Renewal) -> Lease:
        times.append(asyncio.get_running_loop().time() - began)
        await arrived.wait()
        return cluster.lease(renewal)

    cluster.member._renew = slow
    cluster.member.start()
    await until(lambda: len(times) >= 4)
    await cluster.member.close()
    assert all(later - sooner >= 0.04 for sooner, later in pairwise(times)), times


async def test_a_member_that_the_ledger_does_not_know_ends() -> None:
    cluster = await joined()
    cluster.is_known = False
    await cluster.member.renew_once()
    assert len(cluster.ended) == 1


async def test_a_draining_member_gives_everything_and_tells_when_no_call_is_open() -> None:
    cluster = await joined("you")
    ready = cluster.members
    own = replace(ready[0], state=MemberState.DRAINING)
    cluster.members = (own, *ready[1:])
    cluster.work.calls = 2
    while len(cluster.held):
        await cluster.renew_and_settle()
        assert not cluster.renewals[-1].is_drained
    await cluster.member.renew_once()
    assert (cluster.renewals[-1].open_calls, cluster.renewals[-1].is_drained) == (2, False)
    cluster.work.calls = 0
    await cluster.member.renew_once()
    assert (cluster.renewals[-1].open_calls, cluster.renewals[-1].is_drained) == (0, True)
    cluster.members = ready
    await cluster.member.renew_once()
    await cluster.member.renew_once()
    assert not cluster.renewals[-1].is_drained, "it was resumed"


async def test_a_shard_that_is_taken_again_under_a_newer_epoch_is_restored_anew() -> None:
    cluster = await joined()
    await cluster.moved(9, "me", 5)
    assert cluster.work.did == [("lost", [9]), ("taken", [9])]
    assert cluster.held.epoch(9) == 5


async def test_a_refused_give_does_not_restore_a_shard_that_is_lost() -> None:
    cluster = await joined_by_another()
    cluster.refusal = ErrorCode.CONFLICT
    cluster.answering.clear()
    await cluster.renew_and_settle()
    (shard, *_) = cluster.held.frozen()
    await cluster.moved(shard, "you", 2)
    cluster.answering.set()
    await cluster.settle()
    assert ("lost", [shard]) in cluster.work.did
    assert ("taken", [shard]) not in cluster.work.did
    assert [one for one in cluster.work.did if one[0] == "taken"], "the others are"


async def test_a_give_that_gave_nothing_is_a_loss() -> None:
    cluster = await joined_by_another()
    for shard in range(SHARDS):
        cluster.shards[shard] = HeldShard("you", 2)
    version, cluster.version = cluster.version, cluster.version
    await cluster.renew_and_settle()
    assert version < cluster.version, "it has tried: the map that it knew was older"
    assert {kind for kind, _ in cluster.work.did} == {"froze", "lost"}


async def test_a_repeated_refusal_of_a_move_is_a_refusal() -> None:
    """Found by the simulation: its first answer was lost, and the repeat has no result."""
    cluster = Cluster()
    cluster.refusal, cluster.status = ErrorCode.FORBIDDEN, OutcomeStatus.REPEATED
    await cluster.renew_and_settle()
    assert cluster.work.did == []
    cluster.refusal, cluster.status = None, OutcomeStatus.APPLIED
    await cluster.join()
    assert len(cluster.held) == SHARDS


async def test_a_ledger_that_is_behind_is_not_believed() -> None:
    """One that was replaced does not know a member that has joined since."""
    cluster = Cluster()
    cluster.member.note_moved(Outcome(OutcomeStatus.APPLIED, {"mapVersion": 5}))
    cluster.is_known = False
    await cluster.member.renew_once()
    assert cluster.ended == []
    assert not cluster.member.may_send()
    cluster.version = 5
    await cluster.member.renew_once()
    assert len(cluster.ended) == 1
    await cluster.member.renew_once()
    assert len(cluster.ended) == 1, "it ends once"


async def test_the_next_shard_is_given_when_one_has_gone_without_a_renewal() -> None:
    cluster = await joined_by_another()
    await cluster.member.renew_once()
    await until(lambda: len(cluster.gave) > 2 * GIVES_MAX)


async def test_a_member_is_not_drained_while_a_move_is_under_way() -> None:
    cluster = Cluster("you")
    cluster.answering.clear()
    await cluster.renew_and_settle()
    own = replace(cluster.members[0], state=MemberState.DRAINING)
    cluster.members = (own, *cluster.members[1:])
    cluster.version = 1  # of a map from before its Take
    await cluster.member.renew_once()
    await cluster.member.renew_once()
    assert not cluster.renewals[-1].is_drained, "the outcome of its Take will tell what it holds"


async def test_a_renewal_without_an_answer_delays_no_other() -> None:
    cluster = Cluster()
    lost = asyncio.Event()
    sent = []

    async def renew(renewal: Renewal) -> Lease:
        sent.append(renewal)
        if len(sent) == 1:
            await lost.wait()
        return cluster.lease(renewal)

    cluster.member._renew = renew
    cluster.member.start()
    await until(lambda: cluster.member.may_send())
    await cluster.member.close()
    assert len(sent) >= 2


async def test_a_member_that_closes_thaws_nothing_that_it_may_have_given() -> None:
    cluster = await joined_by_another()
    cluster.answering.clear()
    await cluster.renew_and_settle()
    frozen = cluster.held.frozen()
    await cluster.member.close()
    assert frozen
    assert cluster.held.frozen() == frozen
    assert {kind for kind, _ in cluster.work.did} == {"froze"}


async def test_a_stale_command_of_a_shard_that_is_being_given_is_no_loss() -> None:
    """A command that was refused in the batch of the Give; its outcome is heard first."""
    cluster = await joined_by_another()
    cluster.answering.clear()
    await cluster.renew_and_settle()
    (giving, *_) = [one for one in cluster.commands if isinstance(one, GiveShards)]
    ((shard, epoch),) = giving.shards
    cluster.member.note_stale(shard, epoch)
    cluster.answering.set()
    await cluster.settle()
    assert (shard, "you") in cluster.gave
    assert not [one for one in cluster.work.did if one[0] == "lost"]
    assert shard not in cluster.held


async def test_a_ledger_that_was_replaced_does_not_end_a_member_that_joined_after_it() -> None:
    """It acknowledges renewals for 2 s, and knows no member that the new one has registered."""
    cluster = await joined()
    version, cluster.version, cluster.is_known = cluster.version, 0, False
    cluster.now_ms = SELF_FENCE_MS + 1
    await cluster.member.renew_once()
    assert cluster.ended == []
    assert not cluster.member.may_send(), "it has acknowledged nothing"
    cluster.version = version
    await cluster.member.renew_once()
    assert len(cluster.ended) == 1


async def test_a_shard_that_is_being_restored_is_not_given_on() -> None:
    """Found by the simulation: the next member repeated its calls."""
    cluster = await joined_by_another()
    targets = target_addresses(["me", "you"])
    kept = targets.index("you")
    cluster.work.restoring = {kept}
    await cluster.member.renew_once()
    await until(lambda: len(cluster.held) <= targets.count("me") + 1)
    assert kept in cluster.held
    assert kept not in cluster.held.frozen()
    cluster.work.restoring.clear()
    await cluster.renew_and_settle()
    assert kept not in cluster.held
