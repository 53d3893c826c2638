"""How many machines a cluster should have, and which machines it can release.

The input is the load that members report with their renewals: the number of unfinished workflows of
each. The number of machines rises when the load has been too high for a few seconds. It falls by
one when one machine less would have sufficed for minutes. Pure. Decision cluster-and-releases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from core.shards.lease_messages import HeldShard, MemberState, MemberView

# How long the load must be too high. A burst that ends within this time needs no new machine.
RAISE_MS: Final = 3_000
# The share of the capacity that must be free with one machine less. With a smaller share, the
# machine would soon be needed again.
_ROOM_AFTER: Final = 0.3


class MachineCount:
    """Decides how many machines the cluster needs; stores since when there are too few or too many.

    Args:
        workflows_per_machine: the most unfinished workflows that a machine should have, 1 or more.
        least, most: the bounds of the number of machines, 1 or more.
        lower_ms: how long one machine less must have sufficed, milliseconds.
    """

    def __init__(self, *, workflows_per_machine: int, least: int, most: int, lower_ms: int) -> None:
        assert workflows_per_machine > 0, workflows_per_machine
        assert 0 < least <= most, (least, most)
        self._each, self._least, self._most = workflows_per_machine, least, most
        self._lower_ms = lower_ms
        self._high_since_ms: int | None = None
        self._low_since_ms: int | None = None

    def wanted(self, load: int, machines: int, now_ms: int) -> int:
        """Return the number of machines that the cluster should have.

        Args:
            load: the unfinished workflows of all members.
            machines: the number of machines that take work or are already requested.
            now_ms: the current time of a monotonic clock, milliseconds.
        """
        needed = max(self._least, min(self._most, -(-load // self._each)))
        room = int((machines - 1) * self._each * (1 - _ROOM_AFTER))
        is_low = machines > self._most or (machines > self._least and load <= room)
        self._high_since_ms = _since(self._high_since_ms, needed > machines, now_ms)
        self._low_since_ms = _since(self._low_since_ms, is_low, now_ms)
        if _has_lasted(self._high_since_ms, RAISE_MS, now_ms):
            return needed
        if _has_lasted(self._low_since_ms, self._lower_ms, now_ms):
            # Before the next machine is released, `lower_ms` must pass again.
            self._low_since_ms = None
            return machines - 1
        return machines


def least_loaded(members: Iterable[MemberView], machines: Collection[str]) -> str | None:
    """Return the machine whose members drive the fewest workflows, None without machines.

    Args:
        members: all members that are not GONE.
        machines: Ray's ids of the machines that may be released.
    """
    loads = dict.fromkeys(machines, 0)
    for one in members:
        if one.machine in loads:
            loads[one.machine] += one.load
    return min(loads, key=lambda machine: (loads[machine], machine), default=None)


def drained_machines(
    members: Iterable[MemberView], shards: Iterable[HeldShard], machines: Collection[str]
) -> frozenset[str]:
    """Return the machines whose members have no work and cannot get any.

    A machine is busy if one of its members holds a shard, or has a valid lease and is not drained.
    A member with an expired lease has usually ended. While it holds a shard, however, its lease may
    become valid again (`leases.py`), so its machine is busy.

    Args:
        members: all members that are not GONE.
        shards: the holder of each shard.
        machines: Ray's ids of the machines to check.

    Decision cluster-and-releases.
    """
    holders = {held.member for held in shards}
    busy = {
        one.machine
        for one in members
        if one.member in holders or (one.is_live and not one.is_drained)
    }
    return frozenset(machines) - busy


def machines_with_replicas(
    seen_s: Mapping[str, float],
    live: Iterable[str],
    draining: Collection[str],
    *,
    now_s: float,
    kept_s: float,
) -> dict[str, float]:
    """Return the machines that should have replicas, each with the time when it was last seen.

    Args:
        seen_s: the previous result of this function.
        live: Ray's ids of the machines that are running now.
        draining: the machines that will leave; they are left out at once.
        now_s: the current time of a monotonic clock, seconds.
        kept_s: how long a lost machine still counts, seconds.
    """
    known_s = {**seen_s, **dict.fromkeys(live, now_s)}
    return {
        machine: at_s
        for machine, at_s in known_s.items()
        if now_s - at_s < kept_s and machine not in draining
    }


def _since(known_ms: int | None, is_so: bool, now_ms: int) -> int | None:
    if not is_so:
        return None
    return now_ms if known_ms is None else known_ms


def _has_lasted(since_ms: int | None, least_ms: int, now_ms: int) -> bool:
    return since_ms is not None and now_ms - since_ms >= least_ms


def find_machines(members: Iterable[MemberView], prefix: str) -> list[str]:
    """Return the sorted ids of the machines whose id begins with a prefix.

    Args:
        members: all members that are not GONE.
        prefix: the beginning of an id. If the prefix is a whole id, only this machine is returned.
    """
    ids = {one.machine for one in members}
    return [prefix] if prefix in ids else sorted(one for one in ids if one.startswith(prefix))


def has_other_holder(members: Iterable[MemberView], machine: str) -> bool:
    """Return whether a member on another machine could take shards: READY, with a valid lease."""
    return any(
        one.machine != machine and one.is_live and one.state is MemberState.READY for one in members
    )
