"""The tables of agents and callers: registrations, keys, revocations, prices, quotas, reputation,
disputes, feedback, and versions of capabilities.

Reference: features.md (Registration, Capability versions), money.md (Settlement);
decisions dispatch and versions-and-schemas.
"""

from __future__ import annotations

from typing import Final

from core.records.bounds import TIME_MS_MAX
from ledger.tables.table import Table
from ledger.tables.writes import CHANGED, NOW, Guard, change, insert, upsert

# Capability versions: the line of versions of each capability, and the versions.

# The owner of a capability's line, and the number of its versions. is_assigned: an administrator
# assigned the owner, so no other owner can take over the line.
CAPABILITY_LINE: Final = Table.of(
    "capability_line",
    "capability_id text PRIMARY KEY",
    "owner_did text NOT NULL",
    "versions integer NOT NULL CHECK (versions BETWEEN 1 AND 1000)",
    "is_assigned boolean NOT NULL DEFAULT false",
)
# The schemas of a version never change, and no version is removed. A version can be deprecated
# once, with or without a successor. Schemas are JSON texts in canonical form. schema_hash is the
# hash of both schemas.
CAPABILITY_VERSION: Final = Table.of(
    "capability_version",
    "id text PRIMARY KEY CHECK (id = capability_id || '@' || version)",
    "capability_id text NOT NULL REFERENCES callboard.capability_line",
    "version text NOT NULL CHECK (octet_length(version) <= 64"
    " AND version ~ '^[0-9]+[.][0-9]+[.][0-9]+(-[0-9A-Za-z.-]+)?$')",
    "input_schema text NOT NULL",
    "output_schema text NOT NULL",
    "schema_hash text NOT NULL",
    "changelog text NOT NULL",
    "published_by_did text NOT NULL",
    "published_ms bigint NOT NULL",
    "status text NOT NULL CHECK (status IN ('active', 'deprecated'))",
    "successor text CHECK (successor IS NULL OR successor <> version AND status = 'deprecated')",
    "deprecated_ms bigint CHECK ((deprecated_ms IS NULL) = (status = 'active'))",
    "changed_id bigint NOT NULL DEFAULT 0",
)

CAPABILITY_LINES: Final = upsert(CAPABILITY_LINE)
# Written after its line, to which it refers.
CAPABILITY_VERSIONS: Final = insert(
    CAPABILITY_VERSION,
    fixed={"published_ms": NOW, "status": "'active'", "changed_id": CHANGED},
    without=("successor", "deprecated_ms"),
)
DEPRECATED_VERSIONS: Final = change(
    CAPABILITY_VERSION,
    ["successor"],
    where="o.status = 'active'",
    computed={"status": "'deprecated'", "deprecated_ms": NOW, "changed_id": CHANGED},
    guard=Guard("CB003", "a version would be deprecated twice"),
)


# Agents and callers: registrations, keys, revocations, prices, quotas, reputation, disputes and
# feedback.

