"""The audit chain: read it, newest first.

A caller sees whole entries where it is a party, with `audit:all` every one. Of the others it sees
id, type and hash: what shows that its own have their places. A filter would tell what those leave
out, so with one they are not listed. Reference: money.md (Audit chain). Decision audit-chain.
"""

from __future__ import annotations

from typing import Final

from core.errors import ErrorCode
from core.records.api.path_values import EntryPath
from core.records.api.trust import AuditEntry, AuditPage, AuditQuery
from core.trust.access import READ_ALL_AUDIT
from serve_app.http.calls import Call, Operations, Reply, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import audit_id, audit_link, audit_record

PAGE_MAX: Final = 1_000

ENTRY_ID_MAX = 2**63

OPERATIONS = Operations("audit")


@OPERATIONS.add("GET", "/v1/audit", query=AuditQuery, reply=AuditPage)
async def list_entries(call: Call) -> Reply:
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
        limit=page.limit + 1,
        offset=page.offset,
        before_id=number_after(page),
        bytes_max=page.bytes_max,
        party_did=did if is_filtered else None,
        caller=call.caller.did,
    )
    ids = {audit_id(row) for row in rows}
    if did is not None and not is_filtered:
        ids = await call.services.reader.own_audit_ids(did, ids)
    reply = listed(
        "entries",
        rows,
        page,
        audit_id,
        form=lambda row: audit_record(row) if audit_id(row) in ids else audit_link(row),
        is_cut=rows.is_cut,
        looked_to=rows.looked_to,
    )
    return Reply(reply)


@OPERATIONS.add(
    "GET",
    "/v1/audit/{audit_id}",
    reply=AuditEntry,
    errors=(ErrorCode.NOT_FOUND,),
)
async def get_entry(call: Call) -> Reply:
    """Read an audit entry."""
    number = call.given(EntryPath).audit_id
    sees_all = call.holds(READ_ALL_AUDIT)
    rows = await call.services.reader.audit(limit=1, before_id=min(number + 1, ENTRY_ID_MAX - 1))
    if not rows or audit_id(rows[0]) != number:
        raise not_found(f"the audit entry {number}")
    if not sees_all and not await call.services.reader.own_audit_ids(call.caller.did, {number}):
        return Reply(audit_link(rows[0]))
    return Reply(audit_record(rows[0]))
