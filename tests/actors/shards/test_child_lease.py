"""The lease of a workflow's own process: it follows its parent's, and outlasts it by nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from actors.shards.child_lease import ChildLease, Parentage
from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from core.shards.leases import SELF_FENCE_MS
from core.shards.shard import SHARDS
from ledger.shards.committed_cluster import CommittedCluster
from ledger.shards.member_leases import MemberLeases
from ledger.writer.state_cache import KnownMember

pytestmark = pytest.mark.anyio

PARENT, CHILD = "here~1", "here~1/0"
MEMBERS = (PARENT, "there~1", "yonder~1")


class Followed:
    """A child, its parent and two others, and the leases of a real ledger; time is the test's."""

    def __init__(self) -> None:
        self.now_ms = 10_000
        self.leases = MemberLeases(lambda: self.now_ms)
        self.holder = HeldShard(PARENT, 4)
        self.members = {
            member: KnownMember("m", member, "1", MemberState.READY, 1) for member in MEMBERS
        }
        self.is_away = False
        self.ended: list[str] = []
        self.unfenced = 0
        self.asked: list[int] = []
        self.leases.follow(self.cluster())
        self.known: list[str] = []
        self.child = ChildLease(
            Parentage(PARENT, 7, 4, CHILD),
            self,
            renew=self.renew,
            boot_ms=lambda: self.now_ms,
            on_ended=self.ended.append,
            on_unfenced=self.sends,
        )

    def cluster(self) -> CommittedCluster:
        """Return what is committed."""
        return CommittedCluster(self.holder.epoch, dict(self.members), (self.holder,) * SHARDS)

    async def renew(self, renewal: Renewal) -> Lease:
        """Answer as the ledger."""
        if not renewal.member:
            self.asked.append(renewal.map_version)
        if self.is_away:
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "away")
        asked = [(renewal, self.leases.renew(renewal))]
        return self.leases.answers(asked, self.cluster(), epoch=1, audit_id=0)[0]

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Note the members that it hears of."""
        self.known = [one.member for one in members]

    def sends(self) -> None:
        """Count."""
        self.unfenced += 1

    def pass_ms(self, ms: int, *alive: str) -> None:
        """Let time go on while these members renew."""
        for _ in range(ms // 100):
            self.now_ms += 100
            for member in alive:
                self.leases.renew(Renewal(member=member))


async def test_a_child_sends_while_its_parent_renews() -> None:
    followed = Followed()
    assert not followed.child.may_send(), "before the first map"
    await followed.child.follow_once()
    assert followed.child.may_send()
    assert followed.unfenced == 1
    followed.is_away = True
    followed.pass_ms(SELF_FENCE_MS, *MEMBERS)
    assert followed.child.may_send()
    followed.pass_ms(100, *MEMBERS)
    assert not followed.child.may_send()


async def test_a_child_of_a_silent_parent_stops_sending_when_its_parent_would() -> None:
    """It counted from its own question, and sent for up to 2.5 s after the shard was taken."""
    followed = Followed()
    followed.pass_ms(2_400, *MEMBERS[1:])
    await followed.child.follow_once()
    assert followed.child.may_send()
    followed.is_away = True
    followed.pass_ms(200, *MEMBERS[1:])
    assert not followed.child.may_send()
    followed.pass_ms(500, *MEMBERS[1:])
    assert not followed.leases.is_live(PARENT), "its shards may be taken"


async def test_a_child_ends_when_the_shard_is_another_members() -> None:
    followed = Followed()
    await followed.child.follow_once()
    followed.holder = HeldShard("there~1", 5)
    await followed.child.follow_once()
    assert len(followed.ended) == 1


async def test_a_child_hears_of_its_parent_alone() -> None:
    """It sends all of its dispatches to that one."""
    followed = Followed()
    await followed.child.follow_once()
    assert followed.known == [PARENT]


async def test_a_child_asks_for_the_map_again_only_when_it_has_changed() -> None:
    followed = Followed()
    await followed.child.follow_once()
    await followed.child.follow_once()
    assert followed.asked == [0, followed.holder.epoch]


async def test_a_child_whose_parent_has_a_successor_sends_nothing() -> None:
    """The parent's lease has ended, however short its last renewal is past."""
    followed = Followed()
    followed.members["here~2"] = KnownMember("m", PARENT, "1", MemberState.READY, 2)
    followed.leases.follow(followed.cluster())
    await followed.child.follow_once()
    assert not followed.child.may_send()
