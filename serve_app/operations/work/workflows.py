"""Workflows: publish, read, list, cancel, resume, trace and rate them.

Reference: http.md (Endpoints); features.md (Traces); decision reputation-and-ranking.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from itertools import chain
from typing import Any, Final

from msgspec import MsgspecError, Raw, Struct, structs
from msgspec.json import decode
from msgspec.structs import asdict

from actors.gateway.succeeded_rows import succeeded_workflow
from actors.transport.messages import (
    CancelRequest,
    PackedPublish,
    PublishReply,
    PublishRequest,
    ResumeRequest,
)
from actors.transport.wire import packed
from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.records.api.review import Feedback, FeedbackRequest
from core.records.api.triggers import TemplateStored
from core.records.api.workflows import (
    BulkPublished,
    Cancellation,
    Cancelled,
    DryRun,
    Published,
    Resumed,
    Span,
    TracePage,
    TraceQuery,
    Workflow,
    WorkflowPage,
    WorkflowsQuery,
)
from core.records.bounds import RESULT_INLINE_BYTES_MAX
from core.records.manifest import WorkflowManifest, parse_list_form, parse_manifest
from core.records.manifest_forms import Manifest, ManifestBulk, ManifestList
from core.workflow import traces
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from ledger.features.accounts import money_owner
from ledger.features.disputes import GiveFeedback, feedback_key, feedback_rows
from ledger.features.traces import FIRST_PLACE, place_of, trace_workflows, traced_nodes
from ledger.reads.stored import StoredWorkflow, WorkflowHead
from serve_app.callers.limits import RateClass
from serve_app.http.bulk import judged, refusal
from serve_app.http.calls import (
    REPLAYED,
    Call,
    Json,
    Operations,
    Repeats,
    Reply,
    found,
    invalid,
    not_found,
)
from serve_app.http.lists import PAGE_MAX, listed, page_of
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread
from serve_app.operations.capabilities.capability_versions import manifest_warnings
from serve_app.operations.views import (
    iso_time,
    shown,
    visible_workflow,
    workflow_record,
    workflow_summary,
)
from serve_app.operations.visibility import visible_head, visible_record
from serve_app.operations.work.publishing import (
    PUBLISH_ERRORS,
    publish_request,
    published,
    shown_secret,
)
from serve_app.operations.work.triggers import (
    Template,
    cancel_template,
    owned_template,
    published_template,
    store_template,
)

OPERATIONS = Operations("workflows")

PREFER_WAIT_MAX_S: Final = 60

# If a workflow has at most so many nodes, a publish that waits reads its record without looking up
# the size of the record.
SMALL_NODES_MAX = 8


class _DryRun(Struct, rename="camel"):
    """The undecoded JSON text of the member `dryRun`."""

    dry_run: Raw = Raw()


_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6}(?:\.\d{1,6})?)", re.IGNORECASE)


def _publish_rate(call: Call) -> RateClass:
    """Return the rate class of a publish. A dry run counts as a read, because it stores nothing.

    Only the member `dryRun` is parsed, because the rate limit may refuse the call.
    """
    if b'"dryRun"' not in call.body:
        return RateClass.WRITE
    try:
        dry_run = decode(call.body, type=_DryRun).dry_run
    except (MsgspecError, RecursionError, UnicodeDecodeError):
        return RateClass.WRITE
    return RateClass.READ if dry_run == Raw(b"true") else RateClass.WRITE


@OPERATIONS.add(
    "POST",
    "/v1/workflows/publish",
    rate_of=_publish_rate,
    body=Manifest,
    reply=(Published, DryRun, Workflow, TemplateStored),
    may_wait=True,
    errors=PUBLISH_ERRORS,
    repeats=Repeats.BY_COMMAND,
)
async def publish(call: Call) -> Reply:
    """Publish a workflow, or store it as the template of a trigger."""
    return await _publish_one(call, lambda: (parse_manifest(call.json), write_json(call.json)))


@OPERATIONS.add(
    "POST",
    "/v1/workflows",
    body=ManifestList,
    reply=(Published, DryRun, Workflow, TemplateStored),
    may_wait=True,
    errors=PUBLISH_ERRORS,
    repeats=Repeats.BY_COMMAND,
)
async def publish_list_form(call: Call) -> Reply:
    """Publish a workflow given as lists of nodes and edges."""

    def parsed() -> tuple[WorkflowManifest, bytes]:
        manifest = parse_list_form(call.json)
        return manifest, write_json(manifest.to_json())

    return await _publish_one(call, parsed)


async def _publish_one(call: Call, parsed: Callable[[], tuple[WorkflowManifest, bytes]]) -> Reply:
    services = call.services
    wait_s = _wait_of(call)

    def compiled() -> PublishRequest | PackedPublish | Template:
        manifest, manifest_json = parsed()
        if manifest.trigger.type != "manual" and not manifest.dry_run:
            return published_template(call, manifest, manifest_json)
        watcher = services.gateway.owners.watcher if wait_s is not None else ""
        key = call.command_key("")
        request = publish_request(call, manifest, manifest_json, command_key=key, watcher=watcher)
        return request if len(call.body) <= IN_LOOP_BYTES_MAX else packed(request)

    request = await in_thread(call.account, len(call.body), compiled)
    if isinstance(request, Template):
        return await store_template(call, request, await manifest_warnings(call))
    reply = await services.to_the_end(services.gateway.publish(request))
    headers = ((REPLAYED,) if reply.is_repeat else ()) + await manifest_warnings(call)
    if wait_s is None or request.is_dry_run:
        return Reply(published(services, request, reply), headers=headers)
    applied = (b"preference-applied", b"wait=%g" % wait_s)
    finished = await _finished(call, request, reply, wait_s)
    if finished is None:
        return Reply(published(services, request, reply), headers=(*headers, applied))
    record = workflow_record(finished)
    if reply.warnings:
        record["warnings"] = reply.warnings
    record |= shown_secret(services, request, reply.workflow_id)
    return Reply(record, headers=(*headers, applied))


async def _finished(
    call: Call, request: PublishRequest | PackedPublish, reply: PublishReply, wait_s: float
) -> StoredWorkflow | None:
    """Wait until a published workflow ends, and return it; None if it does not end in time."""
    services = call.services
    finished: StoredWorkflow | None = None
    if not is_terminal(WorkflowStatus(reply.status)):
        watched = not reply.is_repeat
        ended = await services.gateway.wait_finished(reply.workflow_id, wait_s, watched=watched)
        if ended is None:
            return None
        # For a repeat, `request` has new ids, which differ from the ids of the stored workflow.
        if watched and ended.told is not None and isinstance(request, PublishRequest):
            finished = succeeded_workflow(request, ended.told)
    if finished is None:
        record_bytes = _record_bytes(call, request)
        finished = await services.reads.record(reply.workflow_id, call.caller.did, record_bytes)
    if finished is not None:
        await services.reads.load_results(finished)
    return finished


def _record_bytes(call: Call, request: PublishRequest | PackedPublish) -> int | None:
    """Return an upper bound of the bytes of a workflow's record.

    Each node's inline result is at most `RESULT_INLINE_BYTES_MAX`, so the bound is small for few
    nodes. None for many nodes: the size must be looked up.
    """
    if isinstance(request, PackedPublish) or len(request.compiled.nodes) > SMALL_NODES_MAX:
        return None
    nodes_bytes = len(request.compiled.nodes) * RESULT_INLINE_BYTES_MAX
    return len(call.body) + nodes_bytes


@OPERATIONS.add(
    "POST",
    "/v1/workflows/publish/bulk",
    rate=RateClass.BULK,
    body=ManifestBulk,
    is_bulk_body=True,
    reply=BulkPublished,
)
async def publish_bulk(call: Call) -> Reply:
    """Publish up to 1,000 workflows."""
    base_key = call.command_key("")

    async def judge(index: int, raw: Any, size: int) -> PackedPublish:
        def compiled() -> PackedPublish:
            manifest = parse_manifest(raw)
            if manifest.trigger.type != "manual":
                raise invalid("trigger.type", manifest.trigger.type, "manual, in a bulk")
            key = f"{base_key}:{index}" if base_key else ""
            return packed(publish_request(call, manifest, write_json(raw), command_key=key))

        return await in_thread(call.account, size, compiled)

    def result(request: PackedPublish, reply: PublishReply | ServiceError) -> dict[str, Any]:
        if isinstance(reply, ServiceError):
            return refusal(call, reply)
        return published(call.services, request, reply)

    found = await judged(call, "workflows", judge)
    publishing = call.services.gateway.publish_bulk(found.accepted)
    return await found.answer(await call.services.to_the_end(publishing), result)


@OPERATIONS.add("GET", "/v1/workflows/{workflow_id}", reply=Workflow, may_wait=True)
async def get_workflow(call: Call) -> Reply:
    """Read a workflow."""
    gateway = call.services.gateway
    head = await _readable(call)
    workflow_id, record_bytes = head.workflow.id, None
    wait_s = _wait_of(call)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if wait_s is not None:
        headers = ((b"preference-applied", b"wait=%g" % wait_s),)
    if wait_s is not None and not is_terminal(head.workflow.status):
        await gateway.wait_finished(workflow_id, wait_s, watched=False)
    else:
        record_bytes = head.record_bytes
    stored = await call.services.reads.record(workflow_id, call.caller.did, record_bytes)
    assert stored is not None, workflow_id
    await call.services.reads.load_results(stored)
    record = visible_workflow(stored, call)
    if record is None:  # Meanwhile the caller's node was given to another agent.
        raise not_found(f"the workflow {workflow_id}")
    return Reply(record, headers=headers)


@OPERATIONS.add("GET", "/v1/workflows", query=WorkflowsQuery, reply=WorkflowPage)
async def list_workflows(call: Call) -> Json:
    """List workflows, newest first."""
    query = call.given(WorkflowsQuery)
    page = page_of(call, query)
    rows = await call.services.reader.workflows(
        payer_did=call.party_did or query.payer_did,
        status=query.status,
        is_quarantined=query.quarantined,
        start_ms=query.start_time,
        end_ms=query.end_time,
        before_id=page.after,
        command_key=None if query.idempotency_key is None else call.key_of(query.idempotency_key),
        **page.rows,
    )
    return listed("workflows", rows, page, lambda row: row["id"], form=workflow_summary)


@OPERATIONS.add(
    "POST",
    "/v1/workflows/{workflow_id}/cancel",
    body=Cancellation,
    reply=Cancelled,
    errors=(ErrorCode.NOT_CANCELLABLE,),
)
async def cancel(call: Call) -> Json:
    """Cancel a workflow, or end the trigger of a template.

    The rest of the workflow's escrow returns to the payer.
    """
    body = call.given(Cancellation)
    try:
        stored = await _own(call)
    except ServiceError:
        template = await owned_template(call, call.path_values["workflow_id"])
        if template is None:
            raise
        return await cancel_template(call, template, body.reason)
    request = CancelRequest(
        workflow_id=stored.id,
        reason=body.reason,
        details=body.details,
        actor_did=call.caller.did,
        authority=call.authority,
    )
    reply = await call.services.to_the_end(call.services.gateway.cancel(request, stored))
    return shown(
        Cancelled,
        structs.asdict(reply),
        success=True,
        id=stored.id,
        status=WorkflowStatus.CANCELLED,
        reason=body.reason,
        cancelled_by=call.caller.did,
    )


@OPERATIONS.add(
    "POST", "/v1/workflows/{workflow_id}/resume", reply=Resumed, errors=(ErrorCode.ESCROW_RELEASED,)
)
async def resume(call: Call) -> Json:
    """Resume a quarantined workflow.

    The owner process repeats the failed step. It reads the workflow's rows again for this.
    """
    stored = await _own(call)
    request = ResumeRequest(
        workflow_id=stored.id, actor_did=call.caller.did, authority=call.authority
    )
    reply = await call.services.to_the_end(call.services.gateway.resume(request, stored))
    return {
        "success": True,
        "id": reply.workflow_id,
        "workflowId": reply.workflow_id,
        "status": stored.status,
        "resumedAt": iso_time(reply.resumed_ms),
        "resumedBy": call.caller.did,
    }


async def _own(call: Call) -> StoredWorkflow:
    """Return the workflow in the path. The caller must be its payer or an administrator.

    The workflow has only the columns of `WorkflowHead`.

    Raises:
        ServiceError: NOT_FOUND, as for `_readable`.
    """
    stored = (await _readable(call)).workflow
    call.require_party((stored.payer_did,), f"the workflow {stored.id}")
    return stored


async def _readable(call: Call) -> WorkflowHead:
    """Return the head of the workflow in the path.

    Raises:
        ServiceError: NOT_FOUND if the workflow does not exist or is hidden from the caller.
    """
    workflow_id = call.path_values["workflow_id"]
    head = await visible_head(call, workflow_id)
    if head is None and await owned_template(call, workflow_id) is not None:
        detail = f"{workflow_id} is the template of a trigger: GET /v1/triggers/{workflow_id}"
        raise ServiceError(ErrorCode.NOT_FOUND, detail)
    return found(head, f"the workflow {workflow_id}")


def _wait_of(call: Call) -> float | None:
    """Return the seconds of `Prefer: wait=S`, at most `PREFER_WAIT_MAX_S`; None without it."""
    preferences = call.headers.get(b"prefer")
    match = _WAIT.search(preferences) if preferences is not None else None
    if match is None:
        return None
    return min(float(match.group(1)), PREFER_WAIT_MAX_S)


@OPERATIONS.add("GET", "/v1/traces/{trace_id}", query=TraceQuery, reply=TracePage)
async def get_trace(call: Call) -> Json:
    """Read the trace of one of the caller's workflows.

    1. Look up only the caller's own workflows, because callers choose trace ids freely and two
       callers may use the same id.
    2. Page over nodes. A page has all spans of each of its nodes.
    3. Put the workflow's span at the beginning of the first page.
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