# signing_secret is encrypted before it reaches the ledger. A heartbeat token is valid if it
# contains token_revision. token_revision changes when earlier tokens must become invalid, such as
# when a deregistered agent registers again.
# key_number: how many keys the agent has had, including the current one. key_from_ms: when it got
# the current key, NULL: at its registration. inherited_from_did: the owner towards whose maximum of
# agents an inherited agent counts. It may be a previous owner, because an heir need not agree.
# NULL: the current owner. proven_by: the evidence that the DID is its owner's, NULL for an unproven
# claim.
# card_counter: the highest counter of a signed card.
# card_number, lineage_hash: the number and the hash of the newest card's entry in the lineage.
# meta_*: name, author and model in the card, by which lists filter; NULL if a text has U+0000.
# is_trusted: an administrator registered the agent, so it may verify if the payer names no
# verifier.
# offered_since_ms: since when the agent offers each capability, in the order of capability_ids;
# NULL: since it was registered. subnet_id: the subnet that its card names.
AGENT: Final = Table.of(
    "agent",
    "did text PRIMARY KEY",
    "owner_did text NOT NULL",
    "card text NOT NULL",
    "endpoint text NOT NULL",
    "capability_ids text[] NOT NULL",
    "public_key text",
    "signing_secret bytea",
    "status text NOT NULL CHECK (status IN ('active', 'inactive'))",
    "revision integer NOT NULL CHECK (revision > 0)",
    "token_revision integer NOT NULL DEFAULT 1 CHECK (token_revision > 0)",
    "registered_ms bigint NOT NULL",
    "updated_ms bigint NOT NULL",
    "key_number integer NOT NULL DEFAULT 1 CHECK (key_number > 0)",
    "key_from_ms bigint",
    "inherited_from_did text",
    "proven_by text CHECK (proven_by IN ('signature', 'own_credential', 'operator'))",
    "card_counter bigint NOT NULL DEFAULT 0 CHECK (card_counter >= 0)",
    "card_number integer NOT NULL DEFAULT 0",
    "card_hash text",
    "lineage_hash text CHECK ((lineage_hash IS NULL) = (card_number = 0))",
    "meta_name text",
    "meta_author text",
    "meta_model text",
    "is_trusted boolean NOT NULL DEFAULT false",
    "offered_since_ms bigint[]",
    "subnet_id text",
    "changed_id bigint NOT NULL DEFAULT 0",
)
# The lineage of agents' cards. Each row contains the hash of the previous row of the agent.
AGENT_CARD: Final = Table.of(
    "agent_card",
    "did text NOT NULL",
    "number integer NOT NULL CHECK (number > 0)",
    "card_version bigint NOT NULL",
    "card_hash text NOT NULL",
    "previous_hash text CHECK (previous_hash IS NOT NULL OR number = 1)",
    "hash text NOT NULL",
    "registered_by_did text NOT NULL",
    "registered_ms bigint NOT NULL",
    "PRIMARY KEY (did, number)",
)
# Operational: written by its own statements (ledger/features/agent_live.py), not by batches.
# The newest heartbeat and the newest probe of each agent. Times are from the database's clock.
AGENT_LIVE: Final = Table.of(
    "agent_live",
    "did text PRIMARY KEY",
    "status text",
    "load double precision CHECK (load BETWEEN 0 AND 1)",
    "queue_depth integer CHECK (queue_depth >= 0)",
    "version text",
    "latency_ms double precision CHECK (latency_ms >= 0)",
    "heartbeat_ms bigint",
    "probe_ms bigint",
    "probe_ok boolean",
    "probe_failures integer NOT NULL DEFAULT 0 CHECK (probe_failures >= 0)",
    "updated_ms bigint NOT NULL",
    storage="fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05",
)
# The last revocation of each DID; earlier ones are only in the audit chain. expires_ms: when the
# revocation ends by itself; NULL: never. ended_ms: when the revocation was lifted.
REVOCATION: Final = Table.of(
    "revocation",
    "did text PRIMARY KEY",
    "reason text NOT NULL",
    "evidence json NOT NULL",
    "revoked_ms bigint NOT NULL",
    "expires_ms bigint CHECK (expires_ms > 0)",
    "revoked_by_did text NOT NULL",
    "ended_ms bigint",
    "ended_by_did text",
    "changed_id bigint NOT NULL DEFAULT 0",
    "CHECK ((ended_ms IS NULL) = (ended_by_did IS NULL))",
)
# parent_id: the key with which this key was created. When the parent ends, this key ends too.
# depth: the number of ancestors. previous_hash: the hash before a rotation, valid until
# previous_ends_ms.
API_KEY: Final = Table.of(
    "api_key",
    "id text PRIMARY KEY",
    "hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32)",
    "owner_did text NOT NULL",
    "name text NOT NULL",
    "scopes text[] NOT NULL",
    "rate_class text NOT NULL",
    "rate_limits json",
    "created_ms bigint NOT NULL",
    "expires_ms bigint",
    "revoked_ms bigint",
    "parent_id text REFERENCES callboard.api_key (id)",
    "depth integer NOT NULL CHECK (depth >= 0)",
    "previous_hash bytea",
    "previous_ends_ms bigint",
    "CHECK ((parent_id IS NULL) = (depth = 0))",
    "CONSTRAINT api_key_previous CHECK ((previous_hash IS NULL) = (previous_ends_ms IS NULL)"
    " AND (previous_hash IS NULL OR octet_length(previous_hash) = 32 AND previous_hash <> hash))",
)
# The price of a capability for cards without a price: cents, or rates per token in credits. Rates
# are decimal texts, because they are multiplied exactly and rounded once per node.
CAPABILITY_PRICE: Final = Table.of(
    "capability_price",
    "capability_id text PRIMARY KEY",
    "price_cents bigint CHECK (price_cents BETWEEN 0 AND 100000000000)",
    "input_rate text",
    "output_rate text",
    "set_by_did text NOT NULL",
    "updated_ms bigint NOT NULL",
    "changed_id bigint NOT NULL DEFAULT 0",
    "CHECK ((price_cents IS NULL) = (input_rate IS NOT NULL))",
    "CHECK ((input_rate IS NULL) = (output_rate IS NULL))",
)
QUOTA: Final = Table.of(
    "quota",
    "did text PRIMARY KEY",
    "max_workflows_per_day bigint CHECK (max_workflows_per_day >= 0)",
    "max_concurrent_workflows bigint CHECK (max_concurrent_workflows >= 0)",
    "max_spend_per_day_cents bigint CHECK (max_spend_per_day_cents >= 0)",
    "set_by_did text NOT NULL",
    "updated_ms bigint NOT NULL",
)
# Tallies of outcomes, from which reputations are calculated. paid_*: the outcomes of nodes with a
# price above 0. All tallies can be recounted from the nodes.
REPUTATION: Final = Table.of(
    "reputation",
    "agent_did text PRIMARY KEY",
    "total bigint NOT NULL CHECK (total = successful + failed + cancelled)",
    "successful bigint NOT NULL CHECK (successful >= 0)",
    "failed bigint NOT NULL CHECK (failed >= 0)",
    "cancelled bigint NOT NULL CHECK (cancelled >= 0)",
    "latency_ms_sum bigint NOT NULL CHECK (latency_ms_sum >= 0)",
    "updated_ms bigint NOT NULL",
    "paid_successful bigint NOT NULL DEFAULT 0 CHECK (paid_successful BETWEEN 0 AND successful)",
    "paid_failed bigint NOT NULL DEFAULT 0 CHECK (paid_failed BETWEEN 0 AND failed)",
    "paid_cancelled bigint NOT NULL DEFAULT 0 CHECK (paid_cancelled BETWEEN 0 AND cancelled)",
    "paid_latency_ms_sum bigint NOT NULL DEFAULT 0"
    " CHECK (paid_latency_ms_sum BETWEEN 0 AND latency_ms_sum)",
    "changed_id bigint NOT NULL DEFAULT 0",
    storage="fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05",
)
DISPUTE: Final = Table.of(
    "dispute",
    "id uuid PRIMARY KEY",
    "workflow_id uuid",
    "complainant_did text NOT NULL",
    "respondent_did text",
    "node_id text",
    "dispute_type text NOT NULL CHECK (dispute_type IN ('quality', 'timeout', "
    "'incorrect_output', 'overcharge', 'fraud', 'other'))",
    "description text NOT NULL",
    "evidence json NOT NULL",
    "status text NOT NULL CHECK (status IN ('open', 'resolved_complainant', "
    "'resolved_respondent', 'resolved_split', 'dismissed'))",
    "resolution text",
    "refund_asked_micro bigint CHECK (refund_asked_micro >= 0)",
    "refunded_micro bigint NOT NULL DEFAULT 0 CHECK (refunded_micro >= 0)",
    "short_micro bigint NOT NULL DEFAULT 0 CHECK (short_micro >= 0)",
    "created_ms bigint NOT NULL",
    "resolved_ms bigint",
    "resolved_by_did text",
    "CHECK ((status = 'open') = (resolved_ms IS NULL))",
)
FEEDBACK: Final = Table.of(
    "feedback",
    "workflow_id uuid NOT NULL",
    "agent_did text NOT NULL",
    "payer_did text NOT NULL",
    "rating numeric(4,3) NOT NULL CHECK (rating BETWEEN 0 AND 1)",
    "comment text",
    "created_ms bigint NOT NULL",
    "PRIMARY KEY (workflow_id, agent_did)",
)

