"""The tables of capability versions: whose line of versions a capability has, and the versions.

Reference: features.md (Capability versions). Decision versions-and-schemas.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import CHANGED, NOW, Guard, change, insert, upsert

# The owner of a capability's versions, and how many versions it has. is_assigned: an administrator
# assigned the owner, so no other owner takes the capability over.
CAPABILITY_LINE: Final = Table.of(
    "capability_line",
    "capability_id text PRIMARY KEY",
    "owner_did text NOT NULL",
    "versions integer NOT NULL CHECK (versions BETWEEN 1 AND 1000)",
    "is_assigned boolean NOT NULL DEFAULT false",
)
# Versions never change and are never removed; each can be deprecated once, in favour of another.
# Schemas are JSON texts in their canonical form; schema_hash is over both.
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

CAPABILITY_LINES: Final = upsert("capability_lines", CAPABILITY_LINE, ("capability_id",))
# After its line, which it refers to.
CAPABILITY_VERSIONS: Final = insert(
    "capability_versions",
    CAPABILITY_VERSION,
    fixed={"published_ms": NOW, "status": "'active'", "changed_id": CHANGED},
    without=("successor", "deprecated_ms"),
)
DEPRECATED_VERSIONS: Final = change(
    "deprecated_versions",
    CAPABILITY_VERSION,
    ["id", "successor"],
    key=("id",),
    where="o.status = 'active'",
    computed={"status": "'deprecated'", "deprecated_ms": NOW, "changed_id": CHANGED},
    guard=Guard("CB003", "a version would be deprecated twice"),
)
