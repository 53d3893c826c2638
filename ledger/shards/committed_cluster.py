"""What is committed of members and shards: the map that renewals are answered with.

Another value than the state cache, which planning changes before anything is committed. Decision
workflow-owners-and-shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.shards.lease_messages import HeldShard
from ledger.writer.state_cache import KnownMember, StateCache


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
