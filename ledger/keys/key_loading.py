"""What the writer reads of API keys: those a batch revokes with all that stand on them, those that
make others, and how many an owner has.

contract.md section 3 (Keys); decision 0107.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownKey, StateCache

_LIVE: Final = """
    WITH RECURSIVE ended AS (
        SELECT id, owner_did, parent_id, depth, expires_ms, hash FROM callboard.api_key
        WHERE (id = ANY(%s) OR owner_did = ANY(%s)) AND revoked_ms IS NULL
        UNION
        SELECT k.id, k.owner_did, k.parent_id, k.depth, k.expires_ms, k.hash
        FROM callboard.api_key k JOIN ended ON k.parent_id = ended.id
        WHERE k.revoked_ms IS NULL
    )
    SELECT * FROM ended
    UNION
    SELECT id, owner_did, parent_id, depth, expires_ms, hash FROM callboard.api_key
    WHERE id = ANY(%s) AND revoked_ms IS NULL
"""
_COUNTS: Final = """
    SELECT owner_did, count(*) FROM callboard.api_key
    WHERE owner_did = ANY(%s) AND revoked_ms IS NULL
        AND (expires_ms IS NULL OR expires_ms > extract(epoch FROM clock_timestamp()) * 1000)
    GROUP BY owner_did
"""


async def load_keys(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, read_set: ReadSet
) -> None:
    """Fill the state cache with the keys of a batch; they are kept for that batch alone."""
    if read_set.key_ids or read_set.parent_keys or read_set.ended_owners:
        cursor = await connection.execute(
            _LIVE,
            (list(read_set.key_ids), list(read_set.ended_owners), list(read_set.parent_keys)),
        )
        for key_id, *fields in await cursor.fetchall():
            cache.live_keys[key_id] = KnownKey(*fields)
    if read_set.key_owners:
        cursor = await connection.execute(_COUNTS, (list(read_set.key_owners),))
        cache.key_counts.update(await cursor.fetchall())
