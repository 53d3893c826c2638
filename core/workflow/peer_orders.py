"""Writes the orders that are sent to peers, and reads the peers' replies: records and refusals.

An order is a workflow of one node that is published at a peer for one attempt. Pure. The reply of a
peer is not trusted. If a record is of another order, or charges more than was agreed, the order
fails and nothing is paid for it.
Reference: features.md (Nodes at peers), money.md (Work of peers).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
from msgspec import MsgspecError, Raw, Struct
from msgspec.json import Decoder

from core.errors import ErrorCode, NodeErrorCode
from core.json_text import write_json
from core.market.no_candidates import UNHEALTHY
from core.message import Message
from core.money import credits_number, credits_text, micro_from_credits
from core.records.bounds import is_did
from core.records.statuses import NodeStatus, WorkflowStatus
from core.wording import quoted
from core.workflow.events import Failure, Verdict

# The name of the only node of an order. It reveals nothing about the workflow here.
NODE: Final = "node"
# Prefix of an order's intent; the `eventId` of the attempt follows.
ORDER_INTENT: Final = "order "
# The order's timeout is the rest of the attempt's timeout, less the time for the reply
REPLY_TIME_MS: Final = 1_000
# and less the time to transfer each MiB of inputs.
TRANSFER_MS: Final = 3_000
_TEXT_CHARS_MAX: Final = 300
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
# Error codes of the peer that mean that no agent took the node. Another candidate gets the node at
# once.
_NOT_TRIED: Final = frozenset(
    {
        NodeErrorCode.NO_CANDIDATE, NodeErrorCode.AGENT_UNAVAILABLE, NodeErrorCode.BUDGET_EXCEEDED,
        NodeErrorCode.VERIFIER_UNAVAILABLE, NodeErrorCode.REVOKED,
    }
)  # fmt: skip
_FINAL: Final = frozenset(
    {NodeErrorCode.INPUT_TOO_LARGE, NodeErrorCode.INPUT_SCHEMA, NodeErrorCode.POLICY_DENIED}
)
_ENDED: Final = frozenset(WorkflowStatus) - {WorkflowStatus.PENDING, WorkflowStatus.RUNNING}
_TIMEOUTS: Final = frozenset({NodeErrorCode.AGENT_TIMEOUT, NodeErrorCode.WORKFLOW_TIMEOUT})
# Codes of a 503 that mean that the peer has stored nothing of the order.
_FULL: Final = frozenset({ErrorCode.OVERLOADED, ErrorCode.RATE_LIMITED, ErrorCode.QUOTA_EXCEEDED})


class OrderTerms(Message, frozen=True):
    """The terms of an order that is published at a peer.

    `budget_micro`: the most that the peer may charge, its own fee included. `fee_bps`: the fee of
    this deployment on the peer's charge, basis points. `versions`: as in `SelectAgent`.
    `verifier_capability_id`: the capability of the verifier at the peer; "" for the peer's default.
    """

    peer_id: str
    budget_micro: int
    fee_bps: int
    versions: str = ""
    requires_verification: bool = False
    verifier_capability_id: str = ""


class Placed(Struct, frozen=True):
    """The order is stored at the peer and has not ended."""

    workflow_id: str


class Done(Struct, frozen=True):
    """The order has succeeded.

    `result`: the result's JSON text; empty if the result is too large for the record and must be
    read with another request. `charged_micro`: the peer's charge. `agent_did`: the agent that
    worked at the peer; "" if the record does not name the agent.
    """

    workflow_id: str
    result: bytes
    charged_micro: int
    agent_did: str = ""


class Failed(Struct, frozen=True):
    """The order has failed, or the peer's reply cannot be trusted.

    `charged_micro`: the peer's charge for a result that is not accepted. A verification at the peer
    has rejected the result, or the result's agent is revoked.
    """

    failure: Failure
    charged_micro: int = 0


class _Node(Struct, rename="camel"):
    status: str
    result: Raw = Raw()
    result_ref: Any = None
    error: Any = None
    agent_did: Any = None


class _Record(Struct, rename="camel"):
    """A workflow record, or the ids of a publish."""

    workflow_id: str
    status: str
    intent: str | None = None
    nodes: dict[str, _Node] | None = None
    spent_credits: Raw = Raw()
    error: Any = None


class _Listed(Struct):
    id: str
    intent: str | None = None


class _List(Struct):
    workflows: list[_Listed]


class _Refusal(Struct):
    code: str = ""
    detail: str = ""


_RECORD: Final = Decoder(_Record)
_LIST: Final = Decoder(_List)
_REFUSAL: Final = Decoder(_Refusal)
_UNREADABLE: Final = (MsgspecError, RecursionError, UnicodeDecodeError)


def order_body(
    terms: OrderTerms, event_id: str, capability_id: str, timeout_ms: int, inputs: bytes
) -> bytes:
    """Return the manifest of an order.

    Args:
        event_id: the id of the attempt; the order's intent contains it.
        timeout_ms: the remaining time of the attempt.
        inputs: the inputs in canonical form. The peer does not fill templates in them.
    """
    versions = f"@{terms.versions}" if terms.versions else ""
    transfer_ms = len(inputs) * TRANSFER_MS // 2**20
    left_ms = max(1, timeout_ms - REPLY_TIME_MS - transfer_ms)
    node: dict[str, Any] = {
        "capabilityId": capability_id + versions,
        "payload": Raw(inputs),
        "fillTemplates": False,
        "timeoutMs": left_ms,
        "maxRetries": 0,
        "waitForAgentMs": 0,
    }
    if terms.requires_verification:
        node["requiresVerification"] = True
        if terms.verifier_capability_id:
            node["verifierCapabilityId"] = terms.verifier_capability_id
    budget = credits_number(terms.budget_micro)
    settings = {"maxRuntimeMs": left_ms, "maxBudgetCredits": budget}
    intent = ORDER_INTENT + event_id
    return write_json({"intent": intent, "nodes": {NODE: node}, "settings": settings})


def find_order(body: bytes, event_id: str) -> str | None:
    """Return the id of an order in a reply with a list of workflows; None if it is not listed."""
    try:
        listed = _LIST.decode(body).workflows
    except _UNREADABLE:
        return None
    ids = (one.id for one in listed if one.intent == ORDER_INTENT + event_id)
    return next((one for one in ids if _ID.fullmatch(one)), None)


def read_order(
    body: bytes, terms: OrderTerms, event_id: str, known_id: str | None
) -> Placed | Done | Failed:
    """Read a reply to the publish, or to a look-up, of an order.

    1. Check that the reply is the record, or the ids, of this order. 2. Check whether the order has
    ended. 3. Check that the charge is at most the agreed one. 4. Read the result or the error of
    the only node.

    Args:
        known_id: the order's workflow id at the peer; None while it is unknown.
    """
    try:
        record = _RECORD.decode(body)
    except _UNREADABLE as error:
        return _broken_order(terms, f"no workflow record: {error}")
    if known_id not in (None, record.workflow_id):  # 1
        return _broken_order(terms, f"the record of workflow {quoted(record.workflow_id)}")
    if _ID.fullmatch(record.workflow_id) is None:
        return _broken_order(terms, "a workflow without an id")
    if record.status in (WorkflowStatus.PENDING, WorkflowStatus.RUNNING):  # 2
        return Placed(record.workflow_id)
    nodes = record.nodes
    if record.status not in _ENDED:
        return _broken_order(terms, f"a workflow in state {quoted(record.status)}")
    if nodes is None:  # the reply has only ids, because the order failed at its publish
        return Failed(_failure_there(terms, record.error))
    if nodes.keys() != {NODE} or record.intent != ORDER_INTENT + event_id:
        return _broken_order(terms, "the record of another order")
    try:
        charged_micro = micro_from_credits(json.loads(bytes(record.spent_credits)))
    except (ValueError, RecursionError) as error:
        return _broken_order(terms, f"spentCredits: {error}")
    if not 0 <= charged_micro <= terms.budget_micro:  # 3
        agreed = credits_text(terms.budget_micro)
        charged = credits_text(charged_micro)
        return _broken_order(terms, f"it charged {charged} credits, at most {agreed} were agreed")
    node = nodes[NODE]
    if record.status != WorkflowStatus.SUCCESS:  # 4
        failure = _failure_there(terms, node.error or record.error)
        is_rejected = failure.code is NodeErrorCode.VERIFICATION_REJECTED
        return Failed(failure, charged_micro if is_rejected else 0)
    result = bytes(node.result)
    if node.status != NodeStatus.SUCCESS or not (result or node.result_ref):
        return _broken_order(terms, f"a node in state {quoted(node.status)} without a result")
    agent_did = node.agent_did if is_did(node.agent_did) else ""
    return Done(record.workflow_id, result, charged_micro, agent_did)


def busy_failure(terms: OrderTerms) -> Failure:
    """Return the failure of an order while the peer has not ended an earlier order of the node."""
    return _declined(f"the peer {terms.peer_id} has not ended an earlier order of the node")


def read_result(body: bytes, done: Done, terms: OrderTerms) -> Done | Failed:
    """Return the order with its result, which was read separately from the record."""
    try:
        msgspec.json.decode(body, type=Raw)
    except _UNREADABLE as error:
        return _broken_order(terms, f"no result: {error}")
    return Done(done.workflow_id, body, done.charged_micro, done.agent_did)


def refuse_revoked(terms: OrderTerms, done: Done) -> Failed:
    """Return the failure of an order whose agent is revoked, here or at the peer."""
    message = (
        f"{quoted(done.agent_did)}, which gave the result at the peer {terms.peer_id}, is revoked"
    )
    failure = Failure(NodeErrorCode.REVOKED, message, Verdict.FINAL_FOR_AGENT)
    return Failed(failure, done.charged_micro)


def judge_refusal(
    status: int, body: bytes, retry_after_ms: int, terms: OrderTerms, *, is_stored: bool
) -> Failed | None:
    """Return the failure of an order that a peer refuses; None if the request may be repeated.

    Args:
        status: the HTTP status of the reply, 300 or more.
        is_stored: whether the peer may have stored the order. If so, only a final refusal ends it.
    """
    try:
        refusal = _REFUSAL.decode(body)
    except _UNREADABLE:
        refusal = _Refusal()
    is_declined = status in (401, 402, 403, 429) or (status == 503 and refusal.code in _FULL)
    # A 401 may be temporary: a peer needs up to 15 s to learn a new key of this deployment.
    if is_stored and (status in (401, 408, 429) or status >= 500):
        return None
    if status == 408 or (status >= 500 and not is_declined):
        return None
    told = f" {quoted(refusal.code)}: {quoted(refusal.detail, _TEXT_CHARS_MAX)}"
    message = f"the peer {terms.peer_id} refuses the order with HTTP {status}"
    message += told if refusal.code else ""
    if not is_declined:
        code = NodeErrorCode.AGENT_ERROR
        return Failed(Failure(code, message, Verdict.FINAL_FOR_AGENT, is_spared=True))
    # A 402 or 403 concerns this node only: the peer stays a candidate for other nodes.
    is_of_node = status in (402, 403) or refusal.code == ErrorCode.INSUFFICIENT_CREDITS
    return Failed(_declined(message, retry_after_ms, is_left_alone=not is_of_node))


def _declined(message: str, retry_after_ms: int = 0, *, is_left_alone: bool = False) -> Failure:
    """Return the failure of an order that the peer did not take; the next candidate is tried.

    Args:
        is_left_alone: whether the peer is unavailable for other nodes, too.
    """
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        message,
        details="agent_offline" if is_left_alone else UNHEALTHY,
        retry_after_ms=retry_after_ms,
        is_spared=True,
        is_declined=True,
    )


def _failure_there(terms: OrderTerms, error: Any) -> Failure:
    """Return the failure of an attempt whose order ended with this error at the peer."""
    members = error if type(error) is dict else {}
    code, message = str(members.get("code")), str(members.get("message"))
    told = f"at the peer {terms.peer_id}: {quoted(code)}: {quoted(message, _TEXT_CHARS_MAX)}"
    if code in _NOT_TRIED:
        return _declined(told)
    if code in _FINAL:
        return Failure(NodeErrorCode(code), told, Verdict.FINAL_FOR_AGENT, is_spared=True)
    if code in _TIMEOUTS:
        return Failure(NodeErrorCode.AGENT_TIMEOUT, told)
    is_rejected = code == NodeErrorCode.VERIFICATION_REJECTED
    kind = NodeErrorCode.VERIFICATION_REJECTED if is_rejected else NodeErrorCode.AGENT_ERROR
    return Failure(kind, told, is_spared=is_rejected)


def _broken_order(terms: OrderTerms, got: str) -> Failed:
    message = f"invalid reply of the peer {terms.peer_id} to the order: {got[:_TEXT_CHARS_MAX]}"
    return Failed(Failure(NodeErrorCode.INVALID_REPLY, message, Verdict.FINAL_FOR_AGENT))
