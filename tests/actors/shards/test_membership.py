"""One member's lease and moves, with a ledger that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from actors.shards.held_shards import HeldShards
from actors.shards.membership import Membership
from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from core.shards.leases import SELF_FENCE_MS
from core.shards.permit_messages import PermitAnswer, PermitReport
from core.shards.shard import SHARDS
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.shards.shard_commands import GiveShards, TakeShards

pytestmark = pytest.mark.anyio


class Work:
    """What a member is told to do with its shards."""

    def __init__(self) -> None:
        self.did: list[tuple[str, object]] = []
        self.settling = asyncio.Event()
        self.settling.set()
        self.is_wanting = False

    def load(self) -> int:
        """Implement `ShardWork`."""
        return 7

    def taken(self, shards: Sequence[int], *, is_given: bool) -> None:
        """Implement `ShardWork`."""
        self.did.append(("given" if is_given else "taken", list(shards)))

    def lost(self, shards: Sequence[int]) -> None:
        """Implement `ShardWork`."""
        self.did.append(("lost", list(shards)))

    async def settled(self, shard: int) -> None:
        """Implement `ShardWork`."""
        await self.settling.wait()

    def given(self, shard: int, epoch: int, to: MemberView) -> None:
        """Implement `ShardWork`."""
        self.did.append(("gave", (shard, to.member)))

    def thawed(self, shard: int) -> None:
        """Implement `ShardWork`."""
        self.did.append(("thawed", shard))

    def unfenced(self) -> None:
        """Implement `ShardWork`."""
        self.did.append(("unfenced", None))

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Implement `ShardWork`."""

    def permit_report(self) -> PermitReport:
        """Implement `ShardWork`."""
        return PermitReport()

    def permits_heard(self, report: PermitReport, answer: PermitAnswer) -> None:
        """Implement `ShardWork`."""

    def wants_permits(self) -> bool:
        """Implement `ShardWork`."""
        return self.is_wanting


