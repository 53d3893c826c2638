"""The one member of a bench that writes to the ledger without a cluster: it holds every shard."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

from core.ids import uuid7
from core.shards.lease_messages import HeldShard
from ledger.shards.shard_commands import JoinCluster, TakeShards

# Where each bench's member is: the one before has ended.
_ADDRESS: Final = "bench"


def join_as_new() -> JoinCluster:
    """Return what registers a new member."""
    member = uuid7(at_ms=time.time_ns() // 1_000_000, entropy=os.urandom(10))
    return JoinCluster(
        key=f"join:{member}", member=member, machine="", address=_ADDRESS, version="bench"
    )


def take_all(member: str, shards: Sequence[HeldShard]) -> TakeShards:
    """Return what lets a member hold every shard; all of them have one epoch, before and after.

    Args:
        shards: by shard, who holds it now.
    """
    seen = tuple((shard, held.epoch) for shard, held in enumerate(shards))
    return TakeShards(key=f"take:{member}", member=member, shards=seen)
