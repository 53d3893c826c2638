"""The audit chain: list, read, prove, verify and export audit entries.

A caller sees a complete entry if the caller is a party of it or has `audit:all`, or if the entry
names a signing key. Of any other entry the caller sees only `id`, `eventType` and `hash`, to check
the positions of the caller's own entries in the chain. A list with a filter omits the entries that
the caller may not see completely: the filter would disclose their hidden members. Proofs contain
only hashes, so every reader of the log may read all proofs.
Reference: money.md (Audit chain, Checkpoints, Verifying the chain). Decision audit-chain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from core.errors import ErrorCode
from core.json_text import write_sorted_json
from core.records.api.kinds import ENTRY_ID_MAX
from core.records.api.shape import Kind
from core.records.api.trust import (
    AuditEntry,
    AuditPage,
    AuditQuery,
    AuditVerification,
    CheckpointQuery,
    ConsistencyProof,
    ConsistencyQuery,
    ExportQuery,
    InclusionProof,
    ProofQuery,
    VerifyQuery,
)
from core.records.audit import PUBLIC_EVENTS
from core.trust.access import READ_ALL_AUDIT
from core.trust.merkle import consistency_ranges, inclusion_ranges
from ledger.features.audit_log import (
    PAGE_BYTES_MAX,
    differing_leaf,
    entry_pages,
    entry_text,
    newest_entry_id,
    read_checkpoint,
    read_roots,
    scan_entries,
)
from serve_app.http.calls import Call, Json, Operations, Reply, found, invalid, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import Row, audit_id, audit_link, audit_record

OPERATIONS = Operations("audit")

PAGE_MAX: Final = 1_000


@OPERATIONS.add("GET", "/v1/audit", query=AuditQuery, reply=AuditPage)
async def list_entries(call: Call) -> Json:
    """List audit entries, newest first.

    With a filter, a page may be empty and still have a `nextCursor`, because the search for a page
    reads a limited number of entries.
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
    """Return the ids of the entries that the caller may see completely."""
    ids = {audit_id(row) for row in rows}
    if call.holds(READ_ALL_AUDIT):
        return ids
    public = {audit_id(row) for row in rows if row["event_types"][0] in PUBLIC_EVENTS}
    return public | await call.services.reader.own_audit_ids(call.caller.did, ids - public)


VERIFIED_DEFAULT: Final = 1_000
VERIFIED_MAX: Final = 10_000
_NOTE: Final = Kind({"type": "string", "description": "a signed note (C2SP tlog-checkpoint)"})
_LINES: Final = Kind({"type": "string", "description": "a JSON object per line, an audit entry"})


@OPERATIONS.add(
    "GET",
    "/v1/audit/checkpoint",
    query=CheckpointQuery,
    reply=_NOTE,
    errors=(ErrorCode.NOT_FOUND,),
    media_type="text/plain",
)
async def get_checkpoint(call: Call) -> Reply:
    """Read a signed checkpoint of the audit log."""
    size = call.given(CheckpointQuery).size
    checkpoint = await read_checkpoint(call.services.reader, size)
    if not checkpoint.size:
        raise not_found(f"a checkpoint that covers audit entry {size or 1}")
    return Reply(checkpoint.note.encode(), content_type=b"text/plain; charset=utf-8")


@OPERATIONS.add(
    "GET", "/v1/audit/proof", query=ProofQuery, reply=InclusionProof, errors=(ErrorCode.NOT_FOUND,)
)
async def prove_inclusion(call: Call) -> Json:
    """Prove that the audit log holds an entry."""
    query = call.given(ProofQuery)
    size = await _tree_size(call, query.size)
    if query.id > size and query.size is None:
        raise not_found(f"a checkpoint that covers audit entry {query.id}")
    if query.id > size:
        raise invalid("id", str(query.id), f"at most the size of the tree, {size}")
    ranges = [(query.id - 1, query.id), (0, size), *inclusion_ranges(query.id - 1, size)]
    leaf, root, *hashes = await read_roots(call.services.reader, ranges)
    proof = {"leafHash": _shown(leaf), "hashes": [*map(_shown, hashes)], "root": _shown(root)}
    return {"id": query.id, "size": size, **proof}


