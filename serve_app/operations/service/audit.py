"""The audit chain: read it, newest first.

A caller with `audit:read` sees the whole chain, because only the whole chain can be verified
(docs/decisions/0011). Spec: Audit entry; contract.md section 6 (Audit).
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.records.api.path_values import EntryPath
from core.records.api.trust import AuditEntry, AuditPage, AuditQuery
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Reply, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import audit_id, audit_record

ENTRY_ID_MAX = 2**63


async def list_entries(call: Call) -> Reply:
    """List audit entries, newest first.

    A page of a filter without an index may be empty and have a `nextCursor`: so many entries were
    looked at.
    """
    most = call.services.settings.audit_page_max
    query = call.given(AuditQuery)
    page = page_of(call, query, default=min(100, most), most=most)
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
        caller=call.caller.did,
    )
    return Reply(
        listed(
            "entries",
            rows,
            page,
            audit_id,
            form=audit_record,
            is_cut=rows.is_cut,
            looked_to=rows.looked_to,
        )
    )


async def get_entry(call: Call) -> Reply:
    """Read one audit entry."""
    number = call.given(EntryPath).audit_id
    rows = await call.services.reader.audit(limit=1, before_id=min(number + 1, ENTRY_ID_MAX - 1))
    if not rows or audit_id(rows[0]) != number:
        raise not_found(f"the audit entry {number}")
    return Reply(audit_record(rows[0]))


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
