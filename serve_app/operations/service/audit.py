"""The audit chain: read it, newest first.

A caller sees an entry whole if it is a party of it, if it has `audit:all`, or if the entry names a
signing key. Of every other entry it sees `id`, `eventType` and `hash`: what shows that its own have
their places. A filter would tell what those leave out, so with one they are not listed.
Reference: money.md (Audit chain). Decision audit-chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.records.api.kinds import ENTRY_ID_MAX
from core.records.api.trust import AuditEntry, AuditPage, AuditQuery
from core.records.audit import PUBLIC_EVENTS
from core.trust.access import READ_ALL_AUDIT
from serve_app.http.calls import Call, Json, Operations, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import Row, audit_id, audit_link, audit_record

PAGE_MAX: Final = 1_000

OPERATIONS = Operations("audit")


@OPERATIONS.add("GET", "/v1/audit", query=AuditQuery, reply=AuditPage)
async def list_entries(call: Call) -> Json:
    """List audit entries, newest first.

    A page of a filter may be empty and have a `nextCursor`: so many entries were looked at.
    """
    query = call.given(AuditQuery)
    page = page_of(call, query, default=100, most=PAGE_MAX)
    given = (query.event_type, query.actor_did, query.target_type, query.target_id)
    times = (query.start_time, query.end_time)
    is_filtered = any(value is not None for value in (*given, *times))
    did = None if call.holds(READ_ALL_AUDIT) else call.caller.did
    rows = await call.services.reader.audit(
        event_type=query.event_type,
        actor_did=query.actor_did,
        target_type=query.target_type,
        target_id=query.target_id,
        start_ms=query.start_time,
        end_ms=query.end_time,
        before_id=number_after(page),
        bytes_max=page.bytes_max,
        party_did=did if is_filtered else None,
        caller=call.caller.did,
        **page.rows,
    )
    ids = await whole_ids(call, rows)
    return listed(
        "entries",
        rows,
        page,
        audit_id,
        form=lambda row: audit_record(row) if audit_id(row) in ids else audit_link(row),
        is_cut=rows.is_cut,
        looked_to=rows.looked_to,
    )


@OPERATIONS.add("GET", "/v1/audit/{audit_id}", reply=AuditEntry)
async def get_entry(call: Call) -> Json:
    """Read an audit entry."""
    number = call.path_values["audit_id"]
    rows = await call.services.reader.audit(limit=1, before_id=min(number + 1, ENTRY_ID_MAX))
    if not rows or audit_id(rows[0]) != number:
        raise not_found(f"the audit entry {number}")
    is_whole = number in await whole_ids(call, rows)
    return audit_record(rows[0]) if is_whole else audit_link(rows[0])


async def whole_ids(call: Call, rows: Sequence[Row]) -> set[int]:
    """Return the ids of those entries that the caller sees whole.

    Args:
        rows: the entries.
    """
    ids = {audit_id(row) for row in rows}
    if call.holds(READ_ALL_AUDIT):
        return ids
    public = {audit_id(row) for row in rows if row["event_types"][0] in PUBLIC_EVENTS}
    return public | await call.services.reader.own_audit_ids(call.caller.did, ids - public)
