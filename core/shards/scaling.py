"""How many machines a cluster should have, which one it can do without, and which one is meant.

Pure functions.

The signal is what members report with their renewals: how many unfinished workflows each drives.
The number grows when that has been too much for a few seconds, and falls by one machine when one
less would have had room to spare for minutes. Decision cluster-and-releases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from core.shards.lease_messages import HeldShard, MemberState, MemberView

# Two or three renewals, so that a burst that is done as fast as a machine starts asks for none.
RAISE_MS: Final = 3_000
# One machine less must leave this share of its room free: else it would be wanted again soon.
_ROOM_AFTER: Final = 0.3


class MachineCount:
    """Decides how many machines are wanted; it remembers since when too many or too few were.

    Args:
        workflows_per_machine: unfinished ones that a machine should have at most, 1 or more.
        least, most: bounds of the number, 1 or more.
        lower_ms: for how long one machine less must have been enough.
    """

    def __init__(self, *, workflows_per_machine: int, least: int, most: int, lower_ms: int) -> None:
        assert workflows_per_machine > 0, workflows_per_machine
        assert 0 < least <= most, (least, most)
        self._each, self._least, self._most = workflows_per_machine, least, most
        self._lower_ms = lower_ms
        self._high_since_ms: int | None = None
        self._low_since_ms: int | None = None

    def wanted(self, load: int, machines: int, now_ms: int) -> int:
        """Return how many machines should be there.

        Args:
            load: unfinished workflows of all members.
            machines: that take work, or are asked for already.
            now_ms: of a monotonic clock.
        """
        needed = max(self._least, min(self._most, -(-load // self._each)))
        room = int((machines - 1) * self._each * (1 - _ROOM_AFTER))
        is_low = machines > self._most or (machines > self._least and load <= room)
        self._high_since_ms = _since(self._high_since_ms, needed > machines, now_ms)
        self._low_since_ms = _since(self._low_since_ms, is_low, now_ms)
        if _has_lasted(self._high_since_ms, RAISE_MS, now_ms):
            return needed
        if _has_lasted(self._low_since_ms, self._lower_ms, now_ms):
            # The next one leaves after the same time with one machine less.
            self._low_since_ms = None
            return machines - 1
        return machines


def least_loaded(members: Iterable[MemberView], machines: Collection[str]) -> str | None:
    """Return the machine among these whose members drive the fewest workflows, None of none.

    Args:
        members: all that are not GONE.
        machines: Ray's ids of those that may be given back.
    """
    loads = dict.fromkeys(machines, 0)
    for one in members:
        if one.machine in loads:
            loads[one.machine] += one.load
    return min(loads, key=lambda machine: (loads[machine], machine), default=None)


def drained_machines(
    members: Iterable[MemberView], shards: Iterable[HeldShard], machines: Collection[str]
) -> frozenset[str]:
    """Return which of these machines have no member that has something to do, or may have.

    One that does not live has ended, but while it holds a shard it may be spared and live again.
    Decision cluster-and-releases.

    Args:
        members: all that are not GONE.
        shards: by shard, who holds it.
        machines: Ray's ids of those that are asked about.
    """
    holders = {held.member for held in shards}
    busy = {
        one.machine
        for one in members
        if one.member in holders or (one.is_live and not one.is_drained)
    }
    return frozenset(machines) - busy


def counted_machines(
    seen_s: Mapping[str, float],
    live: Iterable[str],
    draining: Collection[str],
    *,
    now_s: float,
    kept_s: float,
) -> dict[str, float]:
    """Return the machines that are to have replicas, each with the time when it was last seen.

    Args:
        seen_s: what was returned the last time.
        live: the machines that live now.
        draining: those that are to leave: they count no more at once.
        now_s: of a monotonic clock.
        kept_s: how long a lost machine counts.
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
    """Return the ids of the machines that begin like this, in their order; a whole id means one.

    Args:
        members: all that are not GONE.
        prefix: of a machine's id, or the whole of it.
    """
    ids = {one.machine for one in members}
    return [prefix] if prefix in ids else sorted(one for one in ids if one.startswith(prefix))


def has_other_holder(members: Iterable[MemberView], machine: str) -> bool:
    """Say whether a member on another machine lives and is READY, so that it could take shards."""
    return any(
        one.machine != machine and one.is_live and one.state is MemberState.READY for one in members
    )
