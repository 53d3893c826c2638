"""What the writer reads of identity: which of the keys that agents shall get were theirs before.

Spec: Key rotation. Decision 0230.
"""

from __future__ import annotations

from typing import Any

import psycopg

from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import StateCache


async def load_identity(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, read_set: ReadSet
) -> None:
    """Fill the state cache with what a batch looks at; it is kept for that batch alone."""
    if read_set.new_keys:
        pairs = list(read_set.new_keys)
        cursor = await connection.execute(
            "SELECT f.agent_did, f.public_key FROM callboard.former_key f"
            " JOIN unnest(%s::text[], %s::text[]) AS n(agent_did, public_key)"
            " ON f.agent_did = n.agent_did AND f.public_key = n.public_key",
            ([did for did, _ in pairs], [key for _, key in pairs]),
        )
        cache.former_keys.update(await cursor.fetchall())
