"""How long agents with a dead man's switch were silent, read in one way by the writer and by all
others.

An agent is heard by its heartbeats; a switch that requires its owner's inactivity counts that one's
commands as well. The silence begins when the switch was set at the earliest, and only counts time
in which the service was ready. Spec: Inheritance. Decision 0232.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.trust.inheritance import DAY_MS
from ledger.reads.reader import LedgerReader, RowDict

# Every switch, with `silent_ms` and `limit_ms`; void ones, of an owner of before, never run.
SWITCHES: Final = f"""
    SELECT i.*, l.heartbeat_ms, i.days * {DAY_MS}::bigint AS limit_ms,
        CASE WHEN i.status = 'armed' AND a.owner_did = i.owner_did
            THEN callboard.ready_ms_since(greatest(i.set_ms, l.heartbeat_ms, CASE
                WHEN i.requires_inactivity THEN (
                    SELECT u.created_ms FROM callboard.audit u WHERE u.actor_did = i.owner_did
                    ORDER BY u.id DESC LIMIT 1) END))
            ELSE 0 END AS silent_ms
    FROM callboard.inheritance i JOIN callboard.agent a ON a.did = i.agent_did
    LEFT JOIN callboard.agent_live l ON l.did = i.agent_did"""
_ONE: Final = sql.text(f"SELECT * FROM ({SWITCHES}) AS s WHERE s.agent_did = :did")
# Of the many, those are measured whose time would have run if the service had always been ready.
_DUE: Final = sql.text(
    f"""
    SELECT s.agent_did, s.owner_did, s.heir_did, s.revision FROM ({SWITCHES}) AS s
    WHERE s.status = 'armed' AND s.agent_did IN (
        SELECT i.agent_did FROM callboard.inheritance i
        LEFT JOIN callboard.agent_live l ON l.did = i.agent_did
        WHERE i.status = 'armed' AND greatest(i.set_ms, l.heartbeat_ms)
            < extract(epoch FROM clock_timestamp()) * 1000 - i.days * {DAY_MS}::bigint
    ) AND s.silent_ms >= s.limit_ms
    ORDER BY s.agent_did LIMIT :limit
    """
)


async def switch_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return an agent's switch, with `heartbeat_ms`, `silent_ms` and `limit_ms`."""
    rows = await reader.rows(_ONE, {"did": did})
    return rows[0] if rows else None


async def due_switches(reader: LedgerReader, *, limit: int) -> list[RowDict]:
    """Return `agent_did, owner_did, heir_did, revision` of switches that have run."""
    return await reader.rows(_DUE, {"limit": limit})
