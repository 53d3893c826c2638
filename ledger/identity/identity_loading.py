"""What the writer reads of identity: names, heirs, guardians, keys of before.

Spec: Key rotation, Name, Inheritance, Recovery request. Decision agent-identity.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row

from core.trust.identity.recovery import RecoveryType
from ledger.identity.guardian_rows import GUARDIAN_SETS, guardian_sets, read_guardians
from ledger.identity.switches import SWITCHES
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownInheritance, KnownName, KnownRecovery, StateCache

Connection = psycopg.AsyncConnection[Any]


async def load_identity(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Fill the state cache with what a batch looks at; it is kept for that batch alone.

    After the agents: it asks for their owners.
    """
    if read_set.new_keys:
        known = {did: cache.agents.get(did) for did, _ in read_set.new_keys}
        current = {
            (did, agent.public_key)
            for did, agent in known.items()
            if agent is not None and agent.public_key is not None
        }
        pairs = list(read_set.new_keys | current)
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


async def load_recoveries(connection: Connection, cache: StateCache, read_set: ReadSet) -> None:
    """Fill the state cache with guardians and recoveries: those of the read set, and all that are
    open of its agents.

    Before the agents: who has signed a request before is judged again with it.
    """
    dids = list(read_set.guarded)
    cursor = await connection.cursor(row_factory=dict_row).execute(
        f"{GUARDIAN_SETS} WHERE g.agent_did = ANY(%s)", (dids,)
    )
    for row in await cursor.fetchall():
        cache.guardians[row["agent_did"]] = guardian_sets(row)
    if not read_set.recoveries:
        return
    cursor = await connection.cursor(row_factory=dict_row).execute(
        "SELECT r.*, r.status = 'waiting'"
        " AND callboard.ready_ms_since(r.waiting_ms) >= r.delay_ms AS is_due"
        " FROM callboard.recovery r WHERE r.id = ANY(%s::uuid[])"
        " OR r.agent_did = ANY(%s) AND r.status IN ('pending', 'waiting')",
        (list(read_set.recoveries), dids),
    )
    for row in await cursor.fetchall():
        known = _recovery(row)
        cache.recoveries[str(row["id"])] = known
        read_set.agent_dids |= known.signers.keys()
        read_set.trusted |= known.signers.keys()


def _recovery(row: dict[str, Any]) -> KnownRecovery:
    return KnownRecovery(
        row["agent_did"],
        RecoveryType(row["recovery_type"]),
        row["new_key"],
        row["requested_by_did"],
        row["created_ms"],
        row["recovery_address"],
        dict(zip(row["signers"], row["signer_keys"], strict=True)),
        row["status"],
        row["waiting_ms"],
        row["delay_ms"],
        row["ended_ms"],
        None if row["agreed"] is None else read_guardians(row["agreed"]),
        row["is_due"],
    )
