"""The tables of the cluster: its members, and the member that holds each shard.

Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import Guard, change, upsert

# A member is one start of a process: its id is new each time, and a member that is 'gone' never
# comes back. address: the actor's name, which a process and its successors share.
MEMBER: Final = Table.of(
    "member",
    "id text PRIMARY KEY",
    "machine text NOT NULL",
    "address text NOT NULL",
    "version text NOT NULL",
    "state text NOT NULL CHECK (state IN ('ready', 'draining', 'gone'))",
    "joined_ms bigint NOT NULL",
)
# The holder and the epoch of each shard. The migration inserts a row for every shard. member: '' if
# no member holds the shard. There is no foreign key, because it would be checked each time a shard
# moves.
SHARD: Final = Table.of(
    "shard",
    "id smallint PRIMARY KEY CHECK (id BETWEEN 0 AND 255)",
    "member text NOT NULL DEFAULT ''",
    "epoch bigint NOT NULL CHECK (epoch >= 0)",
    storage="fillfactor = 50",
)

# A violated guard proves that the writer's memory is wrong, so the writer stops: CB005.
MEMBERS: Final = upsert(
    MEMBER,
    only_if="o.state <> 'gone'",
    guard=Guard("CB005", "a member that is gone would come back"),
)
SHARDS: Final = change(
    SHARD,
    ["member", "epoch"],
    where="o.epoch < r.epoch",
    guard=Guard("CB005", "the epoch of a shard would not grow"),
)
