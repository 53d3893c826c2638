"""The cluster as an administrator sees it: its members, and what draining a machine answers.

Decision cluster-and-releases.
"""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import Count, DurationMs, Yes, words
from core.records.api.record import Record


class ClusterMember(Record):
    """A process that drives workflows."""

    id: Annotated[str, "Id of the process; each start has a new one."]
    machine: Annotated[str, "Id of the machine in Ray."]
    address: Annotated[str, "Name of the process, the same after a restart."]
    version: Annotated[str, "Version of its code."]
    state: Annotated[str, words(("ready", "draining")), "State of the process."]
    is_live: Annotated[bool, "Whether its lease is valid."]
    load: Annotated[Count, "Number of unfinished workflows."]
    open_calls: Annotated[Count, "Open calls to agents; they are lost with the process."]
    shards: Annotated[Count, "Number of shards that it holds."]
    is_drained: Annotated[bool, "Whether it is draining and holds neither shards nor open calls."]


class Cluster(Record):
    """Members of the cluster. Counts are up to one second old."""

    members: Annotated[list[ClusterMember], "The processes."]
    unheld_shards: Annotated[Count, "Number of shards that no live process holds."]
    version: Annotated[Count, "Message version that all processes and the ledger understand."]


class MachineChanged(Record):
    """A machine that drains, or takes work again."""

    success: Yes
    machine: Annotated[str, "Id of the machine in Ray."]
    members: Annotated[list[ClusterMember], "Its processes."]
    drain_ms: Annotated[DurationMs, "Milliseconds that a drain may take."]
