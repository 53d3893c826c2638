"""What the writer reads of API keys: single ones, how many an owner has, and which end with one.

An owner's key may have others that stand on it, and those again; all end with it. Decision
permissions-and-keys.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import psycopg

from core.records.bounds import TIME_MS_MAX
from core.trust.access import ADMIN
from ledger.connections.connecting import fetch
from ledger.writer.state_cache import KnownKey

# Of an owner's keys, and of those that stand on others, only what is live is read, as the indexes
# `api_key_live` and `api_key_live_child` have it: an owner may have ended any number of them.
_IS_LIVE: Final = f"""revoked_ms IS NULL AND coalesce(expires_ms, {TIME_MS_MAX})
            > (extract(epoch FROM statement_timestamp()) * 1000)::bigint"""
_KEYS: Final = f"""
    SELECT id, owner_did, parent_id, depth, expires_ms, hash, previous_hash, previous_ends_ms,
        '{ADMIN}' = ANY (scopes)
    FROM callboard.api_key WHERE id = ANY(%(ids)s) AND revoked_ms IS NULL
"""
_LIVE: Final = f"""
    WITH RECURSIVE ended AS (
        (SELECT id, owner_did, depth FROM callboard.api_key
        WHERE id = %(id)s AND revoked_ms IS NULL
        UNION
        SELECT id, owner_did, depth FROM callboard.api_key
        WHERE owner_did = %(owner)s AND {_IS_LIVE})
        UNION
        SELECT k.* FROM ended JOIN LATERAL (
            SELECT id, owner_did, depth FROM callboard.api_key
            WHERE parent_id = ended.id AND {_IS_LIVE}
        ) AS k ON true
    )
    SELECT id, owner_did FROM ended ORDER BY depth, id
"""
_COUNT: Final = f"""
    SELECT count(*) FROM callboard.api_key WHERE owner_did = %(owner)s AND {_IS_LIVE}
"""

Connection = psycopg.AsyncConnection[Any]


async def read_keys(connection: Connection, ids: Collection[str]) -> dict[str, KnownKey]:
    """Return the API keys with these ids that were not revoked, by id."""
    rows = await fetch(connection, _KEYS, {"ids": list(ids)})
    return {key_id: KnownKey(*fields) for key_id, *fields in rows}


async def count_keys(connection: Connection, owner_did: str) -> int:
    """Return how many live API keys an owner has."""
    ((count,),) = await fetch(connection, _COUNT, {"owner": owner_did})
    return int(count)


async def keys_below(connection: Connection, key_id: str) -> list[str]:
    """Return the id of a key and of every live key that stands on it, parents first."""
    return [found for found, _ in await fetch(connection, _LIVE, {"id": key_id, "owner": None})]


async def others_keys_below(connection: Connection, owner_did: str) -> list[str]:
    """Return the ids of other owners' live keys that stand on a key of this owner."""
    rows = await fetch(connection, _LIVE, {"id": None, "owner": owner_did})
    return [key_id for key_id, did in rows if did != owner_did]
