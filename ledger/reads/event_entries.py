"""Reads pages of audit entries for event streams. Each entry has those of its parties for which
streams ask.

Reference: features.md (Streams).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import sqlalchemy as sql

from core.records.audit import AuditEventType
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import audit, audit_party

PAGE_ENTRIES: Final = 500
PAGE_BYTES: Final = 256 * 1024
# Events that end a workflow.
END_EVENTS: Final = frozenset({AuditEventType.WORKFLOW_FINISHED, AuditEventType.WORKFLOW_CANCELLED})


class RequestedEntries(NamedTuple):
    """The entries that a stream asks for: those of a workflow; without a workflow those of a party;
    without both all entries.

    If both are given, the stream shows only the workflow's entries to which the party is a party.
    """

    workflow_id: str | None
    party: str | None


async def entries_between(
    reader: LedgerReader, after: int, last: int, asked: Collection[RequestedEntries]
) -> tuple[list[RowDict], int]:
    """Return a page of entries, and the id up to which the log was read.

    Args:
        after, last: the range of entry ids; the first is excluded.
        asked: the entries that streams ask for. In a returned entry `parties` contains only parties
            that are named here.
    """
    parties = {one.party for one in asked} - {None}
    workflows = {one.workflow_id for one in asked} - {None}
    named = sql.select(audit_party.c.party).where(
        audit_party.c.audit_id == audit.c.id, audit_party.c.party.in_(parties)
    )
    is_in_range = audit.c.id.between(after + 1, last)
    query = sql.select(
        *(audit.c[name] for name in ("id", "event_types", "body", "hash")),
        sql.cast(audit.c.workflow_id, sql.Text).label("workflow_id"),
        sql.func.array(named.scalar_subquery()).label("parties"),
    ).where(is_in_range)
    if RequestedEntries(None, None) not in asked:
        about = sql.select(audit.c.id).where(audit.c.workflow_id.in_(workflows), is_in_range)
        # With one party, IN is an equality, so the index gives the order. `distinct`, because an
        # entry may have several of the parties.
        own = sql.select(audit_party.c.audit_id.label("id")).where(
            audit_party.c.party.in_([one.party for one in asked if one.workflow_id is None]),
            audit_party.c.audit_id.between(after + 1, last),
        )
        first = own.distinct().order_by("id").limit(PAGE_ENTRIES)
        # OFFSET 0 and LIMIT keep the planner from scanning the whole log.
        wanted = sql.union_all(*(sql.select(one.subquery()) for one in (first, about.offset(0))))
        query = query.where(audit.c.id.in_(wanted))
    page = await reader.page(
        query, "id", wide="body", limit=PAGE_ENTRIES, offset=0, bytes_max=PAGE_BYTES
    )
    is_whole = not page.is_cut and len(page) < PAGE_ENTRIES
    return page, last if is_whole else page[-1]["id"]


async def end_entry_id(reader: LedgerReader, workflow_id: str) -> int:
    """Return the id of the entry that ended a workflow, 0 before its end."""
    is_end = audit.c.event_types.overlap([*END_EVENTS])
    query = sql.select(audit.c.id).where(audit.c.workflow_id == workflow_id, is_end)
    rows = await reader.rows(query)
    return min((int(row["id"]) for row in rows), default=0)
