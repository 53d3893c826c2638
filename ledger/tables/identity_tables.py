"""The tables of identity: former keys of agents, names, heirs, guardians and recoveries.

Reference: features.md (Key rotation, Names, Inheritance, Recovery). Decision agent-identity.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Column, Table
from ledger.tables.writes import NOW, Guard, change, insert, upsert

# The former keys of an agent; the agent's own row has the current one. A former key never becomes
# current again, because old signatures made with it would be valid again. valid_until_ms can only
# decrease.
FORMER_KEY: Final = Table.of(
    "former_key",
    "agent_did text NOT NULL",
    "number integer NOT NULL CHECK (number > 0)",
    "public_key text NOT NULL",
    "valid_from_ms bigint NOT NULL",
    "valid_until_ms bigint NOT NULL CHECK (valid_until_ms >= valid_from_ms)",
    "PRIMARY KEY (agent_did, number)",
    "UNIQUE (agent_did, public_key)",
)

# All names that were ever registered, each with its last registration. A name is taken until
# expires_ms, or until its owner releases it. released_ms: when the owner released it, or when the
# service recorded its expiry. offered_did: the agent of another owner to which the name is offered.
# counted_did: the owner whose maximum of names it uses up, who has registered or accepted it; an
# inheritance does not change counted_did.
AGENT_NAME: Final = Table.of(
    "agent_name",
    "name text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{1,30}[a-z0-9]$')",
    "agent_did text NOT NULL",
    "owner_did text NOT NULL",
    "counted_did text NOT NULL",
    "offered_did text",
    "registered_ms bigint NOT NULL",
    "expires_ms bigint NOT NULL CHECK (expires_ms > registered_ms)",
    "released_ms bigint",
)
# The heir who gets an agent after `days` of silence. The table has the latest setting of each
# agent. owner_did: the owner who set it; the setting is void if the agent has a different owner
# now.
INHERITANCE: Final = Table.of(
    "inheritance",
    "agent_did text PRIMARY KEY",
    "owner_did text NOT NULL",
    "heir_did text NOT NULL CHECK (heir_did NOT IN (agent_did, owner_did))",
    "days integer NOT NULL CHECK (days BETWEEN 1 AND 3650)",
    "requires_inactivity boolean NOT NULL",
    "revision integer NOT NULL CHECK (revision > 0)",
    "status text NOT NULL CHECK (status IN ('armed', 'cancelled', 'triggered'))",
    "set_ms bigint NOT NULL",
    "ended_ms bigint CHECK ((ended_ms IS NULL) = (status = 'armed'))",
)
# The guardians that may replace an agent's key. owner_did: the owner who set them; they are void if
# the agent has a different owner now. number: counts the sets of the agent. replaced: earlier sets
# that are still valid, because only the agent's own key signed their replacement; earliest first.
# struck_number: the owner has invalidated all sets up to this number.
GUARDIAN_SET: Final = Table.of(
    "guardian_set",
    "agent_did text PRIMARY KEY",
    "owner_did text NOT NULL",
    "guardians text[] NOT NULL CHECK (cardinality(guardians) <= 20 AND NOT agent_did = ANY "
    "(guardians))",
    "threshold integer NOT NULL CHECK (threshold BETWEEN 0 AND cardinality(guardians))",
    "custodian_did text CHECK (custodian_did <> agent_did)",
    "delay_hours integer NOT NULL CHECK (delay_hours BETWEEN 1 AND 8760)",
    "set_ms bigint NOT NULL",
    "number integer NOT NULL DEFAULT 1 CHECK (number > 0)",
    "replaced json CHECK (json_array_length(replaced) <= 5)",
    "struck_number integer NOT NULL DEFAULT 0 CHECK (struck_number >= 0)",
    "CHECK ((threshold = 0) = (cardinality(guardians) = 0))",
    "CHECK (struck_number < number)",
)
# Requests to replace keys, one per agent and new key. pending: signatures are missing; waiting: the
# delay of delay_ms runs since waiting_ms. signer_keys: the key with which each signer has signed,
# in the order of `signers`. agreed: the set of guardians whose signatures started the delay; NULL
# if the owner started it.
RECOVERY: Final = Table.of(
    "recovery",
    "id uuid PRIMARY KEY",
    "agent_did text NOT NULL",
    "recovery_type text NOT NULL CHECK (recovery_type IN ('social_recovery', "
    "'custodian_recovery', 'time_lock_recovery'))",
    "new_key text NOT NULL",
    "recovery_address text",
    "requested_by_did text NOT NULL",
    "signers text[] NOT NULL",
    "status text NOT NULL CHECK (status IN ('pending', 'waiting', 'completed', 'cancelled'))",
    "created_ms bigint NOT NULL",
    "waiting_ms bigint",
    "delay_ms bigint CHECK ((delay_ms IS NULL) = (waiting_ms IS NULL))",
    "ended_ms bigint CHECK ((ended_ms IS NULL) = (status IN ('pending', 'waiting')))",
    "signer_keys text[] CHECK (cardinality(signer_keys) = cardinality(signers))",
    "agreed json",
    "UNIQUE (agent_did, new_key)",
    "CHECK (status <> 'waiting' OR waiting_ms IS NOT NULL)",
)

# Ends the validity of earlier former keys. It runs before `FORMER_KEYS` inserts the key that was
# just replaced: only one former key of an agent is valid beside the current key.
ENDED_FORMER_KEYS: Final = change(
    FORMER_KEY,
    key=("agent_did",),
    where=f"o.valid_until_ms > {NOW}",
    computed={"valid_until_ms": NOW},
)
FORMER_KEYS: Final = insert(FORMER_KEY)
AGENT_NAMES: Final = upsert(AGENT_NAME, without=("released_ms",))
RELEASED_NAMES: Final = change(
    AGENT_NAME,
    where="o.released_ms IS NULL",
    computed={"released_ms": NOW},
    guard=Guard("CB003", "a name would be released twice"),
)
INHERITED_NAMES: Final = change(
    AGENT_NAME,
    [Column.of("heir_did text")],
    key=("agent_did", "owner_did"),
    computed={"owner_did": "r.heir_did", "offered_did": "NULL"},
)
INHERITANCES: Final = upsert(
    INHERITANCE, fixed={"status": "'armed'", "set_ms": NOW}, without=("ended_ms",)
)
ENDED_INHERITANCES: Final = change(
    INHERITANCE,
    ["status"],
    where="o.status = 'armed'",
    computed={"ended_ms": NOW},
    guard=Guard("CB003", "an inheritance would end twice"),
)
GUARDIANS: Final = upsert(GUARDIAN_SET, fixed={"set_ms": NOW})
RECOVERIES: Final = upsert(
    RECOVERY,
    only_if="o.status IN ('pending', 'waiting')",
    guard=Guard("CB003", "a recovery would end twice"),
)