_ENDED: Final = (
    NodeStatus.SUCCESS,
    NodeStatus.FAILED,
    NodeStatus.SKIPPED,
    NodeStatus.TIMEOUT,
)


@OPERATIONS.add(
    "POST", "/v1/workflows/{workflow_id}/feedback", body=FeedbackRequest, reply=Feedback
)
async def give(call: Call) -> Json:
    """Rate an agent's work in a workflow."""
    workflow_id = call.path_values["workflow_id"]
    stored = await visible_record(call, workflow_id)
    if stored is None or not call.is_party((stored.payer_did,)):
        raise not_found(f"the workflow {workflow_id}")
    return await give_for(call, stored)


async def give_for(call: Call, stored: StoredWorkflow, default_agent: str | None = None) -> Json:
    """Store the payer's feedback about an agent of a workflow.

    Args:
        call: the payer's request.
        stored: the workflow with its nodes.
        default_agent: the agent to rate if the body names none.

    Raises:
        ServiceError: INVALID_REQUEST, CONFLICT or FORBIDDEN.
    """
    body = call.given(FeedbackRequest)
    agent_did = body.agent_did or default_agent
    if agent_did is None:
        raise invalid("agentDid", "nothing", "the DID of one of the agents")
    rating_milli = rating_of(body.rating, body.scale)
    _check_ended(stored, agent_did)
    await _check_foreign(call, stored.payer_did, agent_did)
    command = GiveFeedback(
        key=feedback_key(stored.id, agent_did),
        request_hash=call.act_hash,
        workflow_id=stored.id,
        agent_did=agent_did,
        payer_did=stored.payer_did,
        rating_milli=rating_milli,
        comment=body.comment,
    )
    detail = f"feedback for {agent_did} was already given for this workflow"
    await call.commit(command, done=ServiceError(ErrorCode.CONFLICT, detail))
    rows = await feedback_rows(call.services.reader, stored.id)
    (row,) = (row for row in rows if row["agent_did"] == agent_did)
    return shown(Feedback, row, success=True, rating=float(row["rating"]))


