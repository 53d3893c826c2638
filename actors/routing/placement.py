"""Where a new workflow goes: to a shard of a member that is near and has little to do.

Near is the machine of this replica, whose member is reached over a socket. A near member is passed
over once its load is more than twice that of the least loaded one and `NEAR_LOAD_LEAD` workflows:
moving a request to another machine costs more than a small difference in load, and with little
load everything stays near. A member's load is what the ledger says, up to a second old, and
what this replica has placed there since. Equal loads are shared out by the workflows' ids. A member
to which a call has failed gets nothing for the time of a lease, unless there is no other: it may
have ended, and what is placed there then waits until its shards are taken. Shards that move soon
get no new workflows.

Decides only; the caller measures the time. Any thread may ask: what it reads is replaced, not
changed, but for counts, of which one that two threads raise at once is lost, which misplaces
nothing. Decision workflow-owners-and-shards.
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
        machine: Ray's id of this replica's machine.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._map = ShardMap()
        self._placed: dict[str, int] = {}
        self._failed_s: dict[str, float] = {}  # by member, when a call to it failed

    def use_map(self, shard_map: ShardMap) -> None:
        """Place by this map, whose loads hold what was placed before."""
        self._map, self._placed = shard_map, {}
        failed_s = self._failed_s.items()
        self._failed_s = {member: at_s for member, at_s in failed_s if member in shard_map.live}

    def note_failed(self, member: str, now_s: float) -> None:
        """Note that a call to a member has failed."""
        self._failed_s = {**self._failed_s, member: now_s}

    def place(self, workflow_id: str, refused: Collection[str] = (), *, now_s: float) -> str | None:
        """Return this id in a shard of the member that should get the workflow.

        Args:
            workflow_id: new, of no workflow yet.
            refused: ids of members that do not get it.
            now_s: of the clock of `note_failed`.

        Returns: None when no other member takes new work.
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
            # Of equal loads the first in a turn that begins at the id's shard.
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
