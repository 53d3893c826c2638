"""Traces: a workflow's run as spans, made of its rows when it is asked for.

Reference: features.md (Traces).
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from msgspec.structs import asdict

from core.records.api.workflows import Span, TracePage, TraceQuery
from core.workflow import traces
from ledger.proofs.traces import FIRST_PLACE, place_of, trace_workflows, traced_nodes
from serve_app.http.calls import Call, Json, Operations, not_found
from serve_app.http.lists import PAGE_MAX, listed, page_of
from serve_app.operations.views import iso_time, shown

OPERATIONS = Operations("workflows")


@OPERATIONS.add("GET", "/v1/traces/{trace_id}", query=TraceQuery, reply=TracePage)
async def get_trace(call: Call) -> Json:
    """Read the trace of one of the caller's workflows.

    1. Callers choose trace ids, so only the caller's own workflows are looked up. 2. A page is a
    list of nodes, each with a list of its spans. 3. The first page begins with the workflow's span.
    """
    trace_id, query = call.path_values["trace_id"], call.given(TraceQuery)
    page = page_of(call, query, default=PAGE_MAX)
    reader, own = call.services.reader, call.party_did
    sharing = asked = await trace_workflows(reader, trace_id, payer_did=own)  # 1
    if query.workflow_id is not None:
        asked = await trace_workflows(
            reader, trace_id, payer_did=own, workflow_id=query.workflow_id
        )
    if not asked:
        raise not_found(f"the trace {trace_id}")
    workflow = asked[0]
    workflow_id = str(workflow["id"])
    after = FIRST_PLACE if page.after is None else (workflow_id, page.after)
    found = await traced_nodes(reader, [workflow_id], after=after, **page.rows)
    parts = [[_span_record(span) for span in traces.node_spans(rows)] for rows in found]
    nodes = [(place_of(rows.node)[1], own) for rows, own in zip(found, parts, strict=True)]
    reply = listed("spans", nodes, page, lambda one: one[0], form=lambda one: one[1])  # 2
    is_first = page.after is None and not page.offset
    first = [_span_record(traces.workflow_span(workflow))] if is_first else []  # 3
    reply["spans"] = [*first, *chain.from_iterable(parts[: len(reply["spans"])])]
    reply["trace"] = {
        "id": trace_id,
        "workflowId": workflow_id,
        "workflowIds": [str(row["id"]) for row in sharing],
        "startedAt": iso_time(workflow["created_ms"]),
        "endedAt": iso_time(workflow["completed_ms"]),
        "status": traces.trace_status(workflow),
    }
    return reply


def _span_record(span: traces.Span) -> dict[str, Any]:
    begin, end = iso_time(span.start_time_ms), iso_time(span.end_time_ms)
    return shown(Span, asdict(span), start_time=begin, end_time=end)
