"""The audit chain: read it, newest first.

A caller sees whole entries where it is a party, with `audit:all` every one. Of the others it sees
the links: id, time and hashes (docs/decisions/0011). A filter would tell what links leave out, so
with one they are not listed. Spec: Audit entry; contract.md sections 3 (Keys) and 6 (Audit).
"""

from __future__ import annotations

import orjson

from core.errors import ErrorCode
from core.records.api.path_values import EntryPath
from core.records.api.trust import AuditEntry, AuditPage, AuditQuery
from core.trust.access import READ_ALL_AUDIT
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Reply, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import audit_id, audit_link, audit_record

ENTRY_ID_MAX = 2**63


async def list_entries(call: Call) -> Reply:
    """List audit entries, newest first.

    A page of a filter may be empty and have a `nextCursor`: so many entries were looked at.
    """
    most = call.services.settings.audit_page_max
    query = call.given(AuditQuery)
    page = page_of(call, query, default=min(100, most), most=most)
    filters = (query.event_type, query.actor_did, query.target_type, query.target_id)
    is_own_alone = any(value is not None for value in filters) and not call.holds(READ_ALL_AUDIT)
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
        party_did=call.caller.did if is_own_alone else None,
        caller=call.caller.did,
    )
    own = {audit_id(row) for row in rows} if is_own_alone else await _own(call, rows)
    reply = listed(
        "entries",
        rows,
        page,
        audit_id,
        form=lambda row: audit_record(row) if audit_id(row) in own else audit_link(row),
        is_cut=rows.is_cut,
        looked_to=rows.looked_to,
    )
    return Reply(reply)


async def get_entry(call: Call) -> Reply:
    """Read one audit entry."""
    number = call.given(EntryPath).audit_id
    rows = await call.services.reader.audit(limit=1, before_id=min(number + 1, ENTRY_ID_MAX - 1))
    if not rows or audit_id(rows[0]) != number:
        raise not_found(f"the audit entry {number}")
    own = await _own(call, rows)
    return Reply(audit_record(rows[0]) if number in own else audit_link(rows[0]))


async def _own(call: Call, rows: list[RowDict]) -> set[int]:
    """Return the ids of the entries that the caller sees whole: of those that `of_party` means."""
    if call.holds(READ_ALL_AUDIT):
        return {audit_id(row) for row in rows}
    did = call.caller.did
    # Canonical JSON: a quotation mark inside a text is escaped, so only a whole text matches.
    named = orjson.dumps(did).decode()
    own = {audit_id(row) for row in rows if named in row["body"]}
    workflow_ids = {str(row["workflow_id"]) for row in rows if row["workflow_id"] is not None}
    payers = await call.services.reader.payers(workflow_ids)
    return own | {audit_id(row) for row in rows if payers.get(str(row["workflow_id"])) == did}


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/audit",
        handler=list_entries,
        summary="List audit entries, newest first",
        scope="audit:read",
        rate=RateClass.READ,
        tag="audit",
        reply=AuditPage,
        query=AuditQuery,
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
    Operation(
        method="GET",
        path="/v1/audit/{audit_id}",
        path_values=EntryPath,
        handler=get_entry,
        summary="Read an audit entry",
        scope="audit:read",
        rate=RateClass.READ,
        tag="audit",
        reply=AuditEntry,
        errors=(ErrorCode.INVALID_REQUEST, ErrorCode.NOT_FOUND),
    ),
)
