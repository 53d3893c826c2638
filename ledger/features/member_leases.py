"""The cluster as it is committed, and the leases of its members.

Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from core.records.audit import AuditEventType
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from core.shards.leases import LeaseTable, cluster_version
from core.shards.shard import SHARDS
from ledger.code_version import CODE_VERSION
from ledger.connections.connecting import fetch
from ledger.writer.state_cache import KnownMember, StateCache

# What is committed of members and shards: the map that renewals are answered with. Another value
# than the state cache, which planning changes before anything is committed.


@dataclass(frozen=True)
class CommittedCluster:
    """Members that are not GONE, by id, and by shard who holds it. `version`: the id of the audit
    entry of the newest change."""

    version: int
    members: Mapping[str, KnownMember] = field(repr=False)
    shards: tuple[HeldShard, ...] = field(repr=False)

    def replaced(self) -> set[str]:
        """Return the members at whose address another has joined since: they have ended."""
        newest: dict[str, str] = {}
        for member in sorted(self.members, key=lambda one: self.members[one].joined_ms):
            newest[self.members[member].address] = member
        return set(self.members) - set(newest.values())


def committed_cluster(cache: StateCache) -> CommittedCluster:
    """Return a copy of a cache's members and shards; nothing may be planned on it meanwhile."""
    return CommittedCluster(cache.map_version, dict(cache.members), tuple(cache.shards))


# What the writer reads of members and shards: all of them whole, and which members are GONE.

MAP_EVENTS: Final = (
    AuditEventType.MEMBER_JOINED,
    AuditEventType.MEMBER_CHANGED,
    AuditEventType.SHARDS_TAKEN,
    AuditEventType.SHARDS_GIVEN,
)


async def load_cluster(connection: psycopg.AsyncConnection[Any], cache: StateCache) -> None:
    """Read the members that are not GONE, all shards, and the version of this map.

    The version is that of every writer: a member that knows the map need not be sent it again by
    the next one.
    """
    members = await fetch(
        connection,
        "SELECT id, machine, address, version, state, joined_ms FROM callboard.member"
        " WHERE state <> 'gone'",
    )
    cache.members = {
        member: KnownMember(machine, address, version, MemberState(state), joined_ms)
        for member, machine, address, version, state, joined_ms in members
    }
    shards = await fetch(connection, "SELECT member, epoch FROM callboard.shard ORDER BY id")
    cache.shards = [HeldShard(*held) for held in shards]
    assert len(cache.shards) == SHARDS, len(cache.shards)
    (row,) = await fetch(
        connection,
        "SELECT coalesce(max(newest.audit_id), 0) FROM unnest(%s::text[]) AS of (type),"
        " LATERAL (SELECT audit_id FROM callboard.audit_event WHERE event_type = of.type"
        " ORDER BY audit_id DESC LIMIT 1) AS newest",
        ([event.value for event in MAP_EVENTS],),
    )
    cache.map_version = int(row[0])


async def load_gone_members(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, ids: Collection[str]
) -> None:
    """Read which of these members are GONE."""
    query = "SELECT id FROM callboard.member WHERE id = ANY(%s) AND state = 'gone'"
    cache.gone_members.update(member for (member,) in await fetch(connection, query, (list(ids),)))


# The leases of the cluster's members beside the writer: made once, outliving its stores. Follows
# what is committed: a member that has joined is granted a lease, one that is GONE is forgotten,
# and one at whose address another has joined has ended. `core/shards/leases.py` decides who
# lives.


class MemberLeases:
    """Who lives, and what each member has last said of itself.

    Args:
        boot_ms: a monotonic clock that runs while the machine is suspended.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._table = LeaseTable(boot_ms())
        # Of every member that is followed.
        self._told: dict[str, Renewal] = {}

    def is_live(self, member: str) -> bool:
        """Say whether the shards of a member may not be taken."""
        self._table.tick(self._boot_ms())
        return self._table.is_live(member)

    def may_take(self, member: str) -> bool:
        """Say to the plan of a Take whether a member's shards may be taken.

        A member of which they may is not acknowledged until `end_takes`.
        """
        self._table.tick(self._boot_ms())
        return self._table.may_take(member)

    def may_acknowledge(self, member: str) -> bool:
        """Say whether a renewal of a member may be acknowledged: no Take from it is open."""
        return self._table.may_acknowledge(member)

    def end_takes(self) -> None:
        """Note that the outcome of every Take that was planned is known."""
        self._table.end_takes()

    def begin(self, cluster: CommittedCluster) -> None:
        """Grant every member a first lease: another writer may have renewed theirs until now."""
        self._table.tick(self._boot_ms())
        for member in cluster.members:
            self._table.grant_first(member)
            self._told.setdefault(member, Renewal(member=member))
        self.follow(cluster)

    def follow(self, cluster: CommittedCluster) -> None:
        """Grant, forget and end leases as the committed members say."""
        self._table.tick(self._boot_ms())
        for member in self._told.keys() - cluster.members.keys():
            self._table.forget(member)
            del self._told[member]
        for member in cluster.members.keys() - self._told.keys():
            self._table.grant(member)
            self._told[member] = Renewal(member=member)
        for member in cluster.replaced():
            self._table.end(member)

    def renew(self, renewal: Renewal) -> bool:
        """Note a member's sign of life and its counts; return whether it is a member still.

        A question without a member is answered as one of a member.
        """
        self._table.tick(self._boot_ms())
        if not renewal.member:
            return True
        if not self._table.renew(renewal.member):
            return False
        self._told[renewal.member] = renewal
        return True

    def answers(
        self,
        asked: list[tuple[Renewal, bool]],
        cluster: CommittedCluster,
        *,
        epoch: int,
        audit_id: int,
    ) -> list[Lease]:
        """Return the answer to each renewal.

        Args:
            asked: each with what `renew` has returned.
            cluster: what is committed.
            epoch: the ledger's.
            audit_id: of the newest audit entry that is committed.
        """
        views = tuple(self._view(member, known) for member, known in cluster.members.items())
        version = cluster_version((one.version for one in views), CODE_VERSION)
        return [
            Lease(
                is_known=is_known,
                map_version=cluster.version,
                members=views,
                shards=() if 0 < cluster.version == renewal.map_version else cluster.shards,
                cluster_version=version,
                epoch=epoch,
                audit_id=audit_id,
            )
            for renewal, is_known in asked
        ]

    def _view(self, member: str, known: KnownMember) -> MemberView:
        told = self._told.get(member, Renewal(member=member))
        return MemberView(
            member=member,
            machine=known.machine,
            address=known.address,
            version=known.version,
            state=known.state,
            load=told.load,
            is_live=self._table.is_live(member),
            open_calls=told.open_calls,
            # What it said before it was resumed is of the past.
            is_drained=told.is_drained and known.state is MemberState.DRAINING,
        )
