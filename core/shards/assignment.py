"""Which member should hold which shard. Every member computes this by itself.

The assignment is rendezvous hashing over the members' addresses. It needs no leader and no state.
When a member joins or leaves, only the shards of that member move. A restarted process has the same
address. If it starts before the lease of its predecessor expires, it gets exactly the shards of the
predecessor. Pure. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from core.shards.lease_messages import HeldShard, MemberState, MemberView
from core.shards.shard import SHARDS


class Moves(NamedTuple):
    """The shards that one member should take and give.

    `take`: pairs (shard, current epoch of the shard). `give`: pairs (shard, id of the member that
    should get it).
    """

    take: tuple[tuple[int, int], ...]
    give: tuple[tuple[int, str], ...]


def target_addresses(addresses: Iterable[str], shards: int = SHARDS) -> tuple[str, ...]:
    """Return, for each shard, the address of the member that should hold the shard.

    Args:
        addresses: the addresses of the members that may hold shards.
        shards: the number of shards.

    Returns:
        One address per shard, in the order of the shards; empty without addresses.
    """
    return _targets(tuple(sorted(set(addresses))), shards)


@lru_cache(maxsize=64)
def _targets(addresses: tuple[str, ...], shards: int) -> tuple[str, ...]:
    if not addresses:
        return ()
    return tuple(
        max(addresses, key=lambda address: _weight(address, shard)) for shard in range(shards)
    )


def _weight(address: str, shard: int) -> bytes:
    return hashlib.blake2b(f"{address}|{shard}".encode(), digest_size=8).digest()


def moves_of(member: str, members: Sequence[MemberView], shards: Sequence[HeldShard]) -> Moves:
    """Return the shards that a member should take and give.

    A shard should be held by its target: the member that the hashing selects among the READY
    members with a valid lease. If the holder's lease has expired, the target should take the shard;
    the ledger decides whether it may. If another member is the target, the holder should give the
    shard. A DRAINING member is never a target, so it takes nothing and gives all of its shards.

    Args:
        member: the id of the member.
        members: all members that are not GONE.
        shards: the holder of each shard, in the order of the shards; empty while unknown.

    Returns:
        The moves; none if the member is unknown or its lease has expired.
    """
    live = {one.member: one for one in members if one.is_live}
    own = live.get(member)
    if own is None:
        return Moves((), ())
    ready = {one.address: one.member for one in members if _is_target(one)}
    targets = target_addresses(ready, len(shards))
    if not targets:
        return Moves((), ())
    take = [
        (shard, held.epoch)
        for shard, held in enumerate(shards)
        if held.member not in live and ready[targets[shard]] == member
    ]
    give = [
        (shard, ready[targets[shard]])
        for shard, held in enumerate(shards)
        if held.member == member and ready[targets[shard]] != member
    ]
    return Moves(tuple(take), tuple(give))


def _is_target(one: MemberView) -> bool:
    return one.is_live and one.state is MemberState.READY