# If a new card has no key or no secret, the stored key or secret stays. A trigger of the database
# maintains offered_since_ms.
AGENTS: Final = upsert(
    AGENT,
    fixed={
        "status": "'active'",
        "registered_ms": NOW,
        "updated_ms": NOW,
        "offered_since_ms": "NULL",
        "changed_id": CHANGED,
    },
    kept=("owner_did", "registered_ms", "inherited_from_did", "offered_since_ms"),
    kept_unless_given=("public_key", "key_from_ms", "signing_secret"),
)
AGENT_CARDS: Final = insert(AGENT_CARD, fixed={"registered_ms": NOW})
# Changes of an agent without its card; a column that a row lacks stays as it is. A batch is written
# in the order of writes, not of commands. So the statement keeps the higher revision.
_IDENTITY: Final = (
    "owner_did", "public_key", "key_number", "key_from_ms", "token_revision", "inherited_from_did",
)  # fmt: skip
_HIGHER_REVISION: Final = "greatest(o.revision, r.revision)"
AGENT_IDENTITIES: Final = change(
    AGENT,
    [*_IDENTITY, "revision"],
    computed={
        **{name: f"coalesce(r.{name}, o.{name})" for name in _IDENTITY},
        "revision": _HIGHER_REVISION,
        "changed_id": CHANGED,
    },
)
# Agents whose unproven claim yields. Each column that a row lacks becomes NULL, so no setting of
# the earlier owner stays.
YIELDED: Final = change(
    AGENT,
    ["owner_did", "public_key", "key_from_ms", "signing_secret", "inherited_from_did"],
    computed={"changed_id": CHANGED},
)
DEREGISTERED: Final = change(
    AGENT,
    ["revision"],
    where="o.status = 'active'",
    computed={
        "status": "'inactive'",
        "updated_ms": NOW,
        "revision": _HIGHER_REVISION,
        "changed_id": CHANGED,
    },
)
REVOCATIONS: Final = upsert(
    REVOCATION,
    fixed={"revoked_ms": NOW, "changed_id": CHANGED},
    without=("ended_ms", "ended_by_did"),
)
UNREVOCATIONS: Final = change(
    REVOCATION, ["ended_by_did"], computed={"ended_ms": NOW, "changed_id": CHANGED}
)
KEYS: Final = insert(
    API_KEY, fixed={"created_ms": NOW}, without=("revoked_ms", "previous_hash", "previous_ends_ms")
)
ROTATED_KEYS: Final = change(
    API_KEY,
    ["hash", "previous_hash", "previous_ends_ms"],
    where="o.revoked_ms IS NULL",
    guard=Guard("CB003", "a key that has ended would be rotated"),
)
REVOKED_KEYS: Final = change(API_KEY, where="o.revoked_ms IS NULL", computed={"revoked_ms": NOW})
# A row names an owner. All live keys of this owner end.
ENDED_API_KEYS: Final = change(
    API_KEY,
    key=("owner_did",),
    where=f"o.revoked_ms IS NULL\n    AND coalesce(o.expires_ms, {TIME_MS_MAX}) > {NOW}",
    computed={"revoked_ms": NOW},
)
PRICES: Final = upsert(CAPABILITY_PRICE, fixed={"updated_ms": NOW, "changed_id": CHANGED})
QUOTAS: Final = upsert(QUOTA, fixed={"updated_ms": NOW})
_COUNTED: Final = (
    "total", "successful", "failed", "cancelled", "latency_ms_sum", "paid_successful",
    "paid_failed", "paid_cancelled", "paid_latency_ms_sum",
)  # fmt: skip
COUNTS: Final = upsert(
    REPUTATION, fixed={"updated_ms": NOW, "changed_id": CHANGED}, added=_COUNTED, is_frequent=True
)
# For agents that have a tally already; the differences may be negative.
CORRECTIONS: Final = change(
    REPUTATION,
    _COUNTED,
    computed={
        **{name: f"o.{name} + r.{name}" for name in _COUNTED},
        "updated_ms": NOW,
        "changed_id": CHANGED,
    },
    guard=Guard("CB003", "counts that do not exist would be corrected"),
)
_DECISION: Final = (
    "resolution", "refund_asked_micro", "refunded_micro", "short_micro", "resolved_by_did",
)  # fmt: skip
DISPUTES: Final = insert(
    DISPUTE, fixed={"status": "'open'", "created_ms": NOW}, without=("resolved_ms", *_DECISION)
)
RESOLVED_DISPUTES: Final = change(
    DISPUTE,
    ["status", *_DECISION],
    where="o.status = 'open'",
    computed={"resolved_ms": NOW},
    guard=Guard("CB003", "a dispute would be resolved twice"),
)
FEEDBACK_GIVEN: Final = insert(FEEDBACK, fixed={"created_ms": NOW})
