"""The cluster as an administrator sees it: its members, and what draining a machine answers.

shards.md (Tables, Upgrade). Decision 0210.
"""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import Count, DurationMs, Yes, words
from core.records.api.record import Record


class ClusterMember(Record):
    """A process that owns workflows, from its registration to its end."""

    id: str
    machine: Annotated[str, "the machine's id in Ray"]
    address: Annotated[str, "the same for each process that is started there"]
    version: Annotated[str, "of its code"]
    state: Annotated[str, words(("ready", "draining"))]
    is_live: Annotated[bool, "its lease has not expired"]
    load: Annotated[Count, "unfinished workflows that it drives"]
    open_calls: Annotated[Count, "calls of agents that would be lost with its process"]
    shards: Annotated[Count, "how many it holds"]
    is_drained: Annotated[bool, "it drains, holds nothing and has no open call"]


class Cluster(Record):
    """The members of the cluster; counts are up to a second old."""

    members: list[ClusterMember]
    unheld_shards: Annotated[Count, "shards that no live member holds"]
    version: Annotated[Count, "of the code that every member and the ledger understand"]


class MachineChanged(Record):
    """A machine whose members drain, or take work again."""

    success: Yes
    machine: Annotated[str, "the machine's id in Ray"]
    members: list[ClusterMember]
    drain_ms: Annotated[DurationMs, "how long the deployment lets a machine drain"]
