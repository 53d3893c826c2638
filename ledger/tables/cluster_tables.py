"""The tables of the cluster: its members, and which of them holds which shard.

Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import Guard, change, upsert

MEMBER: Final = Table.of(
    "member",
    "id text",
    "machine text",
    "address text",
    "version text",
    "state text",
    "joined_ms bigint",
)
# All shards have a row from the migration on; one that no member holds has an empty `member`.
SHARD: Final = Table.of(
    "shard",
    "id smallint",
    "member text",
    "epoch bigint",
)

# What breaks a guard is a wrong memory of the writer's, who must not go on: CB005.
MEMBERS: Final = upsert(
    "members",
    MEMBER,
    ("id",),
    only_if="o.state <> 'gone'",
    guard=Guard("CB005", "a member that is gone would come back"),
)
SHARDS: Final = change(
    "shards",
    SHARD,
    ["id", "member", "epoch"],
    key=("id",),
    where="o.epoch < r.epoch",
    guard=Guard("CB005", "the epoch of a shard would not grow"),
)
