"""Event streams of the audit entries of one workflow, or of all entries that the caller may see.

Reference: features.md (Streams).
"""

from __future__ import annotations

from typing import Any, Final

from core.records.api.kinds import LastEventId
from core.records.api.shape import Kind, value_of
from core.records.api.trust import EventsQuery, StreamQuery
from core.trust.access import READ_ALL_AUDIT
from core.workflow.transitions import is_terminal
from ledger.features.audit_log import newest_entry_id
from ledger.reads.event_entries import RequestedEntries, end_entry_id
from serve_app.http.calls import EVENT_STREAM, NO_CONTENT, Call, Operations, Reply, found
from serve_app.operations.streams.event_tail import EventStream
from serve_app.operations.visibility import visible_head

OPERATIONS = Operations("workflows")

_EVENTS: Final = Kind(
    {"type": "string", "description": "server-sent events; the data of each is an audit entry"}
)


@OPERATIONS.add(
    "GET",
    "/v1/workflows/{workflow_id}/stream",
    query=StreamQuery,
    reply=_EVENTS,
    media_type=EVENT_STREAM,
    empty="The workflow has ended, and there are no later events.",
)
async def stream_workflow(call: Call) -> Reply:
    """Stream the audit entries about a workflow until it ends."""
    workflow_id = call.path_values["workflow_id"]
    after = _last_event_id(call, call.given(StreamQuery)) or 0
    # A position after the newest entry would make the stream miss the workflow's end.
    after = min(after, await newest_entry_id(call.services.reader))
    head = found(await visible_head(call, workflow_id), f"the workflow {workflow_id}")
    is_over = is_terminal(head.workflow.status)
    if is_over and after >= await end_entry_id(call.services.reader, workflow_id):
        return Reply(b"", status=NO_CONTENT)
    return _streamed(call, after, workflow_id)


@OPERATIONS.add(
    "GET",
    "/v1/events/stream",
    scope="audit:read",
    tag="audit",
    query=EventsQuery,
    reply=_EVENTS,
    media_type=EVENT_STREAM,
)
async def stream_events(call: Call) -> Reply:
    """Stream new audit entries of which the caller is a party; with `audit:all`, all entries."""
    query = call.given(EventsQuery)
    after = _last_event_id(call, query)
    if after is None:
        after = await newest_entry_id(call.services.reader)
    return _streamed(call, after, None, workflow_id=query.workflow_id, types=query.event_type)


def _last_event_id(call: Call, query: StreamQuery) -> int | None:
    given = call.headers.get(b"last-event-id")
    if given is None:
        return query.last_event_id
    number: int = value_of(LastEventId, "Last-Event-ID", given.decode("latin-1"))
    return number


def _streamed(call: Call, after: int, until: str | None, **filters: Any) -> Reply:
    """Return the reply that streams entries.

    Args:
        call: the request.
        after: the id of the entry after which the stream begins.
        until: the workflow whose entries are streamed until it ends; None: the entries of all
            workflows, without an end.
        filters: the attributes `workflow_id` and `types` of `EventStream`.
    """
    services, caller, address = call.services, call.caller, call.address

    async def is_permitted() -> bool:
        now_ms, clock_ms = services.now_ms(), services.clock_ms()
        return await services.authenticator.still_opens(caller, address, now_ms, clock_ms)

    asked = RequestedEntries(until, None if call.holds(READ_ALL_AUDIT) else caller.did)
    tail = services.event_tail
    stream = EventStream(tail=tail, after=after, is_permitted=is_permitted, asked=asked, **filters)
    return Reply(
        stream.sent(),
        # Tells proxies not to buffer the events.
        headers=((b"x-accel-buffering", b"no"),),
        content_type=EVENT_STREAM.encode(),
        is_stream=True,
        is_lasting=True,
    )
