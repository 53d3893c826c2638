"""The map of shards: the live members, and the holder of each shard.

A map is created from each reply of the ledger and never modified, so any thread may read it. It may
be out of date: a member that no longer holds a shard refuses the request with `Moved`. Decision
workflow-owners-and-shards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from core.shards.assignment import target_addresses
from core.shards.lease_messages import HeldShard, MemberState, MemberView
from core.shards.shard import SHARDS, shard_of


class ShardMap:
    """The live members and the shards that they hold.

    Args:
        members: all members that are not GONE.
        shards: the holder of each shard, by shard number; empty while nothing is known.
    """

    def __init__(
        self, members: Sequence[MemberView] = (), shards: Sequence[HeldShard] = ()
    ) -> None:
        self.shards = shards
        self.live = {one.member: one for one in members if one.is_live}
        numbers: dict[str, list[int]] = defaultdict(list)
        for shard, held in enumerate(shards):
            if held.member in self.live:
                numbers[held.member].append(shard)
        self._numbers = dict(numbers)
        ready = [one.address for one in self.live.values() if one.state is MemberState.READY]
        targets = target_addresses(ready)
        # By member: the held shards that will not move soon, because the member should hold them.
        self._staying = {
            member: [one for one in held if targets and targets[one] == self.live[member].address]
            for member, held in numbers.items()
        }
        # The members that accept new workflows: they live, are READY and hold shards.
        self.open_members = tuple(
            one
            for one in self.live.values()
            if one.state is MemberState.READY and one.member in self._numbers
        )

    @property
    def unheld(self) -> int:
        """The number of shards that no live member holds; all shards while nothing is known."""
        return SHARDS - sum(map(len, self._numbers.values()))

    def states(self) -> dict[str, MemberState]:
        """Return the states of the live members, by id."""
        return {one.member: one.state for one in self.live.values()}

    def addresses(self) -> set[str]:
        """Return the addresses of the live members, which are the names of their actors."""
        return {one.address for one in self.live.values()}

    def holder(self, workflow_id: str) -> MemberView | None:
        """Return the live member that holds a workflow's shard, None if no live member does."""
        if not self.shards:
            return None
        return self.live.get(self.shards[shard_of(workflow_id)].member)

    def moved_since(self, before: ShardMap) -> set[int]:
        """Return the shards that a live member holds now, but did not hold in the map `before`."""
        return {
            shard
            for member, numbers in self._numbers.items()
            for shard in set(numbers).difference(before.shards_of(member))
        }

    def shards_of(self, member: str) -> Sequence[int]:
        """Return the numbers of the shards that a live member holds, in ascending order."""
        return self._numbers.get(member, ())

    def open_shards_of(self, member: str) -> Sequence[int]:
        """Return the shards of a live member that get new workflows.

        These are the shards that do not move soon. If all of them move soon, all are returned.
        """
        return self._staying.get(member) or self.shards_of(member)
