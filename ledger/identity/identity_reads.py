"""Committed rows of identity: the keys of an agent.

Reads like those of `reader.py`, over the same pool. Spec: Key rotation; contract.md section 6.
"""

from __future__ import annotations

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent, former_key


async def key_rows(
    reader: LedgerReader, did: str, *, limit: int, offset: int, before: int | None
) -> list[RowDict]:
    """Return the keys of a DID, the current one first: `number, public_key, valid_from_ms,
    valid_until_ms`, the last null of the current one.

    Args:
        before: only keys of lower numbers.
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
    query = sql.select(keys)
    if before is not None:
        query = query.where(keys.c.number < before)
    return await reader.rows(query.order_by(keys.c.number.desc()).limit(limit).offset(offset))
