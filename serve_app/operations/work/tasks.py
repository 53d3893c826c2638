"""Tasks: a task is a simplified view of a workflow, usually of one node.

A task is published, run and paid as a workflow. This module moves no money. Every workflow has a
task id and can be read as a task.
Reference: features.md (Workflows); decisions registry-and-discovery and http-edge.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from actors.transport.messages import SettlementRequest
from core.canonical import hash_bytes
from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.market.pricing import FixedPrice, parse_price
from core.market.standing_bid import Offer
from core.money import credits_number, credits_text
from core.records.api.market import Bid, TaskBidRequest
from core.records.api.review import (
    Feedback,
    FeedbackRequest,
    Payout,
    Settlement,
    Task,
    TaskPublished,
    TaskRequest,
    TaskSettled,
)
from core.records.manifest import parse_manifest, read_stored_manifest
from core.workflow.transitions import NodeStatus, WorkflowStatus, is_terminal
from ledger.features.auctions import auction_rows
from ledger.features.discovery import find_capabilities
from ledger.features.tasks import SettleTask, settle_task_key
from ledger.features.workflow_reads import task_workflow_id
from ledger.reads.reader import RowDict, StoredWorkflow
from serve_app.http.calls import (
    REPLAYED,
    Call,
    Json,
    Operations,
    Repeats,
    Reply,
    invalid,
    not_found,
)
from serve_app.operations.views import current_card, visible_workflow
from serve_app.operations.visibility import visible_record
from serve_app.operations.work.auctions import bid_in, keep_bid, may_bid
from serve_app.operations.work.publishing import PUBLISH_ERRORS, publish_request, shown_secret
from serve_app.operations.work.workflows import give_for

NODE: Final = "task"
_NAMED: Final = re.compile(r"\s*\[([A-Za-z0-9][A-Za-z0-9._-]{0,127})\]\s*")
# How long a settlement waits for an agent to accept the task.
ACCEPTED_WITHIN_S: Final = 2.0
_LOOK_S: Final = 0.05
# The result of a node that the payer ended by a settlement.
_NO_RESULT: Final = "{}"
_STATUSES: Final = {WorkflowStatus.SUCCESS: "completed"}

OPERATIONS = Operations("tasks", "workflows")


@OPERATIONS.add(
    "POST",
    "/v1/tasks/publish",
    body=TaskRequest,
    reply=TaskPublished,
    errors=(*PUBLISH_ERRORS, ErrorCode.NO_CAPABILITY_MATCH),
    repeats=Repeats.BY_COMMAND,
)
async def publish(call: Call) -> Reply:
    """Publish a task: one node, described in words.

    The description may begin with the capability in brackets. Otherwise a search with the
    description selects the capability.
    """
    body = call.given(TaskRequest)
    capability_id, text = await _capability(call, body.description)
    node: dict[str, Any] = {"capabilityId": capability_id, "payload": {"description": text}}
    options = {"selection": body.selection, "auctionWindowMs": body.auction_window_ms}
    node.update((name, value) for name, value in options.items() if value is not None)
    manifest: dict[str, Any] = {"intent": text, "nodes": {NODE: node}}
    if body.budget is not None:
        manifest["settings"] = {"maxBudgetCredits": credits_number(body.budget)}
    if body.webhook_url:
        manifest["webhookUrl"] = body.webhook_url
    services = call.services
    request = publish_request(
        call, parse_manifest(manifest), write_json(manifest), command_key=call.command_key("")
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
            **({"warnings": reply.warnings} if reply.warnings else {}),
            **shown_secret(services, request, reply.workflow_id),
        },
        headers=(REPLAYED,) if reply.is_repeat else (),
    )


@OPERATIONS.add("GET", "/v1/tasks/{task_id}", reply=Task)
async def get(call: Call) -> Json:
    """Read a task."""
    stored = await _readable(call)
    await call.services.reads.load_results(stored)
    return _task_record(call, stored)


@OPERATIONS.add(
    "POST", "/v1/tasks/{task_id}/bid", body=TaskBidRequest, reply=Bid, errors=(ErrorCode.NOT_FOUND,)
)
async def bid(call: Call) -> Json:
    """Bid for a task.

    The bid counts in the node's open auction. Without an open auction the bid is only stored.
    """
    body = call.given(TaskBidRequest)
    task_id = call.path_values["task_id"]
    unknown = not_found(f"a task {task_id} that is open for bids, or its node,")
    services = call.services
    workflow_id = await task_workflow_id(services.reader, task_id)
    # Read the row without its nodes: their results are large, and the permission is checked below.
    row = await services.reads.row(workflow_id) if workflow_id else None
    if workflow_id is None or row is None:
        raise unknown
    nodes = read_stored_manifest(row["manifest"]).nodes
    node = next(iter(nodes)) if body.node_id is None and len(nodes) == 1 else body.node_id
    if node is None or node not in nodes:
        raise unknown
    capability_id = nodes[node].offered_id
    if not await may_bid(call, workflow_id, node, capability_id):
        raise unknown
    agent_did = body.agent_did or call.caller.did
    offered = (agent_did, await _offer(call, body, agent_did, capability_id))
    rounds = await auction_rows(services.reader, workflow_id, node)
    if rounds and rounds[-1]["status"] == "open":
        placed = await bid_in(call, offered, workflow_id, node, rounds)
    else:
        placed = await keep_bid(call, offered, workflow_id, node, nodes[node])
    return {**placed, "taskId": task_id}


@OPERATIONS.add(
    "POST",
    "/v1/tasks/{task_id}/settle",
    body=Settlement,
    is_body_optional=True,
    reply=TaskSettled,
    errors=(ErrorCode.ALREADY_SETTLED,),
)
async def settle(call: Call) -> Json:
    """Settle a task, once.

    1. Check that the payouts are at most the unspent part of the hold and go to the task's agents.
       Wait a short time until an agent accepts the task.
    2. If an agent has accepted the task but delivered no result, pay the agent now. This ends the
       task. If the agent is paid by tokens and has reported none, the body must name the amount.
       An agent that has delivered a result is already paid. A higher payout for it is refused.
    3. Record once that the task is settled.
    """
    payouts = call.given(Settlement).payouts
    stored = await _readable(call)
    call.require(call.right, stored.payer_did)
    _named_micro(payouts, stored)  # 1
    stored = await _when_accepted(call, stored)
    _check_paid_agents(payouts, stored)
    if not is_terminal(stored.status):
        node = find_accepted(stored, is_amount_named=payouts is not None)
        if node is not None:
            named_micro = _named_micro(payouts, stored)
            await _pay_accepted(call, stored, node, named_micro)  # 2
        stored = await _readable(call)
    if stored.status is not WorkflowStatus.SUCCESS:
        raise ServiceError(
            ErrorCode.CONFLICT, f"the task is {stored.status}: there is nothing to settle"
        )
    _check_paid(payouts, stored)
    command = SettleTask(
        key=settle_task_key(stored.id),
        request_hash=call.act_hash,
        workflow_id=stored.id,
        task_id=stored.task_id,
    )
    detail = f"the task {stored.task_id} is already settled"
    await call.commit(command, done=ServiceError(ErrorCode.ALREADY_SETTLED, detail))  # 3
    spent_micro, held_micro = int(stored.row["spent_micro"]), int(stored.row["hold_micro"])
    return {
        "ok": True,
        "success": True,
        "taskId": stored.task_id,
        "workflowId": stored.id,
        "status": "settled",
        "paid": [
            {"agentDid": node["agent_did"], "amount": credits_number(node["price_micro"])}
            for node in stored.nodes
            if node["price_micro"] or (payouts and node["agent_did"])
        ],
        "settledCredits": credits_number(spent_micro),
        "returnedCredits": credits_number(held_micro - spent_micro),
    }


@OPERATIONS.add(
    "POST",
    "/v1/tasks/{task_id}/feedback",
    body=FeedbackRequest,
    reply=Feedback,
    errors=(ErrorCode.NOT_FOUND,),
)
async def feedback(call: Call) -> Json:
    """Rate the agent of a task."""
    stored = await _readable(call)
    if not call.is_party((stored.payer_did,)):
        raise not_found(f"the task {stored.task_id}")
    agents = {node["agent_did"] for node in stored.nodes if node["agent_did"]}
    return await give_for(call, stored, agents.pop() if len(agents) == 1 else None)


async def _capability(call: Call, description: str) -> tuple[str, str]:
    """Return the capability of a description, and the description without the capability's name."""
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


