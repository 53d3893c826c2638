"""What the process of one workflow has instead of a membership: its parent's shard and epoch.

It writes under its parent's member id and the epoch of one shard, and hands its dispatches to its
parent, which sends them while it has a lease. So it needs no lease of its own. The ledger refuses
its commands when another member holds the shard, and its parent ends it when it loses the shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from core.shards.lease_messages import FIRST_VERSION


class Parentage(NamedTuple):
    """Under which member, shard and epoch a process works; `child`: its name at its parent."""

    member: str
    shard: int
    epoch: int
    child: str


class ChildLease:
    """Has the methods of `Membership` that an owner needs.

    Args:
        of: what this process works under.
        on_ended: receives the reason when the shard is not the parent's any more.
    """

    cluster_version = FIRST_VERSION

    def __init__(self, of: Parentage, on_ended: Callable[[str], None]) -> None:
        self._of = of
        self._on_ended = on_ended

    def may_send(self) -> bool:
        """Return True: what is sent goes to the parent."""
        return True

    def note_answered(self, shard: int) -> None:
        """Do nothing: the parent gives no shard in which this process works."""

    def note_stale(self, shard: int, epoch: int) -> None:
        """End this process: the ledger refused a command because another member has the shard."""
        self._on_ended(f"{self._of} holds shard {shard} no longer under epoch {epoch}")

    def start(self) -> None:
        """Start nothing."""

    async def close(self) -> None:
        """End nothing."""
