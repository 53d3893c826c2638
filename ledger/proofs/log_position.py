"""How far each reader of the audit log has read: the id of an entry, under the reader's name.

A reader moves its position after it has processed the entries. If it ends before that, its
successor reads them again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import sqlalchemy as sql

from ledger.connections.pools import OperationalPool
from ledger.reads.reader import LedgerReader


class LogFollower(StrEnum):
    """Everything that follows the audit log by its position. Closed."""

    TRACES = "traces"
    EVENTS = "events"


_POSITION: Final = sql.text(
    "SELECT p.audit_id, h.audit_seq FROM callboard.head AS h"
    " LEFT JOIN callboard.log_position AS p ON p.reader = :name"
)
_MOVE: Final = sql.text(
    "INSERT INTO callboard.log_position AS p (reader, audit_id) VALUES (:name, :audit_id)"
    " ON CONFLICT (reader) DO UPDATE SET audit_id = greatest(p.audit_id, excluded.audit_id)"
)


async def log_position(
    pool: OperationalPool, reader: LedgerReader, name: LogFollower
) -> tuple[int, int]:
    """Return the last entry that a follower has read, and the newest one.

    A new follower begins at the newest entry.
    """
    (row,) = await reader.rows(_POSITION, {"name": name})
    read, newest = row["audit_id"], int(row["audit_seq"])
    if read is None:
        await move_position(pool, name, newest)
        return newest, newest
    return int(read), newest


async def move_position(pool: OperationalPool, name: LogFollower, audit_id: int) -> None:
    """Move a reader's position to this entry; it never goes back."""
    await pool.rows(_MOVE, {"name": name, "audit_id": audit_id})