def rating_of(rating: float, scale: int | None) -> int:
    """Return a rating in thousandths, 0 to 1,000.

    Args:
        rating: a share from 0 to 1, or stars from 1 to 5.
        scale: 1 for a share, 5 for stars. None: a rating above 1 is in stars, else it is a share.

    Raises:
        ServiceError: INVALID_REQUEST: the rating is outside its scale.
    """
    is_stars = scale == 5 or (scale is None and rating > 1)
    low, high = (1, 5) if is_stars else (0, 1)
    if not low <= rating <= high:
        raise invalid("rating", str(rating), f"a number from {low} to {high}")
    share = (Decimal(repr(rating)) - low) / (high - low)
    return int((share * 1_000).to_integral_value(ROUND_HALF_UP))


def _check_ended(stored: StoredWorkflow, agent_did: str) -> None:
    """Refuse feedback for an agent that has no node in the workflow, or has not finished any."""
    own = [node for node in stored.nodes if agent_did in (node["agent_did"], node["verifier_did"])]
    if not own:
        raise invalid("agentDid", agent_did, "an agent of one of the workflow's nodes")
    if not is_terminal(stored.status) and not any(node["status"] in _ENDED for node in own):
        raise ServiceError(
            ErrorCode.CONFLICT, f"{agent_did} has not finished a node of this workflow yet"
        )


async def _check_foreign(call: Call, payer_did: str, agent_did: str) -> None:
    """Refuse feedback if the payer and the agent have the same owner (money.md, Reputation)."""
    agent, payer = [await money_owner(call.services.reader, did) for did in (agent_did, payer_did)]
    owners = {agent_did, agent_did if agent is None else agent.owner_did}
    if not owners.isdisjoint((payer_did, payer_did if payer is None else payer.owner_did)):
        detail = f"the payer and {agent_did} have the same owner: feedback needs another owner"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
