"""The shards that one member holds, with their epochs.

A member holds a shard under an epoch. Every command of the shard's workflows carries this epoch,
and the ledger refuses a command with an older epoch. A shard that is being handed off is frozen:
the member still holds the shard, but does not drive its workflows. The epochs of a shard only grow.
So the epoch shows that an outcome is late or that a map is old. Neither brings back a shard that
was handed off or lost.

This class only stores state; `membership.py` changes it.
Decisions workflow-owners-and-shards and tests-and-benchmarks.
"""

from __future__ import annotations

from core.shards.shard import shard_of


class HeldShards:
    """The shards that one member holds.

    Args:
        member: the member's id. Each start of a process creates a new id.
    """

    def __init__(self, member: str) -> None:
        self.member = member
        self._epochs: dict[int, int] = {}
        self._frozen: set[int] = set()
        # By shard: the newest known epoch under which this member does not hold the shard. Either
        # another member holds or held it under this epoch, or this member held it in the past. This
        # member can hold the shard again only under a later epoch.
        self._others: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._epochs)

    def __contains__(self, shard: object) -> bool:
        return shard in self._epochs

    def epoch(self, shard: int) -> int:
        """Return the epoch under which a shard is held, 0 if it is not held."""
        return self._epochs.get(shard, 0)

    def epoch_of(self, workflow_id: str) -> int:
        """Return the epoch of a workflow's shard, 0 if the shard is not held."""
        return self._epochs.get(shard_of(workflow_id), 0)

    def is_held(self, workflow_id: str) -> bool:
        """Say whether this member holds a workflow's shard."""
        return shard_of(workflow_id) in self._epochs

    def is_frozen(self, workflow_id: str) -> bool:
        """Say whether a workflow's shard is frozen."""
        return shard_of(workflow_id) in self._frozen

    def frozen(self) -> tuple[int, ...]:
        """Return the frozen shards."""
        return tuple(self._frozen)

    def is_newer(self, shard: int, epoch: int) -> bool:
        """Say whether an epoch of a shard is later than every epoch known here.

        False also for an epoch under which this member held the shard in the past.
        """
        return epoch > max(self._others.get(shard, -1), self._epochs.get(shard, 0))

    def add(self, shard: int, epoch: int) -> None:
        """Add a shard under a later epoch (`is_newer`); the shard must not be held already."""
        assert shard not in self._epochs and self.is_newer(shard, epoch), (shard, epoch)
        self._epochs[shard] = epoch

    def drop(self, shard: int) -> None:
        """Remove a shard that this member no longer holds."""
        epoch = self._epochs.pop(shard)
        self._frozen.discard(shard)
        self.note_other(shard, epoch)

    def note_other(self, shard: int, epoch: int) -> None:
        """Note an epoch under which this member does not hold the shard.

        Under this epoch another member or no member holds it, or this member held it in the past.
        """
        self._others[shard] = max(epoch, self._others.get(shard, epoch))

    def freeze(self, shard: int) -> None:
        """Stop driving the workflows of a held shard, because it is being handed off."""
        assert shard in self._epochs, shard
        self._frozen.add(shard)

    def thaw(self, shard: int) -> None:
        """Allow a frozen shard's workflows to be driven again."""
        self._frozen.discard(shard)