async def _offer(call: Call, body: TaskBidRequest, agent_did: str, capability_id: str) -> Offer:
    """Return the offer of a bid. Without an amount in the body, it has the card's fixed price.

    Raises:
        ServiceError: INVALID_REQUEST: the body has no amount, and the card no fixed price.
    """
    amount_micro = body.bid_amount
    if amount_micro is None:
        row = await call.services.reader.agent(agent_did)
        cards = () if row is None else current_card(row)["capabilities"]
        prices = (parse_price(one)[0] for one in cards if one["id"] == capability_id)
        price = next(prices, None)
        if not isinstance(price, FixedPrice):
            raise invalid("bidAmount", "nothing", "an amount, because the card has no fixed price")
        amount_micro = price.micro
    return Offer(amount_micro, body.eta_ms, body.stake_offered)


def _named_micro(payouts: list[Payout] | None, stored: StoredWorkflow) -> int | None:
    """Return the sum of the payouts in micro-credits; None without payouts.

    Raises:
        ServiceError: INVALID_REQUEST: the sum is not positive, or exceeds the part of the hold that
            is not spent yet. Verifiers may have been paid from the hold.
    """
    if payouts is None:
        return None
    named_micro, held_micro = sum(payout.amount for payout in payouts), _held_micro(stored)
    if not 0 < named_micro <= held_micro:
        most = credits_number(held_micro)
        raise invalid("payouts", str(credits_number(named_micro)), f"at most the {most} held")
    return named_micro


