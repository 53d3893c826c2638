"""The tables of agents and callers: registrations, keys, revocations, prices, quotas, reputation,
disputes and feedback.

Spec: Agent registry, Settlement rules; decision dispatch.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, Guard, change, insert, upsert

AGENT: Final = Table.of(
    "agent",
    "did text",
    "owner_did text",
    "card text",
    "endpoint text",
    "capability_ids text[]",
    "public_key text",
    "signing_secret bytea",
    "status text",
    "revision integer",
    "token_revision integer",
    "key_number integer = 1",
    "key_from_ms bigint",
    "inherited_from_did text",
    "registered_ms bigint",
    "updated_ms bigint",
    "proven_by text",
    "card_counter bigint",
    "card_number integer = 0",
    "card_hash text",
    "lineage_hash text",
    "meta_name text",
    "meta_author text",
    "meta_model text",
    "is_trusted boolean = false",
    "offered_since_ms bigint[]",
)
AGENT_CARD: Final = Table.of(
    "agent_card",
    "did text",
    "number integer",
    "card_version bigint",
    "card_hash text",
    "previous_hash text",
    "hash text",
    "registered_by_did text",
    "registered_ms bigint",
)
# Operational: written by its own statements (ledger/agents/agent_live.py), not by batches.
AGENT_LIVE: Final = Table.of(
    "agent_live",
    "did text",
    "status text",
    "load double precision",
    "queue_depth integer",
    "version text",
    "latency_ms double precision",
    "heartbeat_ms bigint",
    "probe_ms bigint",
    "probe_ok boolean",
    "probe_failures integer",
    "updated_ms bigint",
)
REVOCATION: Final = Table.of(
    "revocation",
    "did text",
    "reason text",
    "evidence json",
    "revoked_ms bigint",
    "expires_ms bigint",
    "revoked_by_did text",
    "ended_ms bigint",
    "ended_by_did text",
)
API_KEY: Final = Table.of(
    "api_key",
    "id text",
    "hash bytea",
    "owner_did text",
    "name text",
    "scopes text[]",
    "rate_class text",
    "rate_limits json",
    "created_ms bigint",
    "expires_ms bigint",
    "revoked_ms bigint",
    "parent_id text",
    "depth integer",
    "previous_hash bytea",
    "previous_ends_ms bigint",
)
CAPABILITY_PRICE: Final = Table.of(
    "capability_price",
    "capability_id text",
    "price_cents bigint",
    "input_rate text",
    "output_rate text",
    "set_by_did text",
    "updated_ms bigint",
)
QUOTA: Final = Table.of(
    "quota",
    "did text",
    "max_workflows_per_day bigint",
    "max_concurrent_workflows bigint",
    "max_spend_per_day_cents bigint",
    "set_by_did text",
    "updated_ms bigint",
)
REPUTATION: Final = Table.of(
    "reputation",
    "agent_did text",
    "total bigint",
    "successful bigint",
    "failed bigint",
    "cancelled bigint",
    "latency_ms_sum bigint",
    "paid_successful bigint = 0",
    "paid_failed bigint = 0",
    "paid_cancelled bigint = 0",
    "paid_latency_ms_sum bigint = 0",
    "updated_ms bigint",
)
DISPUTE: Final = Table.of(
    "dispute",
    "id uuid",
    "workflow_id uuid",
    "complainant_did text",
    "respondent_did text",
    "node_id text",
    "dispute_type text",
    "description text",
    "evidence json",
    "status text",
    "resolution text",
    "refund_asked_micro bigint",
    "refunded_micro bigint",
    "short_micro bigint",
    "created_ms bigint",
    "resolved_ms bigint",
    "resolved_by_did text",
)
FEEDBACK: Final = Table.of(
    "feedback",
    "workflow_id uuid",
    "agent_did text",
    "payer_did text",
    "rating numeric(4,3)",
    "comment text",
    "created_ms bigint",
)

# A card without a key or a secret leaves those of the card before. Since when it offers what, the
# database keeps.
AGENTS: Final = upsert(
    "agents",
    AGENT,
    ("did",),
    fixed={
        "status": "'active'",
        "registered_ms": NOW,
        "updated_ms": NOW,
        "offered_since_ms": "NULL",
    },
    kept=("owner_did", "registered_ms", "inherited_from_did", "offered_since_ms"),
    kept_unless_given=("public_key", "key_from_ms", "signing_secret"),
)
AGENT_CARDS: Final = insert("agent_cards", AGENT_CARD, fixed={"registered_ms": NOW})
# Of an agent whose unproven claim yields: nothing that its earlier owner brought stays in force.
YIELDED: Final = change(
    "yielded",
    AGENT,
    ["did", "owner_did", "public_key", "key_from_ms", "signing_secret", "inherited_from_did"],
    key=("did",),
)
DEREGISTERED: Final = change(
    "deregistered",
    AGENT,
    ["did", "revision"],
    key=("did",),
    where="o.status = 'active'",
    computed={
        "status": "'inactive'",
        "updated_ms": NOW,
        "revision": "greatest(o.revision, r.revision)",
    },
)
REVOCATIONS: Final = upsert(
    "revocations",
    REVOCATION,
    ("did",),
    fixed={"revoked_ms": NOW},
    without=("ended_ms", "ended_by_did"),
)
UNREVOCATIONS: Final = change(
    "unrevocations",
    REVOCATION,
    ["did", "ended_by_did"],
    key=("did",),
    computed={"ended_ms": NOW},
)
KEYS: Final = insert(
    "keys",
    API_KEY,
    fixed={"created_ms": NOW},
    without=("revoked_ms", "previous_hash", "previous_ends_ms"),
)
ROTATED_KEYS: Final = change(
    "rotated_keys",
    API_KEY,
    ["id", "hash", "previous_hash", "previous_ends_ms"],
    key=("id",),
    where="o.revoked_ms IS NULL",
    guard=Guard("CB003", "a key that has ended would be rotated"),
)
REVOKED_KEYS: Final = change(
    "revoked_keys",
    API_KEY,
    ["id"],
    key=("id",),
    where="o.revoked_ms IS NULL",
    computed={"revoked_ms": NOW},
)
PRICES: Final = upsert("prices", CAPABILITY_PRICE, ("capability_id",), fixed={"updated_ms": NOW})
QUOTAS: Final = upsert("quotas", QUOTA, ("did",), fixed={"updated_ms": NOW})
_COUNTED: Final = (
    "total",
    "successful",
    "failed",
    "cancelled",
    "latency_ms_sum",
    "paid_successful",
    "paid_failed",
    "paid_cancelled",
    "paid_latency_ms_sum",
)
COUNTS: Final = upsert(
    "reputation",
    REPUTATION,
    ("agent_did",),
    fixed={"updated_ms": NOW},
    added=_COUNTED,
    is_frequent=True,
)
# Of agents that have counts; what is added may be below zero.
CORRECTIONS: Final = change(
    "corrections",
    REPUTATION,
    ["agent_did", *_COUNTED],
    key=("agent_did",),
    computed={**{name: f"o.{name} + r.{name}" for name in _COUNTED}, "updated_ms": NOW},
    guard=Guard("CB003", "counts that do not exist would be corrected"),
)
DISPUTES: Final = insert(
    "disputes",
    DISPUTE,
    fixed={"status": "'open'", "created_ms": NOW},
    without=(
        "resolution",
        "refund_asked_micro",
        "refunded_micro",
        "short_micro",
        "resolved_ms",
        "resolved_by_did",
    ),
)
RESOLVED_DISPUTES: Final = change(
    "resolved_disputes",
    DISPUTE,
    [
        "id",
        "status",
        "resolution",
        "refund_asked_micro",
        "refunded_micro",
        "short_micro",
        "resolved_by_did",
    ],
    key=("id",),
    where="o.status = 'open'",
    computed={"resolved_ms": NOW},
    guard=Guard("CB003", "a dispute would be resolved twice"),
)
FEEDBACK_GIVEN: Final = insert("feedback", FEEDBACK, fixed={"created_ms": NOW})
