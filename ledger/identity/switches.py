"""How long agents with a dead man's switch were silent, read in one way by the writer and by all
others.

An agent is heard by its heartbeats; a switch that requires its owner's inactivity counts that one's
commands as well. The silence begins when the switch was set at the earliest, and only counts time
in which the service was ready. Reference: features.md (Inheritance). Decision agent-identity.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.trust.identity.inheritance import DAY_MS
from ledger.reads.reader import LedgerReader, RowDict

# Every switch, with `silent_ms` and `limit_ms`; void ones, of an owner of before or of an unproven
# claim, never run.
SWITCHES: Final = f"""
    SELECT i.*, l.heartbeat_ms, i.days * {DAY_MS}::bigint AS limit_ms,
        CASE WHEN i.status = 'armed' AND a.owner_did = i.owner_did
                AND a.proven_by IS NOT NULL
            THEN callboard.ready_ms_since(greatest(i.set_ms, l.heartbeat_ms, CASE
                WHEN i.requires_inactivity THEN (
                    SELECT u.created_ms FROM callboard.audit u WHERE u.actor_did = i.owner_did
                    ORDER BY u.id DESC LIMIT 1) END))
            ELSE 0 END AS silent_ms
    FROM callboard.inheritance i JOIN callboard.agent a ON a.did = i.agent_did
    LEFT JOIN callboard.agent_live l ON l.did = i.agent_did"""
_ONE: Final = sql.text(f"SELECT * FROM ({SWITCHES}) AS s WHERE s.agent_did = :did")
# A few at a time, in the order of the index `inheritance_switch`: heartbeats keep nearly all from
# running, so no index tells which are due. Those are measured whose time would have run if the
# service had always been ready.
_DUE: Final = sql.text(
    f"""
    SELECT s.agent_did, s.owner_did, s.heir_did, s.revision,
        CASE WHEN s.status = 'armed' AND greatest(s.set_ms, s.heartbeat_ms) + s.limit_ms
                < extract(epoch FROM clock_timestamp()) * 1000
            THEN s.silent_ms >= s.limit_ms ELSE false END AS is_due
    FROM ({SWITCHES}) AS s
    WHERE s.agent_did IN (
        SELECT i.agent_did FROM callboard.inheritance i
        WHERE i.status = 'armed' AND i.agent_did > :after
        ORDER BY i.agent_did LIMIT :limit
    )
    ORDER BY s.agent_did
    """
)


async def switch_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return an agent's switch, with `heartbeat_ms`, `silent_ms` and `limit_ms`."""
    return await reader.row(_ONE, {"did": did})


async def due_switches(
    reader: LedgerReader, *, after: str, limit: int
) -> tuple[list[RowDict], str]:
    """Return `agent_did, owner_did, heir_did, revision` of switches that have run.

    Args:
        after: the agent that was looked at last, "" to begin.
        limit: switches that are looked at.

    Returns: those of them that have run, and the agent to go on after, "" when all were looked at.
    """
    rows = await reader.rows(_DUE, {"after": after, "limit": limit})
    last = rows[-1]["agent_did"] if len(rows) == limit else ""
    return [row for row in rows if row["is_due"]], last
