"""The rows of a simulated cluster: what Postgres holds of members and shards, and its head.

What a command does to them is `shard_plans.py`'s. shards.md (Tables; Ledger).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from core.shards.lease_messages import HeldShard, MemberState
from ledger.commands import Outcome


class NotHead(Exception):
    """Another ledger has taken the head."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member that has registered. `version`: of the map when it did, so the order of joining"""

    address: str
    state: MemberState
    version: int


@dataclass(slots=True)
class ShardRows:
    """Everything that is stored.

    `version`: of the map, grows with each change of a member or a shard. `steps`: by workflow, the
    attempt that is open. `known`: outcomes by key.
    """

    shards: list[HeldShard]
    version: int = 0
    members: dict[str, MemberRow] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    known: dict[str, Outcome] = field(default_factory=dict)

    def copy(self) -> ShardRows:
        """Return rows that can be changed by themselves."""
        return replace(
            self,
            shards=list(self.shards),
            members=dict(self.members),
            steps=dict(self.steps),
            known=dict(self.known),
        )

    def has_shards(self, member: str) -> bool:
        """Say whether a member holds any."""
        return any(held.member == member for held in self.shards)


class Database:
    """The stored rows and the head: which ledger may change them, under which epoch."""

    def __init__(self, rows: ShardRows) -> None:
        self.rows = rows
        self.epoch = 0
        self.head = ""

    def __repr__(self) -> str:
        return f"<Database epoch={self.epoch} head={self.head} version={self.rows.version}>"

    def take_head(self, ledger: str, seen_epoch: int) -> tuple[int, ShardRows]:
        """Become the head, by compare-and-set; return the epoch and the rows.

        Raises NotHead when the head has changed since it was seen, but for an answer that was lost.
        """
        if self.epoch != seen_epoch and self.head != ledger:
            raise NotHead
        self.epoch += 1
        self.head = ledger
        return self.epoch, self.rows.copy()

    def check_head(self, epoch: int) -> None:
        """Raise NotHead unless this is the head's epoch."""
        if self.epoch != epoch:
            raise NotHead

    def commit(self, epoch: int, rows: ShardRows) -> None:
        """Store what a batch has made of the rows. Raises NotHead, and stores nothing then."""
        self.check_head(epoch)
        self.rows = rows.copy()
