"""Which member should hold which shard: a pure function that every member evaluates by itself.

Rendezvous hashing over addresses: no leader, no state, and one member more or less moves only its
own share. An address stays the same when a process is started again, so a successor that comes
before its predecessor's lease has expired gets exactly the shards that the predecessor had.
Decision workflow-owners-and-shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from core.shards.lease_messages import HeldShard, MemberState, MemberView
from core.shards.shard import SHARDS


class Moves(NamedTuple):
    """What one member should do: take these shards, and give those, each to another member.

    `take`: (shard, the epoch it is held under now). `give`: (shard, the recipient's id).
    """

    take: tuple[tuple[int, int], ...]
    give: tuple[tuple[int, str], ...]


def target_addresses(addresses: Iterable[str], shards: int = SHARDS) -> tuple[str, ...]:
    """Return by shard the address that should hold it; empty without addresses.

    Args:
        shards: how many there are.
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
    """Return what a member should do by this map; nothing when the map does not know it.

    Only members that live and are READY are targets.
    A shard of a member that does not live is taken by its target; whether it may be is the ledger's
    to decide. A member that is DRAINING gives everything, takes nothing.

    Args:
        member: the id of the one that asks.
        members: all that are not GONE.
        shards: by shard, who holds it; empty while the map is not known.
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