@OPERATIONS.add(
    "GET",
    "/v1/audit/consistency",
    query=ConsistencyQuery,
    reply=ConsistencyProof,
    errors=(ErrorCode.NOT_FOUND,),
)
async def prove_consistency(call: Call) -> Json:
    """Prove that the audit log continues an older state of the log."""
    query = call.given(ConsistencyQuery)
    size = await _tree_size(call, query.to_size)
    if query.from_size > size:
        raise invalid("from", str(query.from_size), f"at most the size of the newer tree, {size}")
    ranges = [(0, query.from_size), (0, size), *consistency_ranges(query.from_size, size)]
    first, root, *hashes = await read_roots(call.services.reader, ranges)
    proof = {"hashes": [*map(_shown, hashes)], "fromRoot": _shown(first), "toRoot": _shown(root)}
    return {"from": query.from_size, "to": size, **proof}


@OPERATIONS.add("GET", "/v1/audit/verify", query=VerifyQuery, reply=AuditVerification)
async def verify_stored(call: Call) -> Json:
    """Check stored audit entries: hashes, links, and their leaves in the tree."""
    query = call.given(VerifyQuery)
    first, limit = query.from_id or 1, query.limit or VERIFIED_DEFAULT
    if limit > VERIFIED_MAX:
        raise invalid("limit", str(limit), f"a whole number from 1 to {VERIFIED_MAX}")
    reader = call.services.reader
    checkpoint = await read_checkpoint(reader)
    # The entry before `first` is read too, to check the `prevHash` of `first`.
    before = min(first - 1, 1)
    scan = await scan_entries(
        reader,
        first - before,
        limit + before,
        bytes_max=PAGE_BYTES_MAX,
        caller=call.caller.did,
    )
    checked = max(0, len(scan.leaves) - before)
    defects = (scan.bad_id, await differing_leaf(reader, scan, checkpoint.size))
    next_from = first + checked
    first_bad = min((bad for bad in defects if bad is not None), default=None)
    return {
        "valid": first_bad is None,
        "from": first,
        "to": next_from - 1 if checked else None,
        "entries": checked,
        "nextFrom": next_from if next_from <= await newest_entry_id(reader) else None,
        "firstBad": first_bad,
        "checkpoint": checkpoint.note or None,
    }


@OPERATIONS.add(
    "GET", "/v1/audit/export", query=ExportQuery, reply=_LINES, media_type="application/jsonl"
)
async def export(call: Call) -> Reply:
    """Export audit entries as JSON Lines, in order.

    Each line is the canonical form of an entry. `from` resumes an export that ended early.
    """
    # Sets `used_right` now: the endpoint audits its use before the stream calls `whole_ids`.
    call.holds(READ_ALL_AUDIT)
    lines = _lines(call, call.given(ExportQuery).from_id or 1)
    return Reply(lines, content_type=b"application/jsonl", is_stream=True)


async def _lines(call: Call, first: int) -> AsyncIterator[bytes]:
    async for rows in entry_pages(call.services.reader, first):
        whole = await whole_ids(call, rows)
        yield b"".join([_line(row, is_whole=audit_id(row) in whole) for row in rows])


def _line(row: Row, *, is_whole: bool) -> bytes:
    """Return the line of an entry: the canonical form of the entry, or only of its public part."""
    if not is_whole:
        return write_sorted_json(audit_link(row)) + b"\n"
    return (entry_text(row) + "\n").encode()


async def _tree_size(call: Call, size: int | None) -> int:
    """Return the requested size of the Merkle tree; default: the size of the newest checkpoint.

    Raises:
        ServiceError: NOT_FOUND: no checkpoint covers the size.
    """
    newest = (await read_checkpoint(call.services.reader)).size
    wanted = newest if size is None else size
    return found(wanted if 0 < wanted <= newest else None, f"a tree of {wanted or 1} entries")


def _shown(digest: Any) -> str:
    return f"sha256:{bytes(digest).hex()}"
