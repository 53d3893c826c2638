"""Tasks: a workflow of one node, seen as one thing; any workflow can be read as its task.

Publishing, running and paying are the workflow's; nothing here decides about money.
Spec: Publish response (taskId); contract.md section 6 (Tasks); decisions 0083 and 0084.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from core.errors import ErrorCode, ServiceError
from core.money import credits_number
from core.records.api.market import Bid, TaskBidRequest
from core.records.api.path_values import TaskPath
from core.records.api.review import (
    Feedback,
    FeedbackRequest,
    Settlement,
    Task,
    TaskPublished,
    TaskRequest,
    TaskSettled,
)
from core.records.manifest import parse_manifest
from core.records.stored_manifest import read_stored_manifest
from core.workflow.transitions import WorkflowStatus, is_terminal
from ledger.agents.capability_search import find_capabilities
from ledger.reads.reader import StoredWorkflow
from ledger.workflows.workflow_records import task_workflow_id
from serve_app.callers.limits import RateClass
from serve_app.http.calls import (
    REPLAYED,
    Call,
    Operation,
    Repeats,
    Reply,
    invalid,
    not_found,
)
from serve_app.operations.views import visible_workflow
from serve_app.operations.whose import visible_record
from serve_app.operations.work.auctions import bid_in, offer_of, visible_rounds
from serve_app.operations.work.feedback import give_for
from serve_app.operations.work.publishing import publish_request, workflow_limits

NODE: Final = "task"
_NAMED: Final = re.compile(r"\s*\[([A-Za-z0-9][A-Za-z0-9._-]{0,127})\]\s*")
_STATUSES: Final = {WorkflowStatus.SUCCESS: "completed"}


async def publish(call: Call) -> Reply:
    """Publish one task: a description, with its capability in brackets before it or searched."""
    body = call.given(TaskRequest)
    capability_id, text = await _capability(call, body.description)
    node: dict[str, Any] = {"capabilityId": capability_id, "payload": {"description": text}}
    options = {"selection": body.selection, "auctionWindowMs": body.auction_window_ms}
    node.update((name, value) for name, value in options.items() if value is not None)
    manifest: dict[str, Any] = {"intent": text, "nodes": {NODE: node}}
    if body.budget is not None:
        manifest["settings"] = {"maxBudgetCredits": credits_number(body.budget)}
    services = call.services
    request = publish_request(
        services,
        call.caller,
        parse_manifest(manifest),
        orjson.dumps(manifest),
        limits=workflow_limits(services.settings),
        command_key=call.command_key("") or None,
        body_hash=call.request_hash,
    )
    reply = await services.to_the_end(services.gateway.publish(request))
    return Reply(
        {
            "success": True,
            "id": reply.task_id,
            "taskId": reply.task_id,
            "workflowId": reply.workflow_id,
            "capabilityId": capability_id,
            "status": reply.status,
        },
        headers=(REPLAYED,) if reply.is_repeat else (),
    )


async def get(call: Call) -> Reply:
    """Read a task: how far it is, and its result or error."""
    stored = await _readable(call)
    await call.services.reads.load_results(stored)
    return Reply(_task_record(call, stored))


async def bid(call: Call) -> Reply:
    """Bid for a task whose node is auctioned; of several nodes the body names one."""
    body = call.given(TaskBidRequest)
    offered = offer_of(call, body)
    task_id = call.given(TaskPath).task_id
    unknown = not_found(f"an auction of the task {task_id}, or of its node `nodeId`,")
    workflow_id = await task_workflow_id(call.services.reader, task_id)
    # Without the nodes: a bidder may not see the task yet, and their results are large.
    row = await call.services.reads.row(workflow_id) if workflow_id else None
    if workflow_id is None or row is None:
        raise unknown
    node = body.node_id
    if node is None:
        names = list(read_stored_manifest(row["manifest"]).nodes)
        if len(names) > 1:
            raise unknown
        (node,) = names
    rounds = await visible_rounds(call, workflow_id, node, unknown)
    placed = await bid_in(call, offered, workflow_id, node, rounds)
    return Reply({**placed, "taskId": task_id})


async def settle(call: Call) -> Reply:
    """Acknowledge how a task was settled; the payment was made with its result, once.

    `amount`, when given, is what the caller thinks was paid: above the escrow it is refused, and
    other than what was paid, too.
    """
    amount_micro = call.given(Settlement).amount
    stored = await _readable(call)
    call.require(call.right, stored.payer_did)
    if not is_terminal(stored.status):
        raise ServiceError(
            ErrorCode.CONFLICT, f"the task is {stored.status}, it is settled when it has ended"
        )
    spent_micro, held_micro = int(stored.row["spent_micro"]), int(stored.row["hold_micro"])
    if amount_micro is not None:
        if amount_micro > held_micro:
            got, most = credits_number(amount_micro), credits_number(held_micro)
            raise invalid("amount", str(got), f"at most the {most} held")
        if amount_micro != spent_micro:
            raise ServiceError(
                ErrorCode.ALREADY_SETTLED,
                f"the task was settled with {credits_number(spent_micro)} credits",
            )
    return Reply(
        {
            "success": True,
            "taskId": stored.task_id,
            "workflowId": stored.id,
            "status": "settled",
            "settledCredits": credits_number(spent_micro),
            "returnedCredits": credits_number(held_micro - spent_micro),
        }
    )


async def feedback(call: Call) -> Reply:
    """Rate the agent of a task."""
    stored = await _readable(call)
    if not call.is_party((stored.payer_did,)):
        raise not_found(f"the task {stored.task_id}")
    agents = {node["agent_did"] for node in stored.nodes if node["agent_did"]}
    return await give_for(call, stored, agents.pop() if len(agents) == 1 else None)


async def _capability(call: Call, description: str) -> tuple[str, str]:
    """Return the capability that a description asks for, and the description without its name."""
    named = _NAMED.match(description)
    if named is not None:
        rest = description[named.end() :].strip()
        return named.group(1), rest or description.strip()
    services = call.services
    found = await find_capabilities(
        services.reader, services.gateway.offers, description, limit=1, caller=call.caller.did
    )
    if not found:
        raise ServiceError(
            ErrorCode.NO_CAPABILITY_MATCH,
            "no registered capability fits the description; name one: [cap.example.v1] ...",
        )
    return found[0], description.strip()


async def _readable(call: Call) -> StoredWorkflow:
    """Return the workflow of the path's task with its nodes, if the caller may know of it."""
    task_id = call.given(TaskPath).task_id
    workflow_id = await task_workflow_id(call.services.reader, task_id)
    stored = await visible_record(call, workflow_id) if workflow_id else None
    if stored is None or visible_workflow(stored, call) is None:
        raise not_found(f"the task {task_id}")
    return stored


