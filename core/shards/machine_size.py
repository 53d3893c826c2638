"""How many owners and replicas a machine runs, and how many connections to Postgres each has.

Pure arithmetic over settings and the machine's cores. Decision cluster-and-releases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# A core for an owner or a replica, and as much for what works for it: its part of the ledger and of
# Postgres, the other of the two, and the front.
CORES_EACH: Final = 2
# More than these do not fill the one ledger faster (docs/performance.md, Many cores).
OWNERS_MAX: Final = 4
REPLICAS_MAX: Final = 4
# Connections of one process for its reads, at most.
READER_POOL_SIZE: Final = 5
# Processes of single workflows that an owner has at once.
DEDICATED_ACTORS_MAX: Final = 8

# Besides the pool of its reads. An owner: large results 2, changes of the directory 1, their
# notices 1.
OWNER_CONNECTIONS: Final = 4
# The process of one workflow (`isolation: dedicated`): an owner's, and 1 for its reads.
CHILD_CONNECTIONS: Final = OWNER_CONNECTIONS + 1
# A replica: records and pages of agents 1, look-ups 1, searches 2, the index of offers 1, large
# results 2, calls a minute 2, heartbeats 1, replies 2, nonces 1, receipts 1.
REPLICA_CONNECTIONS: Final = 14


class MachineSize(NamedTuple):
    """What one machine runs; `reader_pool_size`: connections of each process for its reads."""

    owners: int
    replicas: int
    reader_pool_size: int


class Wanted(NamedTuple):
    """What the settings say of each machine, 0 owners or replicas: by its cores.

    `children`: processes of single workflows under each owner. `reader_pool_size`: at most.
    `connections_max`: of all owners and replicas of a machine together.
    """

    owners: int
    replicas: int
    children: int
    reader_pool_size: int
    connections_max: int

    @property
    def connections_min(self) -> int:
        """Return how many connections the least that is wanted needs: each pool has one."""
        return self._connections(self.owners or 1, self.replicas or 1, 1)

    def size(self, cores: int) -> MachineSize:
        """Return what a machine runs.

        A number that is left to the cores is one where the connections allow no more.

        Args:
            cores: of the machine, 1 or more.
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