class Cluster:
    """A ledger that holds a map and applies moves; what it answers can be held back."""

    def __init__(self, *others: str) -> None:
        self.members = tuple(
            MemberView(member=name, machine="m", address=name, version="1", state=MemberState.READY)
            for name in ("me", *others)
        )
        self.shards = [HeldShard("", 0)] * SHARDS
        self.version = 1
        self.is_known = True
        self.error: Exception | None = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.commands: list[Command] = []
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
            ledger_ms=0,
            map_version=self.version,
            members=self.members,
            shards=tuple(self.shards) if is_new else (),
        )

    async def renew(self, renewal: Renewal) -> Lease:
        """Answer a renewal."""
        if self.error is not None:
            raise self.error
        return self.lease(renewal)

    async def commit(self, command: Command) -> Outcome:
        """Apply a move; its outcome travels when the test lets it."""
        self.commands.append(command)
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
            result["given"] = given
        await self.answering.wait()
        return Outcome(OutcomeStatus.APPLIED, result)

    async def settle(self) -> None:
        """Let the moves under way end."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def join(self) -> None:
        """Renew until everything that is to be taken is taken."""
        await self.member.renew_once()
        await self.settle()
        await self.member.renew_once()
        await self.settle()
        self.work.did.clear()


async def test_a_lone_member_takes_all_shards_and_restores_them_once() -> None:
    cluster = Cluster()
    await cluster.member.renew_once()
    await cluster.settle()
    await cluster.member.renew_once()
    assert len(cluster.held) == SHARDS
    assert cluster.work.did == [("taken", list(range(SHARDS)))]
    assert cluster.member.may_send()


async def test_a_take_whose_outcome_comes_after_the_map_is_a_take() -> None:
    cluster = Cluster()
    cluster.answering.clear()
    await cluster.member.renew_once()
    await cluster.settle()
    await cluster.member.renew_once()
    cluster.answering.set()
    await cluster.settle()
    assert cluster.work.did == [("taken", list(range(SHARDS)))]


async def test_a_map_from_before_its_own_take_takes_nothing_away() -> None:
    cluster = Cluster()
    await cluster.join()
    before = Lease(
        is_known=True,
        ledger_ms=0,
        map_version=1,
        members=cluster.members,
        shards=(HeldShard("", 0),) * SHARDS,
    )

    async def late(renewal: Renewal) -> Lease:
        return before

    cluster.member._renew = late
    await cluster.member.renew_once()
    assert len(cluster.held) == SHARDS
    assert cluster.work.did == []


async def test_a_new_member_is_given_its_share_a_few_at_a_time() -> None:
    cluster = Cluster()
    await cluster.join()
    cluster.members = Cluster("you").members
    for _ in range(SHARDS):
        await cluster.member.renew_once()
        await cluster.settle()
    gave = [what for kind, what in cluster.work.did if kind == "gave"]
    assert len(gave) == SHARDS - len(cluster.held)
    assert 90 <= len(gave) <= 166
    assert all(len(one.shards) == 1 for one in cluster.commands if isinstance(one, GiveShards))
    assert not cluster.held.frozen()


async def test_a_map_that_knows_the_give_already_does_not_end_the_calls_that_are_passed_on() -> (
    None
):
    cluster = Cluster()
    await cluster.join()
    cluster.members = Cluster("you").members
    cluster.answering.clear()
    await cluster.member.renew_once()
    await cluster.settle()
    await cluster.member.renew_once()
    assert cluster.work.did == []
    cluster.answering.set()
    await cluster.settle()
    kinds = {kind for kind, _ in cluster.work.did}
    assert kinds == {"gave"}


async def test_a_shard_whose_commands_stay_open_is_thawed_and_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.shards.membership.FREEZE_S", 0.01)
    cluster = Cluster()
    await cluster.join()
    cluster.members = Cluster("you").members
    cluster.work.settling.clear()
    await cluster.member.renew_once()
    async with asyncio.timeout(10):
        while not [one for one in cluster.work.did if one[0] == "thawed"]:
            await asyncio.sleep(0.01)
    assert len(cluster.held) == SHARDS
    assert not any(isinstance(one, GiveShards) for one in cluster.commands)


async def test_a_stale_command_drops_its_shard_alone_and_only_of_its_epoch() -> None:
    cluster = Cluster()
    await cluster.join()
    cluster.member.note_stale(5, 7)
    assert 5 in cluster.held
    cluster.member.note_stale(5, 1)
    assert 5 not in cluster.held
    assert cluster.work.did == [("lost", [5])]
    assert cluster.ended == []


async def test_a_shard_that_another_took_is_dropped_by_the_next_map() -> None:
    """An idle member hears of no refused command."""
    cluster = Cluster()
    await cluster.join()
    cluster.shards[9] = HeldShard("you", 2)
    cluster.version += 1
    await cluster.member.renew_once()
    assert cluster.work.did[0] == ("lost", [9])


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
    cluster = Cluster()
    await cluster.join()
    cluster.error = ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "away")
    cluster.now_ms = SELF_FENCE_MS + 1
    await cluster.member.renew_once()
    assert not cluster.member.may_send()
    assert len(cluster.held) == SHARDS, "it keeps its shards and what is open"
    cluster.error = None
    await cluster.member.renew_once()
    assert cluster.work.did == [("unfenced", None)]
    assert cluster.member.may_send()


async def test_a_member_that_the_ledger_does_not_know_ends() -> None:
    cluster = Cluster()
    await cluster.join()
    cluster.is_known = False
    await cluster.member.renew_once()
    assert len(cluster.ended) == 1


async def test_a_draining_member_gives_everything() -> None:
    cluster = Cluster("you")
    await cluster.join()
    own = replace(cluster.members[0], state=MemberState.DRAINING)
    cluster.members = (own, *cluster.members[1:])
    while len(cluster.held):
        await cluster.member.renew_once()
        await cluster.settle()
    await cluster.member.renew_once()
    assert cluster.member.is_drained
