"""The tables of history and of the fence: head, commands, the audit chain and its events.

money.md (Commands and keys, Audit chain); decisions ledger-writer and audit-chain.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, insert

# The counters and the hash are moved by the triggers on `entry` and `audit` alone.
# One row: the fence (epoch), the gap-free counters and the head of the audit chain.
# address: the name of the writer's actor (ledger/shards/head_row.py), '' before the first writer.
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
# Idempotency: the key of every command that was decided, with the stored answer.
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
# One entry per command. The columns beside body and hash serve searches: the types of its events,
# the actor of the command, the workflow that one of its events is about.
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
# The events that are found by their type and their target: all but those that every workflow goes
# through. number: the event's place in its entry.
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

COMMANDS: Final = insert("commands", COMMAND, fixed={"created_ms": NOW}, is_frequent=True)
# Canonical JSON has no line feeds.
AUDIT_ENTRIES: Final = insert(
    "audit", AUDIT, fixed={"created_ms": NOW}, is_frequent=True, lines="body"
)
AUDIT_EVENTS: Final = insert("audit_events", AUDIT_EVENT)
AUDIT_PARTIES: Final = insert("audit_parties", AUDIT_PARTY, is_frequent=True)
