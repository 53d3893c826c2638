"""Traces of workflows. Reference: features.md (Traces)."""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import Count, Did, Timestamp, TraceId, Uuid, matching, words
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Maybe

TRACE_STATUSES = ("running", "completed", "failed", "cancelled", "timeout")
SPAN_OPERATIONS = ("workflow", "node", "attempt", "verification", "queue", "dispatch", "settlement")
SPAN_STATUSES = ("ok", "error", "unset")
_SpanId = Annotated[str, matching("[0-9a-f]{16}", "16 lowercase hexadecimal digits")]


class Trace(Record):
    """A workflow as a trace."""

    id: Annotated[TraceId, "W3C trace id."]
    workflow_id: Annotated[Uuid, "Workflow whose spans these are."]
    workflow_ids: Annotated[
        list[str], "The caller's workflows that share the trace id, newest first, at most 100."
    ]
    started_at: Annotated[Timestamp, "Time of the publish."]
    ended_at: Annotated[Timestamp | None, "Time at which the workflow ended; null before that."]
    status: Annotated[str, words(TRACE_STATUSES), "`completed` when the workflow succeeded."]


class Span(Record):
    """A part of a workflow's run."""

    span_id: Annotated[_SpanId, "Id of the span; agents get that of their attempt."]
    parent_span_id: Annotated[
        _SpanId | None, "Span that it belongs to; of the workflow the caller's span, or null."
    ]
    agent_did: Annotated[Did | None, "Agent or verifier; null when it has none."]
    operation_name: Annotated[str, words(SPAN_OPERATIONS), "What the span is."]
    start_time: Annotated[Timestamp, "Time at which it began."]
    end_time: Annotated[Timestamp | None, "Time at which it ended; null while it is open."]
    status: Annotated[str, words(SPAN_STATUSES), "`unset` if it is open, cancelled or skipped."]
    node_id: Annotated[Maybe[str], "Name of the node; absent for the workflow."]
    attempt: Annotated[Maybe[Count], "Number of the attempt, or of the verification."]
    outcome: Annotated[Maybe[str], "How an attempt or a verification ended."]


class TracePage(Page[Span]):
    """A workflow's trace with its spans; pages of a large one are cut between nodes."""

    plural = "spans"
    row = Span

    trace: Annotated[Trace, "The trace."]


class TraceQuery(PageQuery):
    """Selects the workflow of a trace, and a page of its nodes."""

    workflow_id: Annotated[
        Maybe[Uuid], "Workflow to show when several share the trace id; default: the newest."
    ] = None
