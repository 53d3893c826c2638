"""The replacement of `Membership` in a child, a process that drives one workflow.

A child works for its parent, a pooled owner. Its commands carry the parent's member id and the
epoch of one shard. The parent sends the child's dispatches while the parent's lease is valid, so a
child needs no lease. When another member holds the shard, the ledger refuses the child's commands.
The parent ends the child when the parent loses the shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from core.shards.lease_messages import FIRST_VERSION


class Parentage(NamedTuple):
    """The member, shard and epoch under which a child works.

    `member`: the parent's member id. `child`: the name of this child at its parent.
    """

    member: str
    shard: int
    epoch: int
    child: str


class ChildLease:
    """Implements the methods of `Membership` that an owner needs.

    Args:
        of: the member, shard and epoch under which this process works.
        on_ended: receives the reason when the parent no longer holds the shard.
    """

    cluster_version = FIRST_VERSION

    def __init__(self, of: Parentage, on_ended: Callable[[str], None]) -> None:
        self._of = of
        self._on_ended = on_ended

    def may_send(self) -> bool:
        """Return True: dispatches go to the parent, which checks its own fence."""
        return True

    def note_answered(self, shard: int) -> None:
        """Do nothing: the parent does not hand off a shard while a child works in it."""

    def note_stale(self, shard: int, epoch: int) -> None:
        """End this process: the ledger refused a command because another member holds the shard."""
        self._on_ended(f"{self._of} holds shard {shard} no longer under epoch {epoch}")

    def start(self) -> None:
        """Start nothing."""

    async def close(self) -> None:
        """End nothing."""
