"""Maps of shards as the ledger would tell them."""

from __future__ import annotations

from collections.abc import Sequence

from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView
from core.shards.shard import SHARDS


def member(
    name: str,
    *,
    address: str = "",
    machine: str = "here",
    state: MemberState = MemberState.READY,
    load: int = 0,
    is_live: bool = True,
) -> MemberView:
    """Return a member; its address is its name unless one is given."""
    return MemberView(
        member=name,
        machine=machine,
        address=address or name,
        version="1",
        state=state,
        load=load,
        is_live=is_live,
    )


def lease(
    members: Sequence[MemberView], holders: Sequence[str] = (), *, map_version: int = 1
) -> Lease:
    """Return the answer to a replica: these members hold the shards in turn.

    Args:
        members: all that there are.
        holders: by shard, repeated to the last one; none: the members in turn.
    """
    in_turn = holders or [one.member for one in members] or [""]
    shards = tuple(HeldShard(in_turn[shard % len(in_turn)], 1) for shard in range(SHARDS))
    return Lease(is_known=True, map_version=map_version, members=tuple(members), shards=shards)