def _check_paid(payouts: list[Payout] | None, stored: StoredWorkflow) -> None:
    """Refuse payouts that exceed the payments to the agents of a task that has succeeded.

    Raises:
        ServiceError: CONFLICT.
    """
    paid: Counter[str] = Counter()
    for node in stored.nodes:
        paid[node["agent_did"]] += node["price_micro"]
    named: Counter[str] = Counter()
    for payout in payouts or ():
        named[payout.agent_did] += payout.amount
    for agent_did, micro in named.items():
        if micro > paid[agent_did]:
            was_paid = credits_text(paid[agent_did])
            raise ServiceError(
                ErrorCode.CONFLICT,
                f"{agent_did} was paid {was_paid} credits; payouts name {credits_text(micro)},"
                f" expected at most {was_paid}; settle without payouts to close the task",
            )


def _held_micro(stored: StoredWorkflow) -> int:
    spent_micro = 0 if is_terminal(stored.status) else int(stored.row["spent_micro"])
    return int(stored.row["hold_micro"]) - spent_micro


async def _when_accepted(call: Call, stored: StoredWorkflow) -> StoredWorkflow:
    """Wait until an agent has accepted the task or the task has ended, at most 2 s.

    Returns: the workflow of the task. A task of several nodes is returned at once.
    """
    deadline = asyncio.get_running_loop().time() + ACCEPTED_WITHIN_S
    while (
        not is_terminal(stored.status)
        and len(read_stored_manifest(stored.row["manifest"]).nodes) == 1
        and not any(node["status"] == NodeStatus.RUNNING for node in stored.nodes)
        and asyncio.get_running_loop().time() < deadline
    ):
        await asyncio.sleep(_LOOK_S)
        stored = await _readable(call)
    return stored


