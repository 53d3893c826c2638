"""Reads of identity: keys, names and guardians of agents, and recoveries.

Reference: features.md (Key rotation, Names, Recovery). Decision agent-identity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sql

from core.trust.identity.succession import HOUR_MS, Guardians, GuardianSets
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent, agent_name, former_key, recovery
from ledger.tables.table import Row

# Reads of guardians that the writer and other processes share. The time for which replaced
# guardians are still valid counts only while the service was ready, like the delays of recoveries.

# A row of guardian_set with `counting`: the replaced sets that are still valid.
GUARDIAN_SETS: Final = f"""
    SELECT g.agent_did, g.owner_did, g.guardians, g.threshold, g.custodian_did, g.delay_hours,
        g.set_ms, g.number, g.struck_number, coalesce((
            SELECT json_agg(one) FROM json_array_elements(g.replaced) AS one
            WHERE callboard.ready_ms_since((one ->> 'replaced_ms')::bigint)
                < (one ->> 'delay_hours')::bigint * {HOUR_MS}), '[]') AS counting
    FROM callboard.guardian_set g"""


def guardian_sets(row: Mapping[str, Any]) -> GuardianSets:
    """Return the guardians in a row of `GUARDIAN_SETS`."""
    return GuardianSets(
        row["owner_did"],
        read_guardians(row),
        tuple(map(read_guardians, row["counting"])),
        row["struck_number"],
    )


def read_guardians(stored: Mapping[str, Any]) -> Guardians:
    """Return a set of guardians from its JSON members or its columns."""
    return Guardians(
        tuple(stored["guardians"]),
        stored["threshold"],
        stored["custodian_did"],
        stored["delay_hours"],
        stored["number"],
        stored.get("replaced_ms"),
    )


def guardians_row(did: str, sets: GuardianSets) -> Row:
    """Return the row that stores an agent's guardians."""
    current = asdict(sets.current)
    del current["replaced_ms"]
    return {
        "agent_did": did,
        "owner_did": sets.owner_did,
        **current,
        "replaced": [asdict(one) for one in sets.replaced] or None,
        "struck_number": sets.struck_number,
    }


# Reads of keys, names, guardians and recoveries.

# Maximum number of keys that are tried for one signature.
KEYS_TRIED_MAX: Final = 4


async def key_rows(
    reader: LedgerReader, did: str, *, before: int | None, **page: Any
) -> list[RowDict]:
    """Return the keys of a DID, current key first: `number, public_key, valid_from_ms,
    valid_until_ms`. `valid_until_ms` of the current key is null.

    Args:
        before: only keys with a lower number; None: all.
        page: `limit` and `offset`.
    """
    current = sql.select(
        agent.c.key_number.label("number"),
        agent.c.public_key,
        sql.func.coalesce(agent.c.key_from_ms, agent.c.registered_ms).label("valid_from_ms"),
        sql.null().cast(sql.BigInteger).label("valid_until_ms"),
    ).where(agent.c.did == did, agent.c.public_key.is_not(None))
    former = sql.select(
        former_key.c.number,
        former_key.c.public_key,
        former_key.c.valid_from_ms,
        former_key.c.valid_until_ms,
    ).where(former_key.c.agent_did == did)
    keys = sql.union_all(current, former).subquery()
    return await reader.listed(sql.select(keys), "number", before, is_newest_first=True, **page)


async def newest_keys(
    reader: LedgerReader, did: str, most: int = KEYS_TRIED_MAX
) -> tuple[str, ...]:
    """Return at most `most` of a DID's newest keys, current key first."""
    rows = await key_rows(reader, did, limit=most, offset=0, before=None)
    return tuple(row["public_key"] for row in rows)


def _is_taken(at_ms: int) -> sql.ColumnElement[bool]:
    return agent_name.c.released_ms.is_(None) & (agent_name.c.expires_ms > at_ms)


async def name_row(reader: LedgerReader, name: str, *, at_ms: int) -> RowDict | None:
    """Return the row of a name that is taken at a time (Unix milliseconds), None if it is not
    taken."""
    query = sql.select(agent_name).where(agent_name.c.name == name, _is_taken(at_ms))
    return await reader.row(query)


async def name_rows(
    reader: LedgerReader, agent_did: str, *, at_ms: int, after_name: str | None, **page: Any
) -> list[RowDict]:
    """Return the names that an agent has at a time, in alphabetical order."""
    query = sql.select(agent_name).where(agent_name.c.agent_did == agent_did, _is_taken(at_ms))
    return await reader.listed(query, "name", after_name, **page)


async def expired_names(reader: LedgerReader, *, at_ms: int, limit: int) -> list[tuple[str, int]]:
    """Return (name, expiry) of names that have expired and are not released, earliest first."""
    query = (
        sql.select(agent_name.c.name, agent_name.c.expires_ms)
        .where(agent_name.c.released_ms.is_(None), agent_name.c.expires_ms <= at_ms)
        .order_by(agent_name.c.expires_ms, agent_name.c.name)
        .limit(limit)
    )
    return [(row["name"], row["expires_ms"]) for row in await reader.rows(query)]


_GUARDIANS: Final = sql.text(
    f"SELECT s.* FROM ({GUARDIAN_SETS} WHERE g.agent_did = :did) AS s"
    " JOIN callboard.agent a ON a.did = s.agent_did AND a.owner_did = s.owner_did"
)


async def guardian_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return an agent's guardians, a row of `GUARDIAN_SETS`; None if its current owner named
    none."""
    return await reader.row(_GUARDIANS, {"did": did})


async def current_keys(reader: LedgerReader, dids: Collection[str]) -> dict[str, str]:
    """Return the current keys of these DIDs; a DID that is no agent with a key is left out."""
    query = sql.select(agent.c.did, agent.c.public_key).where(
        agent.c.did.in_(list(dids)), agent.c.public_key.is_not(None)
    )
    return {row["did"]: row["public_key"] for row in await reader.rows(query)}


_READY_MS: Final = sql.func.callboard.ready_ms_since(recovery.c.waiting_ms)


async def recovery_row(reader: LedgerReader, recovery_id: str) -> RowDict | None:
    """Return a recovery. `ready_ms`: how much of its delay has passed."""
    query = sql.select(recovery, _READY_MS.label("ready_ms")).where(recovery.c.id == recovery_id)
    return await reader.row(query)


# Only the recoveries that are due by the clock are measured in ready time.
_DUE: Final = sql.text("""
    SELECT id, agent_did, new_key FROM callboard.recovery
    WHERE status = 'waiting'
        AND waiting_ms + delay_ms <= extract(epoch FROM clock_timestamp()) * 1000
        AND delay_ms <= callboard.ready_ms_since(waiting_ms)
    ORDER BY waiting_ms LIMIT :limit
""")


async def due_recoveries(reader: LedgerReader, *, limit: int) -> list[RowDict]:
    """Return `id, agent_did, new_key` of recoveries whose delay has passed, earliest first."""
    return await reader.rows(_DUE, {"limit": limit})
