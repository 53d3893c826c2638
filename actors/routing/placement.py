"""Placement of a new workflow: chooses a shard of a member that is near and has a low load.

A member is near if it runs on the same machine as this process. A near member is reached over a
socket. It is not used if its load exceeds twice the lowest load of a member plus `NEAR_LOAD_LEAD`
workflows. Sending a request to another machine costs more than a small difference in load. So with
a low load every workflow stays near.

A member's load is the load that the ledger reports, up to a second old, plus the workflows that
this process has placed there since. Among members with equal loads, the workflow's id decides. A
member to which a call has failed may have ended: its new workflows would wait until other members
take its shards. So it gets no new workflows for the duration of a lease, unless there is no other
member. Shards that will soon move get no new workflows.

This module only decides; the caller measures the time. Any thread may call it, because shared state
is replaced, not modified. The exception is the count of placed workflows. If two threads increase
it at the same time, one increment is lost, which is harmless. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from actors.routing.shard_map import ShardMap
from core.shards.lease_messages import MemberView
from core.shards.leases import LEASE_MS
from core.shards.shard import id_in_shard, shard_of

NEAR_LOAD_FACTOR: Final = 2
NEAR_LOAD_LEAD: Final = 32
AVOIDED_S: Final = LEASE_MS / 1_000


class Placement:
    """Chooses the shards of new workflows.

    Args:
        machine: Ray's id of the machine of this process.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._map = ShardMap()
        self._placed: dict[str, int] = {}
        self._failed_s: dict[str, float] = {}  # by member: the time of the last failed call

    def use_map(self, shard_map: ShardMap) -> None:
        """Use a new map; its loads include the workflows that this process placed before."""
        self._map, self._placed = shard_map, {}
        failed_s = self._failed_s.items()
        self._failed_s = {member: at_s for member, at_s in failed_s if member in shard_map.live}

    def note_failed(self, member: str, now_s: float) -> None:
        """Note that a call to a member has failed.

        Args:
            now_s: the time of a monotonic clock, seconds.
        """
        self._failed_s = {**self._failed_s, member: now_s}

    def place(self, workflow_id: str, refused: Collection[str] = (), *, now_s: float) -> str | None:
        """Return a workflow id in a shard of the member that should get the new workflow.

        Args:
            workflow_id: a new id that no workflow has. It is returned unchanged if its shard suits.
            refused: ids of members that must not get the workflow.
            now_s: the time of the clock of `note_failed`, seconds.

        Returns: the id; None if no member, except those in `refused`, accepts new workflows.
        """
        shard_map, placed, shard = self._map, self._placed, shard_of(workflow_id)
        chosen = None
        if self._failed_s:
            failed_s = self._failed_s.items()
            avoided = {member for member, at_s in failed_s if now_s - at_s < AVOIDED_S}
            chosen = self._choose(shard_map, placed, shard, {*refused, *avoided})
        chosen = chosen or self._choose(shard_map, placed, shard, refused)
        if chosen is None:
            return None
        placed[chosen.member] = placed.get(chosen.member, 0) + 1
        numbers = shard_map.open_shards_of(chosen.member)
        if shard in numbers:
            return workflow_id
        return id_in_shard(workflow_id, numbers[shard % len(numbers)])

    def _choose(
        self, shard_map: ShardMap, placed: dict[str, int], shard: int, refused: Collection[str]
    ) -> MemberView | None:
        members = shard_map.open_members
        ranked: list[tuple[int, int]] = []
        near: list[tuple[int, int]] = []
        for position, view in enumerate(members):
            if view.member in refused:
                continue
            # Among members with equal loads, the lowest `turn` is chosen. The id's shard shifts the
            # turns, so that different workflows get different members.
            turn = (position + shard) % len(members)
            rank = (view.load + placed.get(view.member, 0), turn)
            ranked.append(rank)
            if view.machine == self._machine:
                near.append(rank)
        if not ranked:
            return None
        chosen = min(ranked)
        if near and min(near)[0] <= NEAR_LOAD_FACTOR * chosen[0] + NEAR_LOAD_LEAD:
            chosen = min(near)
        return members[(chosen[1] - shard) % len(members)]
