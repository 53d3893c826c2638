"""What the writer reads of API keys: those a batch revokes with all that stand on them, those that
make others, and how many an owner has.

Decision permissions-and-keys.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from core.records.bounds import TIME_MS_MAX
from core.trust.access import ADMIN
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownKey, StateCache

# Of an owner's keys, and of those that stand on others, only what is live is read, as the indexes
# `api_key_live` and `api_key_live_child` have it: an owner may have ended any number of them.
_IS_LIVE: Final = f"""revoked_ms IS NULL AND coalesce(expires_ms, {TIME_MS_MAX})
            > (extract(epoch FROM statement_timestamp()) * 1000)::bigint"""
_FIELDS: Final = (
    "id, owner_did, parent_id, depth, expires_ms, hash, previous_hash, previous_ends_ms,"
    f" '{ADMIN}' = ANY (scopes) AS is_admin"
)
_LIVE: Final = f"""
    WITH RECURSIVE ended AS (
        (SELECT {_FIELDS} FROM callboard.api_key
        WHERE id = ANY(%s) AND revoked_ms IS NULL
        UNION
        SELECT {_FIELDS} FROM callboard.api_key
        WHERE owner_did = ANY(%s) AND {_IS_LIVE})
        UNION
        SELECT k.* FROM ended JOIN LATERAL (
            SELECT {_FIELDS} FROM callboard.api_key
            WHERE parent_id = ended.id AND {_IS_LIVE}
        ) AS k ON true
    )
    SELECT * FROM ended
    UNION
    SELECT {_FIELDS} FROM callboard.api_key
    WHERE id = ANY(%s) AND revoked_ms IS NULL
"""
_COUNTS: Final = f"""
    SELECT owner_did, count(*) FROM callboard.api_key
    WHERE owner_did = ANY(%s) AND {_IS_LIVE}
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
