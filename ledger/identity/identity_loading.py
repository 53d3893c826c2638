"""What the writer reads of identity: names, heirs, guardians, keys of before.

Spec: Key rotation, Name, Inheritance, Recovery request. Decisions 0230 to 0233.
"""

from __future__ import annotations

from typing import Any

import psycopg

from core.trust.recovery import Guardians, RecoveryType
from ledger.identity.switches import SWITCHES
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownInheritance, KnownName, KnownRecovery, StateCache

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
    if read_set.inheritances:
        cursor = await connection.execute(
            "SELECT s.agent_did, s.owner_did, s.heir_did, s.revision, s.status,"
            " s.status = 'armed' AND s.silent_ms >= s.limit_ms"
            f" FROM ({SWITCHES}) AS s WHERE s.agent_did = ANY(%s)",
            (list(read_set.inheritances),),
        )
        for did, *known in await cursor.fetchall():
            cache.inheritances[did] = KnownInheritance(*known)
    if read_set.recoveries:
        await _load_recoveries(connection, cache, read_set)
    if read_set.names:
        await _load_names(connection, cache, read_set)


async def _load_names(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    cursor = await connection.execute(
        "SELECT name, agent_did, owner_did, counted_did, registered_ms, expires_ms, offered_did,"
        " released_ms IS NOT NULL FROM callboard.agent_name WHERE name = ANY(%s)",
        (list(read_set.names),),
    )
    for name, *fields in await cursor.fetchall():
        cache.names[name] = KnownName(*fields)
    agents = {did: cache.agents[did] for did in read_set.named_dids}
    owners = {known.owner_did for known in agents.values() if known is not None}
    owners |= read_set.naming_dids
    if not owners:
        return
    cursor = await connection.execute(
        "SELECT counted_did, count(*) FROM callboard.agent_name"
        " WHERE counted_did = ANY(%s) AND released_ms IS NULL GROUP BY counted_did"
        " UNION ALL SELECT '@' || agent_did, count(*) FROM callboard.agent_name"
        " WHERE agent_did = ANY(%s) AND released_ms IS NULL GROUP BY agent_did",
        (list(owners), list(agents)),
    )
    cache.name_counts.update(dict.fromkeys((*owners, *(f"@{did}" for did in agents)), 0))
    cache.name_counts.update(await cursor.fetchall())


async def _load_recoveries(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    dids = list({did for _, did in read_set.recoveries})
    cursor = await connection.execute(
        "SELECT agent_did, owner_did, guardians, threshold, custodian_did, delay_hours"
        " FROM callboard.guardian_set WHERE agent_did = ANY(%s)",
        (dids,),
    )
    for did, owner_did, guardians, *terms in await cursor.fetchall():
        cache.guardians[did] = (owner_did, Guardians(tuple(guardians), *terms))
    cursor = await connection.execute(
        "SELECT id::text, agent_did, recovery_type, new_key, requested_by_did, created_ms,"
        " recovery_address, signers, status, waiting_ms, delay_ms, ended_ms,"
        " status = 'waiting' AND callboard.ready_ms_since(waiting_ms) >= delay_ms"
        " FROM callboard.recovery WHERE id = ANY(%s::uuid[])",
        ([request_id for request_id, _ in read_set.recoveries],),
    )
    for (
        request_id,
        did,
        kind,
        new_key,
        by_did,
        at_ms,
        address,
        signers,
        *rest,
    ) in await cursor.fetchall():
        cache.recoveries[request_id] = KnownRecovery(
            did, RecoveryType(kind), new_key, by_did, at_ms, address, tuple(signers), *rest
        )
    cursor = await connection.execute(
        "SELECT agent_did, count(*) FROM callboard.recovery"
        " WHERE agent_did = ANY(%s) AND status IN ('pending', 'waiting') GROUP BY agent_did",
        (dids,),
    )
    cache.open_recoveries.update(dict.fromkeys(dids, 0))
    cache.open_recoveries.update(await cursor.fetchall())
