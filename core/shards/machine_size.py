"""How many owners and replicas a machine runs, and how many connections to Postgres each has.

These numbers follow from the settings and from the machine's number of cores. Pure. Decision
cluster-and-releases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Cores for each owner: one for the owner, and one for the other processes that its work needs (the
# ledger, Postgres, replicas and HAProxy). The same holds for each replica.
CORES_EACH: Final = 2
# More owners or replicas add no throughput, because the single ledger becomes the bottleneck
# (docs/performance.md, Many cores).
OWNERS_MAX: Final = 4
REPLICAS_MAX: Final = 4
# The most connections in the read pool of one process.
READER_POOL_SIZE: Final = 5
# The most dedicated processes (`isolation: dedicated`) of one owner at the same time. Each drives
# one workflow.
DEDICATED_ACTORS_MAX: Final = 8

# Connections of an owner besides its read pool: two for large results, one for directory changes,
# and one for notifications of directory changes.
OWNER_CONNECTIONS: Final = 4
# Connections of a dedicated process: those of an owner, and 1 for reads.
CHILD_CONNECTIONS: Final = OWNER_CONNECTIONS + 1
# Connections of a replica besides its read pool. Two each: searches, large results, calls per
# minute, replies. One each: records and pages of agents, look-ups, the index of offers, heartbeats,
# nonces, receipts.
REPLICA_CONNECTIONS: Final = 14


class MachineSize(NamedTuple):
    """The processes of one machine. `reader_pool_size`: the read connections of each process."""

    owners: int
    replicas: int
    reader_pool_size: int


class Wanted(NamedTuple):
    """The settings for each machine.

    `owners`, `replicas`: the number of each; 0: computed from the machine's cores. `children`: the
    dedicated processes of each owner. `reader_pool_size`: the most read connections of each
    process. `connections_max`: the most connections of all owners and replicas of a machine
    together.
    """

    owners: int
    replicas: int
    children: int
    reader_pool_size: int
    connections_max: int

    @property
    def connections_min(self) -> int:
        """Return the lowest `connections_max` that suffices.

        It suffices for the set numbers of owners and replicas (for one where the setting is 0),
        with one connection in each read pool.
        """
        return self._connections(self.owners or 1, self.replicas or 1, 1)

    def size(self, cores: int) -> MachineSize:
        """Return the processes of one machine.

        If the connections do not suffice, the numbers that depend on the cores are reduced, down to
        1.

        Args:
            cores: the number of the machine's cores, 1 or more.
        """
        assert self.connections_min <= self.connections_max, self
        owners = self.owners or _by_cores(cores, OWNERS_MAX)
        replicas = self.replicas or _by_cores(cores, REPLICAS_MAX)
        while self._connections(owners, replicas, 1) > self.connections_max:
            if self.replicas or (not self.owners and owners >= replicas):
                owners -= 1
            else:
                replicas -= 1
        left = self.connections_max - self._connections(owners, replicas, 0)
        return MachineSize(
            owners, replicas, min(self.reader_pool_size, left // (owners + replicas))
        )

    def _connections(self, owners: int, replicas: int, pool_size: int) -> int:
        each_owner = OWNER_CONNECTIONS + self.children * CHILD_CONNECTIONS + pool_size
        return owners * each_owner + replicas * (REPLICA_CONNECTIONS + pool_size)


def _by_cores(cores: int, most: int) -> int:
    return max(1, min(cores // CORES_EACH, most))
