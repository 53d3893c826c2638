"""Escrows that no command has ended although their workflow's time is over: money that is stuck.

Reference: money.md (Settlement, Escrow).
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader
from ledger.schema import escrow, workflow


@dataclass(frozen=True, slots=True)
class Overdue:
    """How many escrows are held past their deadline, and the workflows that wait longest."""

    count: int
    oldest_ids: tuple[str, ...]


async def held_past_deadline(reader: LedgerReader, before_ms: int, *, limit: int) -> Overdue:
    """Return the held escrows whose workflow should have ended before this time.

    By the index of held escrows, so that it costs what runs and not what ever ran. Whatever the
    workflow's status: one that has ended must not hold money either.

    Args:
        before_ms: Unix time, ms.
        limit: how many workflows are named at most.
    """
    query = (
        sql.select(workflow.c.id, sql.func.count().over().label("found"))
        .join(escrow, escrow.c.workflow_id == workflow.c.id)
        .where(escrow.c.status == "held", workflow.c.deadline_ms < before_ms)
        .order_by(workflow.c.deadline_ms, workflow.c.id)
        .limit(limit)
    )
    rows = await reader.rows(query)
    return Overdue(rows[0]["found"] if rows else 0, tuple(str(row["id"]) for row in rows))
