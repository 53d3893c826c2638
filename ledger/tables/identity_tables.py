"""The tables of identity: the keys that agents had before their current ones, names,
heirs, guardians and recoveries.

Spec: Key rotation, Name, Inheritance, Recovery request. Decision agent-identity.
"""

from __future__ import annotations

from typing import Final

from core.records.bounds import TIME_MS_MAX
from ledger.tables.market_tables import AGENT, API_KEY
from ledger.tables.table import Column, Table
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
    "counted_did text",
    "offered_did text",
    "registered_ms bigint",
    "expires_ms bigint",
    "released_ms bigint",
)
INHERITANCE: Final = Table.of(
    "inheritance",
    "agent_did text",
    "owner_did text",
    "heir_did text",
    "days integer",
    "requires_inactivity boolean",
    "revision integer",
    "status text",
    "set_ms bigint",
    "ended_ms bigint",
)
GUARDIAN_SET: Final = Table.of(
    "guardian_set",
    "agent_did text",
    "owner_did text",
    "guardians text[]",
    "threshold integer",
    "custodian_did text",
    "delay_hours integer",
    "set_ms bigint",
    "number integer",
    "replaced json",
    "struck_number integer",
)
RECOVERY: Final = Table.of(
    "recovery",
    "id uuid",
    "agent_did text",
    "recovery_type text",
    "new_key text",
    "recovery_address text",
    "requested_by_did text",
    "signers text[]",
    "status text",
    "created_ms bigint",
    "waiting_ms bigint",
    "delay_ms bigint",
    "ended_ms bigint",
    "signer_keys text[]",
    "agreed json",
)

# What changes of an agent without its card: a column that a row does not bring stays. Rows of one
# batch are written in the order of the writes, not of the commands: the newest revision stays.
AGENT_IDENTITIES: Final = change(
    "agent_identities",
    AGENT,
    [
        "did",
        "owner_did",
        "public_key",
        "key_number",
        "key_from_ms",
        "revision",
        "token_revision",
        "inherited_from_did",
    ],
    key=("did",),
    computed={
        **{
            name: f"coalesce(r.{name}, o.{name})"
            for name in (
                "owner_did",
                "public_key",
                "key_number",
                "key_from_ms",
                "token_revision",
                "inherited_from_did",
            )
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
INHERITED_NAMES: Final = change(
    "inherited_names",
    AGENT_NAME,
    ["agent_did", "owner_did", Column.of("heir_did text")],
    key=("agent_did", "owner_did"),
    computed={"owner_did": "r.heir_did", "offered_did": "NULL"},
)
INHERITANCES: Final = upsert(
    "inheritances",
    INHERITANCE,
    ("agent_did",),
    fixed={"status": "'armed'", "set_ms": NOW},
    without=("ended_ms",),
)
ENDED_INHERITANCES: Final = change(
    "ended_inheritances",
    INHERITANCE,
    ["agent_did", "status"],
    key=("agent_did",),
    where="o.status = 'armed'",
    computed={"ended_ms": NOW},
    guard=Guard("CB003", "a switch would end twice"),
)
# By owner: all of its keys that open anything.
ENDED_API_KEYS: Final = change(
    "ended_api_keys",
    API_KEY,
    ["owner_did"],
    key=("owner_did",),
    where=f"o.revoked_ms IS NULL\n    AND coalesce(o.expires_ms, {TIME_MS_MAX}) > {NOW}",
    computed={"revoked_ms": NOW},
)
GUARDIANS: Final = upsert("guardians", GUARDIAN_SET, ("agent_did",), fixed={"set_ms": NOW})
RECOVERIES: Final = upsert(
    "recoveries",
    RECOVERY,
    ("id",),
    only_if="o.status IN ('pending', 'waiting')",
    guard=Guard("CB003", "a recovery would end twice"),
)
