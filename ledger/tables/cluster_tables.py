"""The tables of the cluster: its members, and which of them holds which shard.

Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import Guard, change, upsert

# A member is one start of a process: its id is new each time, and no member comes back from 'gone'.
# address: the same for each process that is started at its place.
MEMBER: Final = Table.of(
    "member",
    "id text PRIMARY KEY",
    "machine text NOT NULL",
    "address text NOT NULL",
    "version text NOT NULL",
    "state text NOT NULL CHECK (state IN ('ready', 'draining', 'gone'))",
    "joined_ms bigint NOT NULL",
)
# Which member holds a shard, and under which epoch; no row of a workflow names a process. All
# shards have a row from the migration on. member: '' where no member holds it. No foreign key: it
# would be checked each time a shard changes its member.
SHARD: Final = Table.of(
    "shard",
    "id smallint PRIMARY KEY CHECK (id BETWEEN 0 AND 255)",
    "member text NOT NULL DEFAULT ''",
    "epoch bigint NOT NULL CHECK (epoch >= 0)",
    storage="fillfactor = 50",
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
