"""How many owners and replicas a machine runs, and how many connections to Postgres each has.

Both follow from the settings and from the machine's number of cores. Pure.
Decision cluster-and-releases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Cores for each owner: one for the owner, and one for the other processes that its work needs (the
# ledger, Postgres, replicas and the HTTP front). The same holds for each replica.
CORES_EACH: Final = 2
# More owners or replicas add no throughput, because the one ledger is then the bottleneck
# (docs/performance.md, Many cores).
OWNERS_MAX: Final = 4
REPLICAS_MAX: Final = 4
# The most connections in the read pool of one process.
READER_POOL_SIZE: Final = 5
# The most dedicated processes (`isolation: dedicated`) of one owner at the same time. Each drives
# one workflow.
DEDICATED_ACTORS_MAX: Final = 8

# Connections of an owner besides its read pool: large results 2, directory changes 1, notifications
# of directory changes 1.
OWNER_CONNECTIONS: Final = 4
# Connections of a dedicated process: those of an owner, and 1 for reads.
CHILD_CONNECTIONS: Final = OWNER_CONNECTIONS + 1
# Connections of a replica besides its read pool: records and pages of agents 1, look-ups 1,
# searches 2, index of offers 1, large results 2, calls per minute 2, heartbeats 1, replies 2,
# nonces 1, receipts 1.
REPLICA_CONNECTIONS: Final = 14


class MachineSize(NamedTuple):
    """The processes of one machine. `reader_pool_size`: the read connections of each process."""

    owners: int
    replicas: int
    reader_pool_size: int


class Wanted(NamedTuple):
    """The settings for each machine.

    `owners`, `replicas`: the number of each; 0: by the machine's cores. `children`: the dedicated
    processes of each owner. `reader_pool_size`: the most read connections of each process.
    `connections_max`: the most connections of all owners and replicas of a machine together.
    """

    owners: int
    replicas: int
    children: int
    reader_pool_size: int
    connections_max: int

    @property
    def connections_min(self) -> int:
        """Return the lowest `connections_max` that suffices.

        It suffices for one owner or replica where the setting is 0, and one connection in each read
        pool.
        """
        return self._connections(self.owners or 1, self.replicas or 1, 1)

    def size(self, cores: int) -> MachineSize:
        """Return the processes of one machine.

        If the connections do not suffice, a number that depends on the cores is reduced, down to 1.

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
