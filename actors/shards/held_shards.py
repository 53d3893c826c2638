"""The shards that one member holds, with their epochs: what every command of a workflow asks for.

A shard is held under an epoch, which its commands carry and the ledger compares. While a shard is
being given it is frozen: it is still held, but not driven. Epochs of a shard only grow, so
what is known of one tells how new other news of it is: an outcome that comes late, or an older map,
never brings back a shard that was given or lost. Plain state; `membership.py` changes it.
Decisions workflow-owners-and-shards and tests-and-benchmarks.
"""

from __future__ import annotations

from core.shards.shard import shard_of


class HeldShards:
    """What one member holds.

    Args:
        member: its id, new with each start of a process.
    """

    def __init__(self, member: str) -> None:
        self.member = member
        self._epochs: dict[int, int] = {}
        self._frozen: set[int] = set()
        # By shard, the newest epoch that is known under which this member does not hold it: another
        # does, or this one did. Only under a later epoch may it come to hold the shard.
        self._others: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._epochs)

    def __contains__(self, shard: object) -> bool:
        return shard in self._epochs

    def epoch(self, shard: int) -> int:
        """Return the epoch under which a shard is held, 0 when it is not."""
        return self._epochs.get(shard, 0)

    def epoch_of(self, workflow_id: str) -> int:
        """Return the epoch of a workflow's shard, 0 when it is not held."""
        return self._epochs.get(shard_of(workflow_id), 0)

    def is_held(self, workflow_id: str) -> bool:
        """Say whether a workflow's shard is held."""
        return shard_of(workflow_id) in self._epochs

    def is_frozen(self, workflow_id: str) -> bool:
        """Say whether a workflow's shard is being given."""
        return shard_of(workflow_id) in self._frozen

    def frozen(self) -> tuple[int, ...]:
        """Return the shards that are being given."""
        return tuple(self._frozen)

    def is_news(self, shard: int, epoch: int) -> bool:
        """Say whether a shard that this member holds under an epoch is not held so already.

        False as well for an epoch under which it was held once.
        """
        return epoch > max(self._others.get(shard, -1), self._epochs.get(shard, 0))

    def add(self, shard: int, epoch: int) -> None:
        """Hold a shard under an epoch that is news; what was held of it was dropped before."""
        assert shard not in self._epochs and self.is_news(shard, epoch), (shard, epoch)
        self._epochs[shard] = epoch

    def drop(self, shard: int) -> None:
        """Hold a shard no longer."""
        epoch = self._epochs.pop(shard)
        self._frozen.discard(shard)
        self.note_other(shard, epoch)

    def note_other(self, shard: int, epoch: int) -> None:
        """Note that a shard is another's, or no member's, or was this member's, under an epoch."""
        self._others[shard] = max(epoch, self._others.get(shard, epoch))

    def freeze(self, shard: int) -> None:
        """Begin nothing new in a shard that is held."""
        assert shard in self._epochs, shard
        self._frozen.add(shard)

    def thaw(self, shard: int) -> None:
        """Take up a shard again that was frozen."""
        self._frozen.discard(shard)