def _task_record(call: Call, stored: StoredWorkflow) -> dict[str, Any]:
    record = visible_workflow(stored, call)
    assert record is not None, stored.id
    nodes: Mapping[str, Any] = record["nodes"]
    status = _STATUSES.get(stored.status, stored.status)
    task: dict[str, Any] = {
        "id": stored.task_id,
        "taskId": stored.task_id,
        "workflowId": stored.id,
        "status": status,
        "result": _result(nodes) if status == "completed" else None,
        "error": _error(record, nodes),
    }
    if "intent" in record:  # an agent of one of its nodes sees neither purpose nor cost
        task |= {"description": record["intent"], "spentCredits": record["spentCredits"]}
    if len(nodes) == 1:
        (node,) = nodes.values()
        task["agentDid"] = node.get("agentDid")
        task["metrics"] = node.get("metrics")
    return {**task, **{name: record[name] for name in ("createdAt", "startedAt", "completedAt")}}


def _result(nodes: Mapping[str, Any]) -> Any:
    """Return the result of the one node; of more, those that no other depends on, by name."""
    if len(nodes) == 1:
        (node,) = nodes.values()
        return node.get("result", node.get("resultRef"))
    needed = {parent for node in nodes.values() for parent in node.get("dependsOn", ())}
    return {
        name: node.get("result", node.get("resultRef"))
        for name, node in nodes.items()
        if name not in needed
    }


def _error(record: Mapping[str, Any], nodes: Mapping[str, Any]) -> Any:
    """Return why it failed: the one node's error says more than the workflow's."""
    if len(nodes) == 1:
        (node,) = nodes.values()
        return node.get("error") or record.get("error")
    return record.get("error")


_TASK_ERRORS = (ErrorCode.NOT_FOUND, ErrorCode.CONFLICT)

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/tasks/publish",
        handler=publish,
        summary="Publish a task: one node, described in words",
        scope="workflows:write",
        rate=RateClass.WRITE,
        tag="tasks",
        body=TaskRequest,
        reply=TaskPublished,
        errors=(
            ErrorCode.INVALID_MANIFEST,
            ErrorCode.BUDGET_REQUIRED,
            ErrorCode.INSUFFICIENT_CREDITS,
            ErrorCode.QUOTA_EXCEEDED,
            ErrorCode.NO_CAPABILITY_MATCH,
            ErrorCode.OVERLOADED,
        ),
        repeats=Repeats.BY_COMMAND,
    ),
    Operation(
        method="GET",
        path="/v1/tasks/{task_id}",
        path_values=TaskPath,
        handler=get,
        summary="Read a task",
        scope="workflows:read",
        rate=RateClass.READ,
        tag="tasks",
        reply=Task,
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="POST",
        path="/v1/tasks/{task_id}/bid",
        path_values=TaskPath,
        handler=bid,
        summary="Bid for a task",
        scope="workflows:write",
        rate=RateClass.WRITE,
        tag="tasks",
        body=TaskBidRequest,
        reply=Bid,
        errors=(*_TASK_ERRORS, ErrorCode.FORBIDDEN),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="POST",
        path="/v1/tasks/{task_id}/settle",
        path_values=TaskPath,
        handler=settle,
        summary="Acknowledge how a task was settled",
        scope="workflows:read",
        rate=RateClass.READ,
        tag="tasks",
        body=Settlement,
        reply=TaskSettled,
        errors=(*_TASK_ERRORS, ErrorCode.FORBIDDEN, ErrorCode.ALREADY_SETTLED),
        is_body_optional=True,
    ),
    Operation(
        method="POST",
        path="/v1/tasks/{task_id}/feedback",
        path_values=TaskPath,
        handler=feedback,
        summary="Rate the agent of a task",
        scope="workflows:write",
        rate=RateClass.WRITE,
        tag="tasks",
        body=FeedbackRequest,
        reply=Feedback,
        errors=_TASK_ERRORS,
        repeats=Repeats.BY_REPLY,
    ),
)
