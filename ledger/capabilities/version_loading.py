"""What the writer reads of capability versions: a line and single versions by their keys.

Spec: Capability version. Decision versions-and-schemas.
"""

from __future__ import annotations

from typing import Any

import psycopg

from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownLine, StateCache

Connection = psycopg.AsyncConnection[Any]


async def load_versions(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Fill the state cache with what a batch looks at; it is kept for that batch alone."""
    if not read_set.capability_ids:
        return
    cursor = await connection.execute(
        "SELECT capability_id, owner_did, versions, is_assigned FROM callboard.capability_line"
        " WHERE capability_id = ANY(%s)",
        (list(read_set.capability_ids),),
    )
    for capability_id, *fields in await cursor.fetchall():
        cache.lines[capability_id] = KnownLine(*fields)
    cursor = await connection.execute(
        "SELECT id, status = 'active' FROM callboard.capability_version WHERE id = ANY(%s)",
        (list(read_set.version_ids),),
    )
    cache.versions.update(await cursor.fetchall())
    if not read_set.line_owners:
        return
    # An administrator's version counts for the owner of the line that there is.
    owners = read_set.line_owners | {line.owner_did for line in cache.lines.values()}
    cache.version_counts.update(dict.fromkeys(owners, 0))
    cursor = await connection.execute(
        "SELECT owner_did, sum(versions)::integer FROM callboard.capability_line"
        " WHERE owner_did = ANY(%s) GROUP BY owner_did",
        (list(owners),),
    )
    cache.version_counts.update(await cursor.fetchall())
