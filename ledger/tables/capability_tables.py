"""The tables of capability versions: whose line of versions a capability has, and the versions.

Spec: Capability version. Decision versions-and-schemas.
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, Guard, change, insert, upsert

CAPABILITY_LINE: Final = Table.of(
    "capability_line",
    "capability_id text",
    "owner_did text",
    "versions integer",
    "is_assigned boolean = false",
)
CAPABILITY_VERSION: Final = Table.of(
    "capability_version",
    "id text",
    "capability_id text",
    "version text",
    "input_schema text",
    "output_schema text",
    "schema_hash text",
    "changelog text",
    "published_by_did text",
    "published_ms bigint",
    "status text",
    "successor text",
    "deprecated_ms bigint",
)

CAPABILITY_LINES: Final = upsert("capability_lines", CAPABILITY_LINE, ("capability_id",))
# After its line, which it refers to.
CAPABILITY_VERSIONS: Final = insert(
    "capability_versions",
    CAPABILITY_VERSION,
    fixed={"published_ms": NOW, "status": "'active'"},
    without=("successor", "deprecated_ms"),
)
DEPRECATED_VERSIONS: Final = change(
    "deprecated_versions",
    CAPABILITY_VERSION,
    ["id", "successor"],
    key=("id",),
    where="o.status = 'active'",
    computed={"status": "'deprecated'", "deprecated_ms": NOW},
    guard=Guard("CB003", "a version would be deprecated twice"),
)
