"""The tables of history and of the fence: head, commands, the audit chain and its events.

money.md (Commands and keys, Audit chain); decisions ledger-writer and audit-chain.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, insert

# The counters and the hash are moved by the triggers on `entry` and `audit` alone.
HEAD: Final = Table.of(
    "head",
    "epoch bigint",
    "entry_seq bigint",
    "audit_seq bigint",
    "hash bytea",
    "address text",
)
COMMAND: Final = Table.of(
    "command",
    "id text",
    "request_hash bytea",
    "result json",
    "error text",
    "detail text",
    "audit_id bigint",
    "created_ms bigint",
)
AUDIT: Final = Table.of(
    "audit",
    "id bigint",
    "event_types text[]",
    "actor_did text",
    "workflow_id uuid",
    "created_ms bigint",
    "body text",
    "hash bytea",
)
AUDIT_EVENT: Final = Table.of(
    "audit_event",
    "audit_id bigint",
    "number integer",
    "event_type text",
    "target_type text",
    "target_id text",
)
# Written by `index_parties` alone.
AUDIT_PARTY: Final = Table.of("audit_party", "party text", "audit_id bigint")

COMMANDS: Final = insert("commands", COMMAND, fixed={"created_ms": NOW}, is_frequent=True)
# Canonical JSON has no line feeds.
AUDIT_ENTRIES: Final = insert(
    "audit", AUDIT, fixed={"created_ms": NOW}, is_frequent=True, lines="body"
)
AUDIT_EVENTS: Final = insert("audit_events", AUDIT_EVENT)
