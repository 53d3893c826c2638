"""The tables of webhooks and of deliveries. They are operational: no command writes them.

Reference: features.md (Webhooks).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table

# Webhooks receive audit entries. secrets: the current secret and, until former_ends_ms, the
# previous secret, sealed together. pause_reason: NULL while the webhook is active. A webhook is
# paused when its credential ends. The credential is signed_key (the key of the owner's DID, unless
# the DID is a did:key) or key_id (an API key). expires_ms: when the credential expires. after_id:
# only entries with larger ids are sent. failing_ms: since when every attempt has failed.
# skipped_events: how many entries were left out because too many deliveries were pending.
WEBHOOK: Final = Table.of(
    "webhook",
    "id uuid PRIMARY KEY",
    "owner_did text NOT NULL",
    "url text NOT NULL",
    "events text[] NOT NULL",
    "secrets bytea NOT NULL",
    "former_ends_ms bigint",
    "pause_reason text",
    "signed_key text",
    "key_id text",
    "expires_ms bigint",
    "after_id bigint NOT NULL",
    "failing_ms bigint",
    "skipped_events bigint NOT NULL DEFAULT 0",
    "created_ms bigint NOT NULL",
    "updated_ms bigint",
)
# Deliveries of audit entries: messages to webhooks or to the `webhookUrl` of publishes, and runs of
# event triggers. target_id: the webhook, or a hash for all publishes or all event triggers of the
# owner. address: the URL of the publish, or the trigger's id. audit_id: NULL for a test. line: a
# queue of the target; the deliveries with the same target_id and line are sent in the order of
# their entries. next_ms: when a pending delivery is due; while it is leased, the end of the lease.
# ends_ms: when a pending delivery fails (unless it starts a run), or when an ended delivery is
# removed. error: why the last attempt failed, or why a run is only recorded as skipped.
EVENT_DELIVERY: Final = Table.of(
    "event_delivery",
    "id uuid PRIMARY KEY",
    "target_id uuid NOT NULL",
    "kind text NOT NULL CHECK (kind IN ('webhook', 'publish', 'trigger'))",
    "owner_did text NOT NULL",
    "address text",
    "event_type text NOT NULL",
    "audit_id bigint",
    "workflow_id uuid",
    "line uuid NOT NULL",
    "status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'failed'))",
    "attempts integer NOT NULL DEFAULT 0",
    "next_ms bigint NOT NULL",
    "ends_ms bigint NOT NULL",
    "http_status smallint",
    "error text",
    "created_ms bigint NOT NULL",
    "ended_ms bigint",
    storage="fillfactor = 85",
)
