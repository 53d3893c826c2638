"""The tables of identity: the keys that agents had before their current ones, and names.

Spec: Key rotation, Name. Decisions 0230 and 0231.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.market_tables import AGENT
from ledger.tables.table import Table
from ledger.tables.writes import NOW, Guard, change, insert, upsert

FORMER_KEY: Final = Table.of(
    "former_key",
    "agent_did text",
    "number integer",
    "public_key text",
    "valid_from_ms bigint",
    "valid_until_ms bigint",
)

AGENT_NAME: Final = Table.of(
    "agent_name",
    "name text",
    "agent_did text",
    "owner_did text",
    "offered_did text",
    "registered_ms bigint",
    "expires_ms bigint",
    "released_ms bigint",
)

# What changes of an agent without its card: a column that a row does not bring stays. Rows of one
# batch are written in the order of the writes, not of the commands: the newest revision stays.
AGENT_IDENTITIES: Final = change(
    "agent_identities",
    AGENT,
    ["did", "public_key", "key_number", "key_from_ms", "revision"],
    key=("did",),
    computed={
        **{
            name: f"coalesce(r.{name}, o.{name})"
            for name in ("public_key", "key_number", "key_from_ms")
        },
        "revision": "greatest(o.revision, r.revision)",
    },
)
# Before the newest former key is added: one former key of a DID is valid beside the current one.
ENDED_OVERLAPS: Final = change(
    "ended_overlaps",
    FORMER_KEY,
    ["agent_did"],
    key=("agent_did",),
    where=f"o.valid_until_ms > {NOW}",
    computed={"valid_until_ms": NOW},
)
FORMER_KEYS: Final = insert("former_keys", FORMER_KEY)
AGENT_NAMES: Final = upsert("agent_names", AGENT_NAME, ("name",), without=("released_ms",))
RELEASED_NAMES: Final = change(
    "released_names",
    AGENT_NAME,
    ["name"],
    key=("name",),
    where="o.released_ms IS NULL",
    computed={"released_ms": NOW},
    guard=Guard("CB003", "a name would be released twice"),
)
