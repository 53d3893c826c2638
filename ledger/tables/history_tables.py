"""The tables of history, of the fence and of proofs: head, commands, the audit chain, signing keys.

Reference: money.md (Commands and keys, Audit chain, Signing keys), features.md (Receipts);
decisions ledger-writer and audit-chain.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, change, insert

# One row: the fence (epoch), the gap-free counters and the head of the audit chain. Only the
# triggers on `entry` and `audit` change the counters and the hash. address: the name of the
# writer's actor (ledger/features/head_row.py), '' before the first writer.
HEAD: Final = Table.of(
    "head",
    "one boolean PRIMARY KEY DEFAULT true CHECK (one)",
    "epoch bigint NOT NULL",
    "entry_seq bigint NOT NULL",
    "audit_seq bigint NOT NULL",
    "hash bytea NOT NULL CHECK (octet_length(hash) = 32)",
    "address text NOT NULL DEFAULT ''",
    storage="fillfactor = 10",
)
# Idempotency: the key of every stored command, with the reply for its repeats.
COMMAND: Final = Table.of(
    "command",
    "id text PRIMARY KEY",
    "request_hash bytea",
    "result json",
    "error text",
    "detail text",
    "audit_id bigint",
    "created_ms bigint NOT NULL",
)
# One entry per command. The columns beside body and hash serve searches: the types of the events,
# the command's actor, and the workflow that an event is about.
AUDIT: Final = Table.of(
    "audit",
    "id bigint PRIMARY KEY",
    "event_types text[] NOT NULL CHECK (cardinality(event_types) > 0)",
    "actor_did text NOT NULL",
    "workflow_id uuid",
    "created_ms bigint NOT NULL",
    "body text NOT NULL",
    "hash bytea NOT NULL CHECK (hash = sha256(convert_to(body, 'UTF8')))",
)
# The events that are indexed by type and target: all except `LIFE_EVENTS`, which every ordinary
# workflow has. number: the position of the event in its entry.
AUDIT_EVENT: Final = Table.of(
    "audit_event",
    "audit_id bigint NOT NULL",
    "number integer NOT NULL CHECK (number >= 0)",
    "event_type text NOT NULL",
    "target_type text NOT NULL",
    "target_id text NOT NULL",
    "PRIMARY KEY (audit_id, number)",
)
# The audit entries of each party (core/records/audit.py).
AUDIT_PARTY: Final = Table.of(
    "audit_party",
    "party text NOT NULL",
    "audit_id bigint NOT NULL",
    "PRIMARY KEY (party, audit_id)",
)

COMMANDS: Final = insert(COMMAND, fixed={"created_ms": NOW}, is_frequent=True)
# `lines`: canonical JSON has no line feeds.
AUDIT_ENTRIES: Final = insert(AUDIT, fixed={"created_ms": NOW}, is_frequent=True, lines="body")
AUDIT_EVENTS: Final = insert(AUDIT_EVENT)
AUDIT_PARTIES: Final = insert(AUDIT_PARTY, is_frequent=True)


# Proofs: the keys with which the deployment signs, and receipts that callers submit.

# The key without retired_ms is in use. sealed: the sealed private key; NULL for a retired key,
# which signs nothing any more. audit_id: the audit entry that contains the public key.
SIGNING_KEY: Final = Table.of(
    "signing_key",
    "key_id text PRIMARY KEY",
    "public_key text NOT NULL",
    "sealed bytea",
    "created_ms bigint NOT NULL",
    "retired_ms bigint",
    "audit_id bigint NOT NULL",
    "CHECK ((sealed IS NULL) = (retired_ms IS NOT NULL))",
)
# A receipt that a node's agent, its owner or the payer has submitted. body: the receipt in
# canonical form. is_verified: whether its signature is valid for the registered key; NULL if it has
# no signature or there is no registered key.
SUBMITTED_RECEIPT: Final = Table.of(
    "submitted_receipt",
    "id uuid PRIMARY KEY",
    "workflow_id uuid NOT NULL",
    "node_id text NOT NULL",
    "agent_did text NOT NULL",
    "submitter_did text NOT NULL",
    "body text NOT NULL",
    "is_verified boolean",
    "created_ms bigint NOT NULL",
    "UNIQUE (workflow_id, node_id, submitter_did)",
)

RETIRED_SIGNING_KEYS: Final = change(
    SIGNING_KEY, where="o.retired_ms IS NULL", computed={"retired_ms": NOW, "sealed": "NULL"}
)
SIGNING_KEYS: Final = insert(SIGNING_KEY, fixed={"created_ms": NOW}, without=("retired_ms",))
SUBMITTED_RECEIPTS: Final = insert(SUBMITTED_RECEIPT, fixed={"created_ms": NOW})
