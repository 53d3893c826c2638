"""The database of a simulated cluster: committed rows, and the head that says who may change them.

shards.md (Tables; Ledger).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from core.shards.lease_messages import HeldShard
from core.shards.ledger_head import LedgerHead, Succession
from ledger.commands import Outcome
from ledger.writer.state_cache import Head, KnownMember, StateCache


class NotHead(Exception):
    """Another ledger has taken the head."""


@dataclass(slots=True)
class ClusterRows:
    """Everything that is stored.

    `version`: of the map. `steps`: by workflow, the attempt that is open. `forms`: by workflow, the
    version of the code that its rows need. `known`: outcomes by key.
    """

    shards: list[HeldShard]
    version: int = 0
    head: Head = field(default_factory=lambda: Head(0, 0, 0, bytes(32), 0))
    members: dict[str, KnownMember] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    steps: dict[str, int] = field(default_factory=dict)
    forms: dict[str, int] = field(default_factory=dict)
    known: dict[str, Outcome] = field(default_factory=dict)

    def after(self, cache: StateCache) -> ClusterRows:
        """Return these rows as a batch leaves them that was planned on this cache."""
        return replace(
            self,
            shards=list(cache.shards),
            version=cache.map_version,
            head=replace(cache.head),
            members=dict(cache.members),
            gone=self.gone | cache.gone_members,
        )


class SimulatedDatabase:
    """The rows, and the head: the epoch of the ledger that may change them, and its address."""

    def __init__(self, rows: ClusterRows) -> None:
        self.rows = rows
        self.epoch = self._beat = 0
        self._address = ""

    def __repr__(self) -> str:
        return f"<SimulatedDatabase epoch={self.epoch} version={self.rows.version}>"

    def read_head(self) -> LedgerHead:
        """Return the head."""
        return LedgerHead(self.epoch, self.rows.head.audit_seq, self._beat, self._address)

    def take_head(self, succession: Succession) -> tuple[int, ClusterRows]:
        """Fence every other ledger off; return the new epoch and the rows. As `take_head`.

        Raises NotHead when the head is not as it was read.
        """
        seen, head = succession.head, self.read_head()
        assert seen is not None and succession.address
        if head.address != succession.address:
            is_same = head == seen if succession.is_silent else head.epoch == seen.epoch
            if not is_same:
                raise NotHead
        self.epoch += 1
        self._address = succession.address
        return self.epoch, self.rows

    def beat(self, epoch: int) -> None:
        """Show that the head's ledger lives. Raises NotHead unless this is its epoch."""
        self.check_head(epoch)
        self._beat += 1

    def check_head(self, epoch: int) -> None:
        """Raise NotHead unless this is the head's epoch."""
        if self.epoch != epoch:
            raise NotHead

    def commit(self, epoch: int, rows: ClusterRows) -> None:
        """Store what a batch has made of the rows. Raises NotHead, and stores nothing then."""
        self.check_head(epoch)
        self.rows = rows