def _check_paid_agents(payouts: list[Payout] | None, stored: StoredWorkflow) -> None:
    """Refuse payouts to DIDs that are not agents of the task, if the task has agents already.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    agents = {node["agent_did"] for node in stored.nodes if node["agent_did"]}
    for index, payout in enumerate(payouts or ()):
        if agents and payout.agent_did not in agents:
            raise invalid(f"payouts[{index}].agentDid", payout.agent_did, "an agent of the task")


def find_accepted(stored: StoredWorkflow, *, is_amount_named: bool) -> RowDict | None:
    """Return the only node of a task whose agent has accepted it; None if the node has ended.

    The node may have ended although the workflow's row is not terminal: the node's row is read
    after the workflow's row.

    Args:
        stored: the workflow of the task, with its nodes.
        is_amount_named: whether the payer's body names an amount.

    Raises:
        ServiceError: CONFLICT: no agent has promised to send the result later. INVALID_REQUEST:
            the agent is paid by tokens and has reported none, and the payer names no amount.
    """
    if len(read_stored_manifest(stored.row["manifest"]).nodes) != 1 or not stored.nodes:
        raise _nothing_accepted()
    (node,) = stored.nodes
    if is_terminal(NodeStatus(node["status"])):
        return None
    if node["status"] != NodeStatus.RUNNING:
        raise _nothing_accepted()
    # If the result is being verified, the agent has reported its tokens. The owner process then
    # refuses the settlement.
    has_named = node["price_json"] is None or node["metrics"] is not None
    if not has_named and not is_amount_named:
        raise invalid(
            "payouts", "nothing", "an amount, because the agent is paid by tokens and reported none"
        )
    return node


async def _pay_accepted(
    call: Call, stored: StoredWorkflow, node: RowDict, named_micro: int | None
) -> None:
    """Pay the agent that has accepted the task's only node. The payment ends the task.

    Returns without an error if the attempt was decided in another way meanwhile.

    Raises:
        ServiceError: CONFLICT: no agent has promised to send the result later.
    """
    request = SettlementRequest(
        workflow_id=stored.id,
        node=node["name"],
        attempt=node["attempt"],
        verify_attempt=0,
        result_json=_NO_RESULT,
        output_hash=hash_bytes(_NO_RESULT.encode()),
        named_micro=named_micro,
        actor_did=call.caller.did,
        authority=call.authority,
    )
    try:
        taken = await call.services.to_the_end(call.services.gateway.node_result(request))
    except ServiceError as error:
        # The attempt was decided without this request, or by an earlier try of this request whose
        # reply was lost. The caller reads the outcome from the workflow's row.
        if error.code not in (ErrorCode.ALREADY_SETTLED, ErrorCode.ESCROW_RELEASED):
            raise
        return
    if taken.status != NodeStatus.SUCCESS:
        raise _nothing_accepted()


def _nothing_accepted() -> ServiceError:
    detail = (
        "nothing to settle: the task has not succeeded, and no agent has accepted it with"
        " a result to come"
    )
    return ServiceError(ErrorCode.CONFLICT, detail)


async def _readable(call: Call) -> StoredWorkflow:
    """Return the workflow of the task in the path, with its nodes.

    Raises:
        ServiceError: NOT_FOUND if the task does not exist or is hidden from the caller.
    """
    task_id = call.path_values["task_id"]
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
    if "intent" in record:  # An agent of a node does not see the purpose and the cost.
        task |= {"description": record["intent"], "spentCredits": record["spentCredits"]}
    if len(nodes) == 1:
        (node,) = nodes.values()
        task["agentDid"] = node.get("agentDid")
        task["metrics"] = node.get("metrics")
    return {**task, **{name: record[name] for name in ("createdAt", "startedAt", "completedAt")}}


def _result(nodes: Mapping[str, Any]) -> Any:
    """Return the result of the only node.

    With several nodes, return the results of the nodes without dependents, by name.
    """
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
    """Return the error of the only node, which is more specific, or else the workflow's error."""
    if len(nodes) == 1:
        (node,) = nodes.values()
        return node.get("error") or record.get("error")
    return record.get("error")
