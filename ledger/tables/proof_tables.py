"""The tables of proofs: the keys with which the deployment signs, and receipts of others.

Reference: money.md (Signing keys), features.md (Receipts).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, change, insert

# One key is in use, the one without retired_ms. sealed: the private half of that one; a retired key
# signs nothing any more. audit_id: the entry that names its public half.
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
# A receipt of a node's agent, its owner or the payer. body: as it was sent, in canonical form.
# is_verified: whether its signature is valid by the registered key; NULL without one of both.
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
    "retired_signing_keys",
    SIGNING_KEY,
    ["key_id"],
    key=("key_id",),
    where="o.retired_ms IS NULL",
    computed={"retired_ms": NOW, "sealed": "NULL"},
)
SIGNING_KEYS: Final = insert(
    "signing_keys", SIGNING_KEY, fixed={"created_ms": NOW}, without=("retired_ms",)
)
SUBMITTED_RECEIPTS: Final = insert(
    "submitted_receipts", SUBMITTED_RECEIPT, fixed={"created_ms": NOW}
)
