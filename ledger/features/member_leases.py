"""The committed members and shards of the cluster, and the leases of the members.

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
from ledger.connections.connect import fetch
from ledger.writer.state_cache import KnownMember, StateCache

# Renewals are answered with this copy of the committed members and shards, not with the state
# cache, because planning changes the state cache before the commit.


@dataclass(frozen=True)
class CommittedCluster:
    """Members that are not GONE, by id, and the holder of each shard. `version`: the id of the
    audit entry of the newest change."""

    version: int
    members: Mapping[str, KnownMember] = field(repr=False)
    shards: tuple[HeldShard, ...] = field(repr=False)

    def replaced(self) -> set[str]:
        """Return the members at whose address a newer member has joined; they have ended."""
        newest: dict[str, str] = {}
        for member in sorted(self.members, key=lambda one: self.members[one].joined_ms):
            newest[self.members[member].address] = member
        return set(self.members) - set(newest.values())


def committed_cluster(cache: StateCache) -> CommittedCluster:
    """Return a copy of the members and shards of a cache. Do not call it while a batch is
    planned."""
    return CommittedCluster(cache.map_version, dict(cache.members), tuple(cache.shards))


# Reads of members and shards by the writer.

MAP_EVENTS: Final = (
    AuditEventType.MEMBER_JOINED,
    AuditEventType.MEMBER_CHANGED,
    AuditEventType.SHARDS_TAKEN,
    AuditEventType.SHARDS_GIVEN,
)


async def load_cluster(connection: psycopg.AsyncConnection[Any], cache: StateCache) -> None:
    """Load the members that are not GONE, all shards, and the version of this map.

    The version does not depend on the writer. So the next writer does not send the map again to a
    member that has it.
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
    """Load which of these members are GONE."""
    query = "SELECT id FROM callboard.member WHERE id = ANY(%s) AND state = 'gone'"
    cache.gone_members.update(member for (member,) in await fetch(connection, query, (list(ids),)))


# Leases of the members, in the memory of the writer's process. The object outlives the writer's
# stores and follows the committed members: a joined member gets a lease, a GONE member is removed,
# and the lease of a replaced member ends. `core/shards/leases.py` decides which members are live.


class MemberLeases:
    """The leases of the members, and the newest report of each member.

    Args:
        boot_ms: a monotonic clock in milliseconds that runs while the machine is suspended.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._table = LeaseTable(boot_ms())
        # By followed member: its newest renewal.
        self._told: dict[str, Renewal] = {}

    def is_live(self, member: str) -> bool:
        """Say whether a member is live, so that its shards may not be taken."""
        self._table.tick(self._boot_ms())
        return self._table.is_live(member)

    def may_take(self, member: str) -> bool:
        """Say to the plan of `TakeShards` whether a member's shards may be taken.

        If so, no renewal of the member is acknowledged until `end_takes`.
        """
        self._table.tick(self._boot_ms())
        return self._table.may_take(member)

    def may_acknowledge(self, member: str) -> bool:
        """Say whether a renewal of a member may be acknowledged: no `TakeShards` of its shards is
        open."""
        return self._table.may_acknowledge(member)

    def end_takes(self) -> None:
        """Note that the outcomes of all planned `TakeShards` are known."""
        self._table.end_takes()

    def begin(self, cluster: CommittedCluster) -> None:
        """Grant every member a first lease, because another writer may have renewed leases."""
        self._table.tick(self._boot_ms())
        for member in cluster.members:
            self._table.grant_first(member)
            self._told.setdefault(member, Renewal(member=member))
        self.follow(cluster)

    def follow(self, cluster: CommittedCluster) -> None:
        """Grant, remove and end leases according to the committed members."""
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
        """Note a member's renewal and report; return False if its lease has ended or it is no
        member.

        A renewal without a member's name only asks for the map, and the result is True.
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
        """Return the lease for each renewal.

        Args:
            asked: (renewal, the result of `renew` for it) pairs.
            cluster: the committed members and shards.
            epoch: the epoch of the ledger's writer.
            audit_id: the id of the newest committed audit entry.
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
            # A report from before a member was resumed is out of date.
            is_drained=told.is_drained and known.state is MemberState.DRAINING,
        )
