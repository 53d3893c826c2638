"""What the writer reads of identity: names, and which keys that agents shall get they had before.

Spec: Key rotation, Name. Decisions 0230 and 0231.
"""

from __future__ import annotations

from typing import Any

import psycopg

from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownName, StateCache

Connection = psycopg.AsyncConnection[Any]


async def load_identity(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Fill the state cache with what a batch looks at; it is kept for that batch alone.

    After the agents: it asks for their owners.
    """
    if read_set.new_keys:
        pairs = list(read_set.new_keys)
        cursor = await connection.execute(
            "SELECT f.agent_did, f.public_key FROM callboard.former_key f"
            " JOIN unnest(%s::text[], %s::text[]) AS n(agent_did, public_key)"
            " ON f.agent_did = n.agent_did AND f.public_key = n.public_key",
            ([did for did, _ in pairs], [key for _, key in pairs]),
        )
        cache.former_keys.update(await cursor.fetchall())
    if read_set.names:
        await _load_names(connection, cache, read_set)


async def _load_names(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    cursor = await connection.execute(
        "SELECT name, agent_did, owner_did, registered_ms, expires_ms, offered_did,"
        " released_ms IS NOT NULL FROM callboard.agent_name WHERE name = ANY(%s)",
        (list(read_set.names),),
    )
    for name, *fields in await cursor.fetchall():
        cache.names[name] = KnownName(*fields)
    agents = {did: cache.agents[did] for did in read_set.named_dids}
    owners = {known.owner_did for known in agents.values() if known is not None}
    if not owners:
        return
    cursor = await connection.execute(
        "SELECT owner_did, count(*) FROM callboard.agent_name"
        " WHERE owner_did = ANY(%s) AND released_ms IS NULL GROUP BY owner_did"
        " UNION ALL SELECT '@' || agent_did, count(*) FROM callboard.agent_name"
        " WHERE agent_did = ANY(%s) AND released_ms IS NULL GROUP BY agent_did",
        (list(owners), list(agents)),
    )
    cache.name_counts.update(dict.fromkeys((*owners, *(f"@{did}" for did in agents)), 0))
    cache.name_counts.update(await cursor.fetchall())
